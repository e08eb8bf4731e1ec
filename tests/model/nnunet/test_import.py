"""A stock nnU-Net becomes a model: same weights, same logits, same preparation, or one clear refusal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from made_nnunet import (
    ARCHITECTURES,
    DATASET,
    FOLDER,
    RESAMPLING,
    made_checkpoint,
    made_plans,
    made_state,
    own_name,
    plans_with,
    without_bias,
    write_model,
    write_zip,
)
from stock_forward import stock_logits

import continual_segment as cs
from continual_segment.cli.main import main
from continual_segment.data.intensity import Intensity
from continual_segment.data.prepare_config import NnunetPreparation, PrepareConfig
from continual_segment.errors import ModelError
from continual_segment.model import Model, verify
from continual_segment.model.nnunet.import_model import pack_name
from continual_segment.organs import find_organ

REGIONS = {"background": 0, "kidney": [1, 2], "tumor": 2, "liver": [1, 2, 3]}
OLD = {
    "architecture": None,
    "UNet_class_name": "PlainConvUNet",
    "UNet_base_num_features": 4,
    "unet_max_num_features": 6,
    "n_conv_per_stage_encoder": [2, 1],
    "n_conv_per_stage_decoder": [1],
    "pool_op_kernel_sizes": [[1, 1, 1], [1, 2, 2]],
    "conv_kernel_sizes": [[1, 3, 3], [3, 3, 3]],
}
PLAIN, RESIDUAL = (ARCHITECTURES[kind]["arch_kwargs"] for kind in ("plain", "residual"))
OLD_ARGUMENTS = {
    "strides": [[1, 1, 1], [1, 2, 2]],
    "n_conv_per_stage": [2, 1],
    "n_conv_per_stage_decoder": [1],
}


def with_heads(state: dict[str, torch.Tensor], channels: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    return {
        name: torch.randn(channels, *tensor.shape[1:]) if "seg_layers" in name else tensor
        for name, tensor in state.items()
    }


def old_state() -> dict[str, torch.Tensor]:
    """Weights of `OLD`, cut out of those of the plain network: it has the same first two stages."""
    plain = made_state()
    kept = {
        name: tensor
        for name, tensor in plain.items()
        if ".stages.0.0." in name or ".stages.1.0.convs.0." in name
    }
    renamed = {
        name.replace("stages.1", "stages.0").replace("convs.1", "convs.0").replace("layers.1", "layers.0"):
        tensor
        for name, tensor in plain.items()
        if name.startswith(("decoder.stages.1.convs.0", "decoder.transpconvs.1", "decoder.seg_layers.1"))
    }  # fmt: skip
    return kept | renamed


def logits_of(model: Model, window: torch.Tensor) -> torch.Tensor:
    (name,) = model.pack_names
    with torch.no_grad():
        return model.pack(name).decoder()(model.load_encoder()(window))


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, torch.Tensor], dict[str, Any]]] = {
    "plain": (made_plans(), {}, made_state(), PLAIN),
    "residual": (made_plans("residual"), {}, made_state("residual"), RESIDUAL),
    "old plans": (plans_with(**OLD), {}, old_state(), OLD_ARGUMENTS),
    "no bias": (
        plans_with({"conv_bias": False}), {}, without_bias(made_state()), PLAIN,
    ),
    "regions": (
        made_plans(), {"labels": REGIONS, "regions_class_order": [3, 1, 2]}, with_heads(made_state(), 3),
        PLAIN,
    ),
    "ignore": (
        made_plans(), {"labels": DATASET["labels"] | {"ignore": 5}}, made_state(),
        PLAIN,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_an_imported_model_has_the_weights_and_logits_of_nnunet(case: str, tmp_path: Path) -> None:
    plans, described, state, arguments = CASES[case]
    source = write_model(tmp_path / FOLDER, plans, DATASET | described, made_checkpoint(state))
    model, report = cs.import_nnunet(source, tmp_path / "model")
    (name,) = model.pack_names
    encoder = {f"encoder.{key}": value for key, value in model.load_encoder().state_dict().items()}
    ours = encoder | {f"decoder.{key}": value for key, value in model.pack(name).weights.items()}
    assert all(torch.equal(ours[own_name(key)], tensor) for key, tensor in state.items())
    left = [ours[key] for key in ours.keys() - set(map(own_name, state))]
    assert all(not tensor.any() for tensor in left)
    assert bool(left) == (case == "no bias")
    window = torch.randn(1, 1, *model.window)
    expected = stock_logits(state, arguments, window)
    torch.testing.assert_close(
        logits_of(model, window), expected, rtol=1e-4, atol=1e-4 * float(expected.std())
    )
    assert verify(model.folder).good
    assert report.organs == model.pack(name).organs


def test_window_preparation_and_organs_are_those_of_the_plans(tmp_path: Path) -> None:
    source = write_model(tmp_path / FOLDER)
    model, _ = cs.import_nnunet(str(source), str(tmp_path / "model"))
    assert model.window == (8, 16, 16)
    assert model.prepare == PrepareConfig(
        (2.5, 1.5, 1.5),
        Intensity("ct-percentiles", (-969.0, 277.0), 70.25, 141.5, padding="zero"),
        NnunetPreparation("SimpleITKIO", (0, 1, 2), separate_z=None, separate_z_of_logits=False),
    )
    assert model.pack_names == ("Made",)
    pack = model.pack("Made")
    names = ("liver", "kidney_right", "third_thing", "kidney_left")
    assert pack.organs == tuple(map(find_organ, names))
    assert (pack.regions, pack.mirror_axes) == (False, (0, 1, 2))


def test_axes_reader_and_separate_z_are_kept(tmp_path: Path) -> None:
    plans = plans_with(
        resampling_fn_data_kwargs=RESAMPLING["resampling_fn_data_kwargs"] | {"force_separate_z": True}
    )
    plans |= {
        "image_reader_writer": "NibabelIOWithReorient",
        "transpose_forward": [1, 2, 0],
        "transpose_backward": [2, 0, 1],
    }
    checkpoint = made_checkpoint(inference_allowed_mirroring_axes=(2, 0))
    model, _ = cs.import_nnunet(write_model(tmp_path / "m", plans, checkpoint=checkpoint), tmp_path / "model")
    assert model.prepare.nnunet == NnunetPreparation("NibabelIOWithReorient", (1, 2, 0), True, False)
    assert model.pack("Made").mirror_axes == (0, 2)


@pytest.mark.parametrize(
    ("scheme", "kind"),
    [
        ("ZScoreNormalization", "z-score"),
        ("RescaleTo01Normalization", "rescale-01"),
        ("NoNormalization", "none"),
    ],
)
@pytest.mark.parametrize("mask", [False, True])
def test_other_normalisations_are_mapped(scheme: str, kind: str, mask: bool, tmp_path: Path) -> None:
    plans = plans_with(normalization_schemes=[scheme], use_mask_for_norm=[mask])
    model, _ = cs.import_nnunet(write_model(tmp_path / "m", plans), tmp_path / "model")
    assert model.prepare.intensity == Intensity(kind, padding="zero")  # type: ignore[arg-type]
    assert model.prepare.nnunet is not None
    assert model.prepare.nnunet.use_mask_for_norm == (mask and kind == "z-score")


def test_regions_keep_the_order_of_their_channels(tmp_path: Path) -> None:
    plans, described, state, _ = CASES["regions"]
    source = write_model(tmp_path / "m", plans, DATASET | described, made_checkpoint(state))
    pack = cs.import_nnunet(source, tmp_path / "model")[0].pack("Made")
    assert pack.regions
    assert [organ.name for organ in pack.organs] == [find_organ(name).name for name in list(REGIONS)[1:]]


def test_licence_training_and_files_are_kept_and_shown(tmp_path: Path, capsys: Any) -> None:
    dataset = DATASET | {"licence": "CC-BY-4.0", "reference": "https://example.org", "name": "Made CTs"}
    checkpoint = made_checkpoint(trainer_name="nnUNetTrainerNoMirroring")
    checkpoint["inference_allowed_mirroring_axes"] = None
    source = write_model(tmp_path / FOLDER, dataset=dataset, checkpoint=checkpoint)
    model, report = cs.import_nnunet(source, tmp_path / "model", name="total")
    assert main(["pack", "info", "total", "-m", str(model.folder)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["licence"] == "CC-BY-4.0"
    assert shown["card"]["attribution"] == {
        "name": "Made CTs", "licence": "CC-BY-4.0", "reference": "https://example.org",
    }  # fmt: skip
    trained = shown["card"]["nnunet"]
    assert (trained["trainer"], trained["epochs"]) == ("nnUNetTrainerNoMirroring", 1000)
    assert (trained["configuration"], trained["fold"], trained["folds"]) == ("3d_fullres", "0", ["0"])
    kept = json.loads((model.folder / "nnunet.json").read_text())
    assert kept["plans"] == made_plans()
    assert kept["dataset"] == dataset
    text = "\n".join(report.lines())
    for word in ("nnUNetTrainerNoMirroring", "1000 epochs", "fold 0", "CC-BY-4.0"):
        assert word in text


def test_a_zip_is_the_same_model(tmp_path: Path) -> None:
    source = write_model(tmp_path / FOLDER)
    zipped, _ = cs.import_nnunet(write_zip(tmp_path / "m.zip", source), tmp_path / "zipped")
    plain, _ = cs.import_nnunet(source, tmp_path / "plain")
    assert zipped.files == plain.files
    assert zipped.encoder_fingerprint == plain.encoder_fingerprint


REFUSED = {
    "resampling": ("resample_torch_fornnunet", {"resampling_fn_data": "resample_torch_fornnunet"}),
    "resampling of logits": ("resample_x", {"resampling_fn_probabilities": "resample_x"}),
    "order": ("'order': 1", {"resampling_fn_data_kwargs": {"order": 1}}),
    "order of logits": ("'order': 3", {"resampling_fn_probabilities_kwargs": {"order": 3}}),
    "order along z": ("'order_z': 1", {"resampling_fn_data_kwargs": {"order_z": 1}}),
    "anisotropy": ("threshold': 5", {"resampling_fn_data_kwargs": {"separate_z_anisotropy_threshold": 5}}),
    "another option": ("'device'", {"resampling_fn_data_kwargs": {"device": "cpu"}}),
    "labels": ("'is_seg': True", {"resampling_fn_data_kwargs": {"is_seg": True}}),
    "normalisation": ("RGBTo01Normalization", {"normalization_schemes": ["RGBTo01Normalization"]}),
    "preprocessor": ("MyPreprocessor", {"preprocessor_name": "MyPreprocessor"}),
    "voxel size": ("spacing_mm", {"spacing": [200.0, 1.0, 1.0]}),
    "window": ("patch_size", {"patch_size": [8, 16, 2048]}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_prepared_alike_is_refused_by_name(case: str, tmp_path: Path) -> None:
    found, settings = REFUSED[case]
    source = write_model(tmp_path / FOLDER, plans_with(**settings))
    with pytest.raises(ModelError, match=found) as refused:
        cs.import_nnunet(source, tmp_path / "model")
    assert FOLDER in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == [FOLDER]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"image_reader_writer": "Tiff3DIO"}, "Tiff3DIO"),
        ({"image_reader_writer": "\x1b[2J"}, "image_reader_writer"),
        ({"dataset_name": "Dataset001_nul"}, "nul"),
        ({"extra": json.loads("[" * 60 + "]" * 60)}, "levels"),
    ],
)
def test_hostile_plans_are_refused_in_printable_words(
    changes: dict[str, Any], found: str, tmp_path: Path
) -> None:
    source = write_model(tmp_path / FOLDER, made_plans(**changes))
    with pytest.raises(ModelError, match=found) as refused:
        cs.import_nnunet(source, tmp_path / "model")
    assert str(refused.value).isprintable()
    assert [path.name for path in tmp_path.iterdir()] == [FOLDER]


def test_percentiles_that_are_no_range_are_refused(tmp_path: Path) -> None:
    plans = made_plans()
    plans["foreground_intensity_properties_per_channel"]["0"]["percentile_99_5"] = -969.0
    with pytest.raises(ModelError, match=rf"{FOLDER}.*clip_hu.*-969"):
        cs.import_nnunet(write_model(tmp_path / FOLDER, plans), tmp_path / "model")


def test_an_existing_folder_and_a_bad_name_are_refused_before_reading(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="exists already"):
        cs.import_nnunet(tmp_path / "nothing", tmp_path)
    with pytest.raises(ModelError, match="A pack is named"):
        cs.import_nnunet(tmp_path / "nothing", tmp_path / "model", name="../x")


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        ("Dataset101_HNBase", "HNBase"),
        ("Dataset291_TotalSegmentator_part1", "TotalSegmentator_part1"),
        ("../../etc/passwd", "etc_passwd"),
        ("Dataset001_", "nnunet"),
        ("日本", "nnunet"),
        ("a" * 1000, "a" * 100),
    ],
)
def test_packs_are_named_after_the_dataset(dataset: str, name: str) -> None:
    assert pack_name(dataset) == name


def test_scans_are_turned_to_ras_on_request_here_and_in_an_export(tmp_path):
    source = write_model(tmp_path / "m", made_plans())
    model, report = cs.import_nnunet(source, tmp_path / "model", ras=True)
    assert model.prepare.nnunet.image_reader_writer == "NibabelIOWithReorient"
    assert model.prepare.nnunet.frame("LPI").flipped == (False, False, False)
    assert any("SimpleITKIO" in note for note in report.notes)
    cs.export_nnunet(model.folder, model.pack_names[0], tmp_path / "out")
    (plans,) = (tmp_path / "out").rglob("plans.json")
    assert json.loads(plans.read_text())["image_reader_writer"] == "NibabelIOWithReorient"


def test_an_orientation_of_the_training_files_decides_the_axes_whatever_those_of_a_scan(tmp_path):
    source = write_model(tmp_path / "m", made_plans())
    model, _ = cs.import_nnunet(source, tmp_path / "model", orientation="PLI")
    free, _ = cs.import_nnunet(source, tmp_path / "free")
    expected = free.prepare.nnunet.frame("PLI")
    assert {model.prepare.nnunet.frame(codes) for codes in ("RAS", "LPS", "PLI")} == {expected}
    assert cs.Model.open(model.folder).prepare == model.prepare
    assert model.encoder_fingerprint != free.encoder_fingerprint  # packs of the one do not fit the other


@pytest.mark.parametrize(
    ("plans", "options"),
    [
        ({}, {"orientation": "RAX"}),
        ({}, {"orientation": "\x1b[2J"}),
        ({}, {"orientation": "LPS", "ras": True}),
        ({"image_reader_writer": "NibabelIOWithReorient"}, {"orientation": "LPS"}),
    ],
)
def test_an_orientation_that_means_nothing_is_refused_and_nothing_is_written(plans, options, tmp_path):
    source = write_model(tmp_path / "m", made_plans(**plans))
    with pytest.raises(ModelError) as caught:
        cs.import_nnunet(source, tmp_path / "model", **options)
    assert "\x1b" not in str(caught.value)
    assert not (tmp_path / "model").exists()
