"""plans.json in its newer and older form, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from made_nnunet import OLD_NETWORK, SHARED, made_checkpoint, made_plans, plans_with, write_model

from continual_segment.errors import ModelError
from continual_segment.model.nnunet import NnunetModel
from continual_segment.model.nnunet.architecture import read_architecture
from continual_segment.model.nnunet.weights import expected_shapes

SMALL_OLD_NETWORK = {
    "UNet_class_name": "PlainConvUNet",
    "UNet_base_num_features": 4,
    "unet_max_num_features": 6,
    "n_conv_per_stage_encoder": [2, 2, 2],
    "n_conv_per_stage_decoder": [2, 2],
    "pool_op_kernel_sizes": [[1, 1, 1], [1, 2, 2], [2, 2, 2]],
    "conv_kernel_sizes": [[1, 3, 3], [3, 3, 3], [3, 3, 3]],
}


def opened(tmp_path: Path, plans: Any, **checkpoint: Any) -> NnunetModel:
    return NnunetModel.open(write_model(tmp_path / "model", plans, checkpoint=made_checkpoint(**checkpoint)))


def test_older_plans_of_a_public_model_give_nnunets_network() -> None:
    architecture = read_architecture(SHARED | OLD_NETWORK, (48, 128, 160), "plans.json")
    assert architecture.kind == "plain"
    assert architecture.features == (32, 64, 128, 256, 320, 320)
    assert architecture.kernels == ((1, 3, 3), *[(3, 3, 3)] * 5)
    assert architecture.total_stride == (8, 32, 32)
    assert architecture.encoder_convs == (2,) * 6
    assert architecture.decoder_convs == (2,) * 5
    assert architecture.conv_bias
    shapes = expected_shapes(architecture, 15)
    assert len(shapes) == 108
    assert shapes["decoder.transpconvs.0.weight"] == (320, 320, 1, 2, 2)


def test_a_model_with_older_plans_is_read(tmp_path: Path) -> None:
    plans = made_plans()
    plans["configurations"]["3d_fullres"] = settings = SHARED | SMALL_OLD_NETWORK
    old_name = "foreground_intensity_properties_by_modality"
    plans[old_name] = plans.pop("foreground_intensity_properties_per_channel")
    del plans["label_manager"]
    shapes = expected_shapes(read_architecture(settings, (8, 16, 16), "plans.json"), 5)
    model = opened(tmp_path, plans, state={name: torch.ones(shape) for name, shape in shapes.items()})
    assert model.architecture.features == (4, 6, 6)
    assert model.preprocessing.intensities.percentile_99_5 == 277


def test_older_plans_name_residual_encoders_too() -> None:
    old = OLD_NETWORK | {"UNet_class_name": "ResidualEncoderUNet", "n_conv_per_stage_decoder": [1] * 5}
    architecture = read_architecture(SHARED | old, (48, 128, 160), "plans.json")
    assert (architecture.kind, architecture.decoder_convs) == ("residual", (1,) * 5)


def test_single_numbers_count_for_every_stage_and_axis(tmp_path: Path) -> None:
    network = {"n_conv_per_stage": 2, "n_conv_per_stage_decoder": 2, "strides": [1, [1, 2, 2], 2]}
    architecture = opened(tmp_path, plans_with(network)).architecture
    assert architecture.encoder_convs == (2, 2, 2)
    assert architecture.strides == ((1, 1, 1), (1, 2, 2), (2, 2, 2))


def test_transposed_axes_are_read(tmp_path: Path) -> None:
    plans = made_plans(transpose_forward=[1, 2, 0], transpose_backward=[2, 0, 1])
    preprocessing = opened(tmp_path, plans).preprocessing
    assert preprocessing.transpose_forward == (1, 2, 0)
    assert preprocessing.transpose_backward == (2, 0, 1)


@pytest.mark.parametrize(
    ("configuration", "found"), [("2d", "2D"), ("3d_cascade_fullres", "cascade"), ("3d_other", "3d_other")]
)
def test_other_configurations_are_refused(configuration: str, found: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"plans\.json.*{found}"):
        opened(tmp_path, made_plans(), init_args={"configuration": configuration})


def test_inheritance_without_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="3d_fullres_large"):
        opened(tmp_path, plans_with(inherits_from="3d_fullres_large"))


@pytest.mark.parametrize(
    ("network", "found"),
    [
        ({"norm_op": "torch.nn.modules.batchnorm.BatchNorm3d"}, "BatchNorm3d"),
        ({"norm_op": None}, "norm_op None"),
        ({"norm_op_kwargs": {"eps": 1e-3, "affine": True}}, "0.001"),
        ({"norm_op_kwargs": {"eps": 1e-5}}, "norm_op_kwargs"),
        ({"norm_op_kwargs": None}, "norm_op_kwargs"),
        ({"norm_op_kwargs": {"eps": 1e-5, "affine": True, "track_running_stats": True}}, "track_running"),
        ({"nonlin": "torch.nn.ReLU"}, "torch.nn.ReLU"),
        ({"nonlin_kwargs": {"inplace": True, "negative_slope": 0.2}}, "0.2"),
        ({"dropout_op": "torch.nn.Dropout3d"}, "Dropout3d"),
        ({"conv_op": "torch.nn.modules.conv.Conv2d"}, "Conv2d"),
        ({"nonlin_first": True}, "nonlin_first"),
        ({"stem_channels": 16}, "stem_channels"),
    ],
)
def test_other_operations_than_stock_are_refused(network: dict[str, Any], found: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"plans\.json.*{found}"):
        opened(tmp_path, plans_with(network))


def test_arguments_without_effect_are_accepted(tmp_path: Path) -> None:
    network = {"nonlin_first": False, "stem_channels": None, "deep_supervision": True, "nonlin_kwargs": None}
    assert opened(tmp_path, plans_with(network)).architecture.kind == "plain"


@pytest.mark.parametrize(
    "name",
    [
        "dynamic_network_architectures.architectures.primus.PrimusM",
        "dynamic_network_architectures.architectures.unet.ResidualUNet",
        "my_networks.PlainConvUNet",
        "PlainConvUNet",
        "",
    ],
)
def test_other_network_classes_are_refused(name: str, tmp_path: Path) -> None:
    plans = made_plans()
    plans["configurations"]["3d_fullres"]["architecture"]["network_class_name"] = name
    with pytest.raises(ModelError, match=rf"plans\.json.*class {name}"):
        opened(tmp_path, plans)


@pytest.mark.parametrize(
    ("network", "found"),
    [
        ({"n_stages": 4}, "features_per_stage has 3"),
        ({"n_stages": 10**9}, "n_stages"),
        ({"n_stages": 1}, "n_stages"),
        ({"features_per_stage": [4, 6, 0]}, "features_per_stage"),
        ({"features_per_stage": [4, 6, 10**15]}, "features_per_stage"),
        ({"n_conv_per_stage": [2, 2, 10**9]}, "n_conv_per_stage"),
        ({"n_conv_per_stage": None}, "n_conv_per_stage has 0"),
        ({"kernel_sizes": [[3, 3, 3], [3, 3, 3]]}, "kernel_sizes has 2"),
        ({"kernel_sizes": [[3, 3, 3], [3, 3, 3], [2, 3, 3]]}, "odd"),
        ({"kernel_sizes": [[3, 3], [3, 3], [3, 3]]}, "kernel_sizes"),
        ({"strides": [[2, 2, 2], [1, 2, 2], [2, 2, 2]]}, r"\(2, 2, 2\)"),
        ({"strides": [[1, 1, 1], [1, 2, 2], [16, 2, 2]]}, r"\(16, 4, 4\)"),
        ({"strides": [[1, 1, 1], [1, 2, 2], [0, 2, 2]]}, "strides"),
        ({"conv_bias": "yes"}, "conv_bias"),
    ],
)
def test_sizes_that_cannot_be_are_refused(network: dict[str, Any], found: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"plans\.json.*{found}"):
        opened(tmp_path, plans_with(network))


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"spacing": [1.5, 0, 1.5]}, "spacing"),
        ({"spacing": [1.5, float("nan"), 1.5]}, "spacing"),
        ({"patch_size": [8, 16, -16]}, "patch_size"),
        ({"patch_size": [8, 16, 10]}, r"\(8, 16, 10\)"),
        ({"normalization_schemes": ["CTNormalization", "ZScoreNormalization"]}, "2 input channels"),
        ({"resampling_fn_data_kwargs": {"order": "three"}}, "order"),
        ({"resampling_fn_seg": None}, "resampling_fn_seg"),
        ({"previous_stage": "3d_lowres"}, "cascade"),
        ({"architecture": {"network_class_name": "x"}}, "arch_kwargs"),
        ({"architecture": None}, "UNet_class_name"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], found: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"plans\.json.*{found}"):
        opened(tmp_path, plans_with(**settings))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"transpose_forward": [0, 1, 1]}, "transpose_forward"),
        ({"transpose_forward": [1, 2, 0], "transpose_backward": [1, 2, 0]}, "transpose_forward"),
        ({"label_manager": "MyLabelManager"}, "label_manager"),
        ({"foreground_intensity_properties_per_channel": {}}, "0 channels"),
        ({"configurations": []}, "configurations"),
        (
            {
                "foreground_intensity_properties_per_channel": {
                    "0": {"mean": 0.0, "std": 0.0, "percentile_00_5": 0.0, "percentile_99_5": 1.0}
                }
            },
            "std",
        ),
    ],
)
def test_plans_that_cannot_be_are_refused(changes: dict[str, Any], found: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=rf"plans\.json.*{found}"):
        opened(tmp_path, made_plans(**changes))
