"""Model folders as stock nnU-Net v2 writes them, with a network of a few hundred weights.

Names and shapes of the weights are those of the state dicts of dynamic-network-architectures' own classes,
kept in JSON files; layers that nnU-Net stores under several names share one tensor here, too.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch

TESTS = Path(__file__).parent
STATE_NAMES = {
    "plain": TESTS / "networks" / "plain_conv_unet_names.json",
    "residual": TESTS / "model" / "nnunet" / "residual_encoder_unet_names.json",
}
FOLDER = "nnUNetTrainer__nnUNetPlans__3d_fullres"
FINAL = "checkpoint_final.pth"

RESAMPLING = {
    "resampling_fn_data": "resample_data_or_seg_to_shape",
    "resampling_fn_data_kwargs": {"is_seg": False, "order": 3, "order_z": 0, "force_separate_z": None},
    "resampling_fn_seg": "resample_data_or_seg_to_shape",
    "resampling_fn_seg_kwargs": {"is_seg": True, "order": 1, "order_z": 0, "force_separate_z": None},
    "resampling_fn_probabilities": "resample_data_or_seg_to_shape",
    "resampling_fn_probabilities_kwargs": {"is_seg": False, "order": 1, "order_z": 0},
}
SHARED = {
    "data_identifier": "nnUNetPlans_3d_fullres",
    "preprocessor_name": "DefaultPreprocessor",
    "batch_size": 2,
    "patch_size": [8, 16, 16],
    "spacing": [2.5, 1.5, 1.5],
    "normalization_schemes": ["CTNormalization"],
    "use_mask_for_norm": [False],
    "batch_dice": False,
    **RESAMPLING,
}
OPERATIONS = {
    "conv_op": "torch.nn.modules.conv.Conv3d",
    "conv_bias": True,
    "norm_op": "torch.nn.modules.instancenorm.InstanceNorm3d",
    "norm_op_kwargs": {"eps": 1e-05, "affine": True},
    "dropout_op": None,
    "dropout_op_kwargs": None,
    "nonlin": "torch.nn.LeakyReLU",
    "nonlin_kwargs": {"inplace": True},
}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "plain": {
        "network_class_name": "dynamic_network_architectures.architectures.unet.PlainConvUNet",
        "arch_kwargs": {
            "n_stages": 3,
            "features_per_stage": [4, 6, 8],
            "kernel_sizes": [[1, 3, 3], [3, 3, 3], [3, 3, 3]],
            "strides": [[1, 1, 1], [1, 2, 2], [2, 2, 2]],
            "n_conv_per_stage": [2, 2, 2],
            "n_conv_per_stage_decoder": [2, 2],
            **OPERATIONS,
        },
        "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
    },
    "residual": {
        "network_class_name": "dynamic_network_architectures.architectures.unet.ResidualEncoderUNet",
        "arch_kwargs": {
            "n_stages": 4,
            "features_per_stage": [4, 6, 6, 8],  # one stage pools without projection, one projects without
            "kernel_sizes": [[1, 3, 3], [3, 3, 3], [3, 3, 3], [3, 3, 3]],
            "strides": [[1, 1, 1], [1, 2, 2], [2, 2, 2], [1, 1, 1]],
            "n_blocks_per_stage": [1, 2, 1, 2],
            "n_conv_per_stage_decoder": [1, 2, 1],
            **OPERATIONS,
        },
        "_kw_requires_import": ["conv_op", "norm_op", "dropout_op", "nonlin"],
    },
}
OLD_NETWORK = {
    "UNet_class_name": "PlainConvUNet",
    "UNet_base_num_features": 32,
    "unet_max_num_features": 320,
    "n_conv_per_stage_encoder": [2, 2, 2, 2, 2, 2],
    "n_conv_per_stage_decoder": [2, 2, 2, 2, 2],
    "num_pool_per_axis": [3, 5, 5],
    "pool_op_kernel_sizes": [[1, 1, 1], [1, 2, 2], [2, 2, 2], [2, 2, 2], [2, 2, 2], [1, 2, 2]],
    "conv_kernel_sizes": [[1, 3, 3], *[[3, 3, 3]] * 5],
}
"""The network of a public model with older plans."""

DATASET: dict[str, Any] = {
    "channel_names": {"0": "CT"},
    "labels": {"background": 0, "Liver": 1, "Right Kidney": 2, "Left Kidney": 4, "third thing": 3},
    "numTraining": 10,
    "file_ending": ".nii.gz",
}


def made_plans(kind: str = "plain", **changes: Any) -> dict[str, Any]:
    """plans.json with configurations 2d, 3d_fullres, one that inherits, and a cascade."""
    plans = {
        "dataset_name": "Dataset007_Made",
        "plans_name": "nnUNetPlans",
        "image_reader_writer": "SimpleITKIO",
        "transpose_forward": [0, 1, 2],
        "transpose_backward": [0, 1, 2],
        "configurations": {
            "2d": SHARED | {"patch_size": [64, 64], "spacing": [1.5, 1.5]},
            "3d_fullres": SHARED | {"architecture": ARCHITECTURES[kind]},
            "3d_fullres_large": {"inherits_from": "3d_fullres", "patch_size": [16, 32, 32]},
            "3d_cascade_fullres": {"inherits_from": "3d_fullres", "previous_stage": "3d_lowres"},
        },
        "experiment_planner_used": "ExperimentPlanner",
        "label_manager": "LabelManager",
        "foreground_intensity_properties_per_channel": {
            "0": {
                "max": 4881.0,
                "mean": 70.25,
                "median": 90.0,
                "min": -1454.0,
                "percentile_00_5": -969.0,
                "percentile_99_5": 277.0,
                "std": 141.5,
            }
        },
    }
    return deepcopy(plans | changes)


def plans_with(network: Mapping[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    """Plans whose 3d_fullres has other settings, or other arguments of its network."""
    plans = made_plans()
    configuration = plans["configurations"]["3d_fullres"]
    configuration["architecture"]["arch_kwargs"] |= network or {}
    configuration |= settings
    return plans


def made_state(kind: str = "plain", seed: int = 0) -> dict[str, torch.Tensor]:
    """A state dict of nnU-Net's own class: layers that it stores twice are one tensor here, too."""
    shapes = json.loads(STATE_NAMES[kind].read_text())
    generator = torch.Generator().manual_seed(seed)
    once: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        if own_name(name) not in once:
            once[own_name(name)] = torch.randn(shape, generator=generator)
    return {name: once[own_name(name)] for name in shapes}


