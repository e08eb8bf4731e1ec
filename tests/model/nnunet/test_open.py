"""Model folders of stock nnU-Net: what is found, what is read, what the report contains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from made_nnunet import (
    DATASET,
    FINAL,
    FOLDER,
    made_checkpoint,
    made_plans,
    made_state,
    own_name,
    plans_with,
    write_model,
)

from continual_segment.errors import ModelError
from continual_segment.model.nnunet import NnunetModel
from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder, NetworkConfig, split_nnunet_state
from continual_segment.organs import find_organ


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "Dataset007_Made" / FOLDER)


def test_a_model_folder_is_described(folder: Path) -> None:
    model = NnunetModel.open(folder)
    assert model.architecture.kind == "plain"
    assert model.architecture.features == (4, 6, 8)
    assert model.architecture.kernels == ((1, 3, 3), (3, 3, 3), (3, 3, 3))
    assert model.architecture.strides == ((1, 1, 1), (1, 2, 2), (2, 2, 2))
    assert model.architecture.encoder_convs == (2, 2, 2)
    assert model.architecture.decoder_convs == (2, 2)
    assert model.architecture.conv_bias
    assert model.patch_size == (8, 16, 16)
    assert model.mirror_axes == (0, 1, 2)
    assert model.modality == "CT"
    assert model.training.dataset_name == "Dataset007_Made"
    assert (model.training.trainer, model.training.epochs) == ("nnUNetTrainer", 1000)
    assert (model.training.configuration, model.training.plans_name) == ("3d_fullres", "nnUNetPlans")
    assert (model.training.folds, model.training.fold) == (("0",), "0")
    assert model.training.checkpoint == FINAL
    assert model.source == str(folder)


def test_preprocessing_is_described(folder: Path) -> None:
    preprocessing = NnunetModel.open(folder).preprocessing
    assert preprocessing.image_reader_writer == "SimpleITKIO"
    assert preprocessing.spacing_mm == (2.5, 1.5, 1.5)
    assert (preprocessing.normalization, preprocessing.use_mask_for_norm) == ("CTNormalization", False)
    assert (preprocessing.intensities.mean, preprocessing.intensities.std) == (70.25, 141.5)
    assert preprocessing.intensities.percentile_00_5 == -969
    assert preprocessing.intensities.percentile_99_5 == 277
    assert preprocessing.resample_data.function == "resample_data_or_seg_to_shape"
    assert (preprocessing.resample_data.order, preprocessing.resample_data.order_z) == (3, 0)
    assert preprocessing.resample_data.force_separate_z is None
    assert preprocessing.resample_seg.is_seg
    assert preprocessing.resample_probabilities.order == 1
    assert preprocessing.resample_probabilities.force_separate_z is False  # not in the plans: the default


@pytest.mark.parametrize("kind", ["plain", "residual"])
def test_weights_are_read_once_each_and_stay_when_the_folder_is_gone(kind: str, tmp_path: Path) -> None:
    state = made_state(kind)
    folder = write_model(tmp_path / "any_name", made_plans(kind), checkpoint=made_checkpoint(state))
    model = NnunetModel.open(folder)
    (folder / "fold_0" / FINAL).write_bytes(b"")
    assert model.architecture.kind == kind
    assert set(model.weights) == {own_name(name) for name in state}
    for name, tensor in model.weights.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, state[name])
    assert f"{len(state) - len(model.weights)} of {len(state)} tensors" in model.report.dropped[0]


def test_weights_fit_our_own_networks(folder: Path) -> None:
    model = NnunetModel.open(folder)
    architecture = model.architecture
    network = NetworkConfig(
        features=architecture.features, kernels=architecture.kernels, strides=architecture.strides
    )
    encoder, decoder = split_nnunet_state(model.weights)
    GeneralEncoder(network).load_state_dict(encoder)
    Decoder(network, DecoderPlan.nnunet(network), len(model.labels.names)).load_state_dict(decoder)


def test_half_precision_weights_become_float32(tmp_path: Path) -> None:
    halves = {name: tensor.half() for name, tensor in made_state().items()}
    model = NnunetModel.open(write_model(tmp_path / "model", checkpoint=made_checkpoint(halves)))
    assert {tensor.dtype for tensor in model.weights.values()} == {torch.float32}


def test_the_report_names_what_was_read_dropped_and_unknown(folder: Path) -> None:
    report = NnunetModel.open(folder).report
    files = ("plans.json", "dataset.json", f"fold_0/{FINAL}")
    assert report.read == tuple(str(folder / name) for name in files)
    for entry in ("optimizer_state", "grad_scaler_state", "logging", "_best_ema"):
        assert any(entry in line for line in report.dropped)
    assert [organ.name for organ in report.organs] == ["liver", "kidney_right", "third_thing", "kidney_left"]
    assert [organ.id for organ in report.organs[:2]] == [find_organ("liver").id, 2]
    assert report.unknown_organs == ("third thing",)
    assert report.notes == ()
    text = "\n".join(report.lines())
    assert "kidney_right (2)" in text
    assert "third thing" in text


@pytest.mark.parametrize("above", ["", "Dataset007_Made"])
def test_folders_above_the_model_folder_are_searched(above: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / above / FOLDER)
    (folder / "crossval_results_folds_0").mkdir()
    (folder / "crossval_results_folds_0" / "plans.json").write_text("{}")  # nnU-Net copies it here, too
    for given in (tmp_path, folder, str(folder)):
        assert NnunetModel.open(given).source == str(folder)


def test_the_configuration_chooses_among_several_models(tmp_path: Path) -> None:
    low = made_checkpoint(init_args={"configuration": "3d_lowres"})
    plans = made_plans()
    plans["configurations"]["3d_lowres"] = plans["configurations"]["3d_fullres"] | {"spacing": [6, 3, 3]}
    write_model(tmp_path / FOLDER, plans)
    write_model(tmp_path / "nnUNetTrainer__nnUNetPlans__3d_lowres", plans, checkpoint=low)
    with pytest.raises(ModelError, match=r"nnUNetPlans__3d_fullres.*nnUNetPlans__3d_lowres"):
        NnunetModel.open(tmp_path)
    with pytest.raises(ModelError, match=r"0 models.*3d_lowres"):
        NnunetModel.open(tmp_path, "3d_other")
    for asked in ("3d_lowres", "nnUNetTrainer__nnUNetPlans__3d_lowres"):
        assert NnunetModel.open(tmp_path, asked).preprocessing.spacing_mm == (6, 3, 3)
    assert NnunetModel.open(tmp_path, "3d_fullres").preprocessing.spacing_mm == (2.5, 1.5, 1.5)


def test_a_renamed_folder_has_the_configuration_of_its_checkpoint(tmp_path: Path) -> None:
    write_model(tmp_path / "renamed")
    assert NnunetModel.open(tmp_path, "3d_fullres").training.configuration == "3d_fullres"
    with pytest.raises(ModelError, match=rf"fold_0/{FINAL}.*3d_fullres.*3d_lowres"):
        NnunetModel.open(tmp_path, "3d_lowres")


def test_a_configuration_may_inherit(tmp_path: Path) -> None:
    checkpoint = made_checkpoint(init_args={"configuration": "3d_fullres_large"})
    model = NnunetModel.open(write_model(tmp_path / "model", checkpoint=checkpoint))
    assert model.patch_size == (16, 32, 32)
    assert model.architecture.features == (4, 6, 8)


def test_the_first_fold_is_read_and_the_report_explains_it(tmp_path: Path) -> None:
    files = tuple(f"fold_{fold}/{FINAL}" for fold in ("10", "3", "1", "all", "2"))
    folder = write_model(tmp_path / FOLDER, files=files)
    (folder / "fold_0" / "validation").mkdir(parents=True)  # a fold without a checkpoint is none
    model = NnunetModel.open(folder)
    assert model.training.folds == ("1", "2", "3", "10", "all")
    assert model.training.fold == "1"
    assert any("averages" in note and "nnUNetv2_predict -f 1" in note for note in model.report.notes)


@pytest.mark.parametrize("fold", [2, "2", "fold_2", "all"])
def test_a_named_fold_is_read(fold: int | str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / FOLDER, files=(f"fold_0/{FINAL}",))
    for name in ("fold_2", "fold_all"):
        (folder / name).mkdir()
        state = made_state(seed=len(name))
        torch.save(made_checkpoint(state), folder / name / FINAL)
    model = NnunetModel.open(folder, fold=fold)
    wanted = "fold_all" if fold == "all" else "fold_2"
    name = "decoder.seg_layers.0.bias"
    assert torch.equal(model.weights[name], made_state(seed=len(wanted))[name])
    assert any(wanted in read for read in model.report.read)


def test_a_missing_fold_is_an_error_that_lists_the_others(folder: Path) -> None:
    with pytest.raises(ModelError, match=r"fold 3.*folds: 0"):
        NnunetModel.open(folder, fold=3)


def test_the_best_checkpoint_is_read_without_a_final_one(tmp_path: Path) -> None:
    files = ("fold_0/checkpoint_best.pth", "fold_0/checkpoint_latest.pth")
    model = NnunetModel.open(write_model(tmp_path / FOLDER, files=files))
    assert model.training.checkpoint == "checkpoint_best.pth"
    assert any("checkpoint_best.pth" in note for note in model.report.notes)
    both = write_model(tmp_path / "both", files=("fold_0/checkpoint_best.pth", f"fold_0/{FINAL}"))
    assert NnunetModel.open(both).training.checkpoint == FINAL


def test_an_unfinished_training_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / FOLDER, files=("fold_0/checkpoint_latest.pth",))
    with pytest.raises(ModelError, match=rf"{FOLDER}.*checkpoint_latest\.pth"):
        NnunetModel.open(folder)


@pytest.mark.parametrize("missing", ["plans.json", "dataset.json", f"fold_0/{FINAL}"])
def test_a_missing_file_is_named(missing: str, folder: Path) -> None:
    (folder / missing).unlink()
    with pytest.raises(ModelError, match=missing if missing.endswith("json") else "no nnU-Net model"):
        NnunetModel.open(folder)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not_there"):
        NnunetModel.open(tmp_path / "not_there")
    with pytest.raises(ModelError, match=str(tmp_path)):
        NnunetModel.open(tmp_path)
    (tmp_path / "text.zip").write_text("no zip")
    with pytest.raises(ModelError, match=r"text\.zip"):
        NnunetModel.open(tmp_path / "text.zip")


@pytest.mark.parametrize("name", ["plans.json", "dataset.json"])
@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"{", b"[1]", b"{}", b"[" * 100_000])
def test_json_that_cannot_be_read_is_named(name: str, content: bytes, folder: Path) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(ModelError, match=name):
        NnunetModel.open(folder)


def test_trainers_that_are_not_nnunets_own_are_noted(tmp_path: Path) -> None:
    def notes(trainer: str) -> tuple[str, ...]:
        checkpoint = made_checkpoint(trainer_name=trainer)
        return NnunetModel.open(write_model(tmp_path / trainer, checkpoint=checkpoint)).report.notes

    assert notes("nnUNetTrainer_4000epochs_NoMirroring") == ()
    assert any("nnUNetTrainerReLU" in note for note in notes("nnUNetTrainerReLU"))


def test_files_changed_after_training_are_noted(folder: Path) -> None:
    (folder / "plans.json").write_text(json.dumps(plans_with(spacing=[9, 9, 9])))
    labels = {"labels": DATASET["labels"] | {"Liver": 2, "Right Kidney": 1}}
    (folder / "dataset.json").write_text(json.dumps(DATASET | labels))
    model = NnunetModel.open(folder)
    assert model.preprocessing.spacing_mm == (9, 9, 9)
    assert model.labels.names[:2] == ("Right Kidney", "Liver")
    changed = [note for note in model.report.notes if "changed after training" in note]
    assert len(changed) == 2
    assert "configurations" in changed[0]
    assert "labels" in changed[1]


def test_a_stripped_checkpoint_is_enough(tmp_path: Path) -> None:
    checkpoint = {
        "network_weights": made_state(),
        "trainer_name": "nnUNetTrainerNoMirroring",
        "init_args": {"configuration": "3d_fullres"},
        "inference_allowed_mirroring_axes": None,
    }
    model = NnunetModel.open(write_model(tmp_path / "model", checkpoint=checkpoint))
    assert model.mirror_axes == ()
    assert model.training.epochs is None