def without_bias(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights of the same network with `conv_bias` false."""
    endings = ("conv.bias", "all_modules.0.bias")
    return {
        name: tensor
        for name, tensor in state.items()
        if not name.endswith(endings) and not ("transpconvs" in name and name.endswith("bias"))
    }


def own_name(name: str) -> str:
    name = name.replace("decoder.encoder.", "encoder.")
    return name.replace(".all_modules.0.", ".conv.").replace(".all_modules.1.", ".norm.")


def made_checkpoint(state: Mapping[str, torch.Tensor] | None = None, **changes: Any) -> dict[str, Any]:
    """What nnU-Net passes to torch.save, numbers of numpy in the log included."""
    state = made_state() if state is None else state
    return {
        "network_weights": dict(state),
        "optimizer_state": {
            "state": {0: {"momentum_buffer": torch.zeros(4, 1, 1, 3, 3)}},
            "param_groups": [{"lr": 0.01, "nesterov": True, "params": [0]}],
        },
        "grad_scaler_state": {"scale": 65536.0, "growth_factor": 2.0, "_growth_tracker": 17},
        "logging": {
            "mean_fg_dice": [np.float64(0.5), np.float32(0.25)],
            "dice_per_class_or_region": [[np.float32(0.5)] * 4],
            "lrs": [0.01],
        },
        "_best_ema": np.float64(0.75),
        "current_epoch": 1000,
        "init_args": {
            "plans": made_plans(),
            "configuration": "3d_fullres",
            "fold": 0,
            "dataset_json": deepcopy(DATASET),
            "device": torch.device("cuda"),
        },
        "trainer_name": "nnUNetTrainer",
        "inference_allowed_mirroring_axes": (0, 1, 2),
        **changes,
    }


def write_model(
    folder: Path,
    plans: Any = None,
    dataset: Any = None,
    checkpoint: Any = None,
    files: tuple[str, ...] = (f"fold_0/{FINAL}",),
) -> Path:
    """Write a model folder; every one of `files` is the same checkpoint."""
    folder.mkdir(parents=True)
    (folder / "plans.json").write_text(json.dumps(made_plans() if plans is None else plans))
    (folder / "dataset.json").write_text(json.dumps(DATASET if dataset is None else dataset))
    for name in files:
        (folder / name).parent.mkdir(exist_ok=True)
        torch.save(made_checkpoint() if checkpoint is None else checkpoint, folder / name)
    return folder


def write_zip(path: Path, folder: Path, above: str = "Dataset007_Made/") -> Path:
    """Zip a model folder as nnUNetv2_export_model_to_zip does, below the folders `above`."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                archive.write(file, f"{above}{folder.name}/{file.relative_to(folder).as_posix()}")
    return path


def change_pickle(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Replace the pickle inside a checkpoint; checksums fit afterwards."""
    with zipfile.ZipFile(path) as archive:
        members = {member.filename: archive.read(member) for member in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, change(content) if name.endswith("data.pkl") else content)
