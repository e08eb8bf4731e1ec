"""A learning step: what it may change, and what it never does."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from continual_segment.data.intensity import Intensity
from continual_segment.data.prepare import prepare
from continual_segment.data.prepare_config import NnunetPreparation, PrepareConfig
from continual_segment.errors import ContinualSegmentError, DatasetError, ModelError
from continual_segment.files import read_scan
from continual_segment.learning import LearnConfig, learn_dataset
from continual_segment.learning import train_decoder as decoder_module
from continual_segment.learning.anomaly import learn_anomaly
from continual_segment.learning.same_preparation import in_words
from continual_segment.learning.step import run_folder
from continual_segment.learning.train_decoder import PatchSource, run_signature, train_decoder
from continual_segment.model import Model, verify
from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder
from continual_segment.organs import Organ, find_organ
from continual_segment.segmentation import SegmentConfig, Segmenter


@pytest.fixture
def config(preset, quick):
    return quick(preset, iterations=2, report_every=2)


@pytest.fixture
def source(datasets, preset):
    return PatchSource(datasets["chest"], preset.patches, preset.augment)


def answers(folder, scan_path, pack):
    segmenter = Segmenter(Model.open(folder), packs=[pack], config=SegmentConfig(progress=False))
    found = segmenter(read_scan(scan_path), scores=True)
    return found.labels.voxels, found.scores.voxels


def test_later_steps_change_no_byte_and_no_output_of_what_was_learned(
    base_folder, datasets, config, contents, scan_path
):
    before, answered = contents(base_folder), answers(base_folder, scan_path, "totalseg")
    learn_dataset(datasets["chest"], base_folder, config, "second")
    learn_dataset(
        datasets["chest"], base_folder, replace(config, later=replace(config.later, seed=1)), "third"
    )
    after = contents(base_folder)
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {"model.json", "packs/second.pack", "packs/third.pack"}
    assert after["packs/second.pack"] != after["packs/third.pack"]
    for one, other in zip(answered, answers(base_folder, scan_path, "totalseg"), strict=True):
        assert one.tobytes() == other.tobytes()
    assert verify(base_folder).good


def test_a_later_step_trains_the_decoder_alone(source, config, monkeypatch, tmp_path):
    torch.manual_seed(0)
    encoder = GeneralEncoder(config.network).freeze()
    decoder = Decoder(config.network, DecoderPlan.nnunet(config.network), len(source.dataset.organs))
    held = []
    train = decoder_module.train
    monkeypatch.setattr(
        decoder_module,
        "train",
        lambda run: held.extend(run.objective.trained.values()) or train(run),
    )
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    first = {name: tensor.clone() for name, tensor in decoder.state_dict().items()}
    train_decoder(encoder, decoder, source, config.later, tmp_path, "test")
    assert held == [decoder]  # the optimiser never sees the encoder
    assert all(parameter.grad is None for parameter in encoder.parameters())
    assert not any(module.training for module in encoder.modules())
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())
    assert all(
        not torch.equal(t, first[n]) for n, t in decoder.state_dict().items() if n.endswith("conv.weight")
    )


def test_the_first_step_trains_encoder_and_decoder(source, config, tmp_path):
    encoder = GeneralEncoder(config.network)
    decoder = Decoder(config.network, DecoderPlan.nnunet(config.network), len(source.dataset.organs))
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    train_decoder(encoder, decoder, source, config.first, tmp_path, "test")
    unchanged = [name for name, tensor in encoder.state_dict().items() if torch.equal(tensor, before[name])]
    assert not [name for name in unchanged if name.endswith("conv.weight")]
    assert all(torch.isfinite(tensor).all() for tensor in encoder.state_dict().values())


def test_the_same_step_twice_gives_the_same_bytes_and_another_seed_others(
    datasets, config, contents, tmp_path
):
    folders = [tmp_path / name / "model" for name in ("one", "two", "other")]
    for folder, seed in zip(folders, (0, 0, 1), strict=True):
        settings = replace(config, first=replace(config.first, seed=seed))
        learn_dataset(datasets["totalseg"], folder, settings, "base")
    one, two, other = (contents(folder) for folder in folders)
    assert one == two
    assert one["encoder.safetensors"] != other["encoder.safetensors"]
    assert one["packs/base.pack"] != other["packs/base.pack"]


def test_a_step_keeps_its_log_beside_the_model_and_no_checkpoint(base_model_folder):
    run = run_folder(base_model_folder, "totalseg")
    assert run.parent.parent == base_model_folder.parent
    assert {path.name for path in run.iterdir()} == {"log.csv", "curves.png", "body_parts"}
    assert {path.name for path in (run / "body_parts").iterdir()} == {"log.csv", "curves.png"}


def test_the_training_card_tells_how_the_pack_came_to_be(base_model_folder, datasets, preset):
    dataset, card = datasets["totalseg"], Model.open(base_model_folder).pack("totalseg").card
    assert card["dataset"] == dataset.name
    assert card["cases"]["train"] == len(dataset.case_names("train"))
    assert card["train"]["iterations"] == preset.first.iterations
    assert 0 <= card["validation_patch_dice"] <= 1
    assert not [case for case in dataset.splits if case in str(card)]  # no patient's name


def test_a_dataset_of_another_spacing_is_refused_with_the_command_to_type(
    base_folder, raw_datasets, config, tmp_path
):
    other = replace(Model.open(base_folder).prepare, spacing_mm=(20.0, 20.0, 20.0))
    dataset = prepare(raw_datasets["chest"], tmp_path / "prepared", other, workers=1, progress=False)
    for learn in (learn_dataset, learn_anomaly):
        with pytest.raises(DatasetError, match=r"20 x 20 x 20 mm.*16 x 16 x 16 mm") as refused:
            learn(dataset, base_folder, config, "chest")
        assert f"`conseg prepare RAW --model {base_folder}`" in str(refused.value)
    assert not run_folder(base_folder, "chest").exists()


def test_a_name_that_is_taken_is_refused_before_training(base_folder, datasets, config):
    with pytest.raises(ModelError, match="conseg pack remove totalseg") as taken:
        learn_dataset(datasets["chest"], base_folder, config, "totalseg")
    assert "give another --name" in str(taken.value)


def test_a_name_that_cannot_be_is_refused_before_training(datasets, config, tmp_path):
    with pytest.raises(ModelError, match="A pack is named with letters"):
        learn_dataset(datasets["chest"], tmp_path / "model", config, "my chest")
    assert list(tmp_path.iterdir()) == []


def test_an_organ_whose_id_is_taken_is_refused_before_training(base_folder, datasets, config, monkeypatch):
    dataset = datasets["chest"]
    clash = Organ("windpipe", find_organ("trachea").id)
    monkeypatch.setattr(dataset, "organs", (clash, *dataset.organs[1:]))
    with pytest.raises(ModelError, match=r"windpipe.*trachea"):
        learn_dataset(dataset, base_folder, config, "chest")
    assert not run_folder(base_folder, "chest").exists()


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_dataset_without_a_split_is_refused(split, datasets, config, monkeypatch, tmp_path):
    dataset = datasets["chest"]
    monkeypatch.setattr(dataset, "splits", {n: s for n, s in dataset.splits.items() if s != split})
    with pytest.raises(DatasetError, match=f"no case falls into the {split} split"):
        learn_dataset(dataset, tmp_path / "model", config)


def test_settings_that_change_weights_change_the_signature_of_a_run(source, config):
    decoder = Decoder(config.network, DecoderPlan.nnunet(config.network), 2)
    usual = run_signature(None, decoder, source, config.first)
    assert run_signature(None, decoder, source, replace(config.first, workers=3)) == usual
    for changes in ({"seed": 5}, {"iterations": 3}, {"learning_rate": 0.5}, {"precision": "bfloat16"}):
        assert run_signature(None, decoder, source, replace(config.first, **changes)) != usual
    other = replace(source, patches=replace(source.patches, batch=3))
    assert run_signature(None, decoder, other, config.first) != usual
    assert run_signature(GeneralEncoder(config.network), decoder, source, config.first) != usual


def test_a_stopped_step_is_not_continued_with_other_settings(datasets, config, tmp_path, monkeypatch):
    folder = tmp_path / "model"

    def full(*arguments):
        raise OSError("the disk is full")

    monkeypatch.setattr(Model, "create", full)
    with pytest.raises(OSError, match="disk is full"):
        learn_dataset(datasets["totalseg"], folder, config, "base")
    monkeypatch.undo()
    with pytest.raises(ContinualSegmentError, match=r"checkpoint\.pt: "):
        learn_dataset(
            datasets["totalseg"], folder, replace(config, first=replace(config.first, seed=9)), "base"
        )
    learn_dataset(datasets["totalseg"], folder, config, "base")  # the same command resumes
    assert Model.open(folder).pack_names == ("base",)


def test_patches_that_cannot_pass_the_network_fail_on_construction(config):
    with pytest.raises(ValueError, match="no multiple of"):
        LearnConfig(
            config.network,
            replace(config.patches, size=(8, 16, 15)),
            config.augment,
            config.first,
            config.later,
        )


def test_later_steps_take_the_window_of_the_model(base_folder, datasets, config):
    other = replace(config, patches=replace(config.patches, size=(4, 8, 8)))
    pack = learn_dataset(datasets["chest"], base_folder, other, "chest")
    assert tuple(pack.card["patches"]["size"]) == Model.open(base_folder).window != (4, 8, 8)


def test_two_models_learned_from_one_encoder_can_swap_packs(
    base_model_folder, shared_model_folder, datasets, config, tmp_path
):
    elsewhere = Path(shutil.copytree(base_model_folder, tmp_path / "elsewhere"))
    learn_dataset(datasets["chest"], elsewhere, config, "theirs")
    here = Path(shutil.copytree(shared_model_folder, tmp_path / "here"))
    model = Model.open(here).add(Model.open(elsewhere).pack("theirs"))
    assert model.pack_names == ("chest", "theirs", "totalseg")
    assert np.all([finding.good for finding in verify(here).findings])


def test_every_pack_knows_its_body_parts_and_nothing_of_a_patient(shared_model_folder, datasets):
    model = Model.open(shared_model_folder)
    for name in ("totalseg", "chest"):
        pack = model.pack(name)
        measured = pack.card["body_parts"]
        assert measured["scans"] + measured["unknown"] == len(datasets[name].case_names("train"))
        if pack.coverage:  # a regressor of six updates places no scan without labels
            assert max(pack.coverage.values()) == 1
            assert sum(measured["distribution"].values()) == pytest.approx(1, abs=1e-3)
        text = (shared_model_folder / f"packs/{name}.pack").read_bytes()
        assert not any(case.encode() in text for case in datasets[name].splits)
    assert model.pack("totalseg").coverage
    regressor = (shared_model_folder / "body_parts.safetensors").read_bytes()
    assert not any(case.encode() in regressor for case in datasets["totalseg"].splits)


def test_without_a_regressor_labels_alone_tell_the_body_parts(datasets, config, tmp_path):
    off = replace(config, body_parts=replace(config.body_parts, learned=False))
    pack = learn_dataset(datasets["totalseg"], tmp_path / "model", off, "base")
    assert not (tmp_path / "model" / "body_parts.safetensors").exists()
    assert pack.card["body_parts"]["by_labels"] == pack.card["body_parts"]["scans"] > 0
    assert verify(tmp_path / "model").good


@pytest.mark.parametrize(
    ("intensity", "words"),
    [
        (Intensity.window(-1000, 400), "5 x 1.5 x 1.5 mm and intensity window (clip_hu -1000 to 400)"),
        (Intensity("z-score"), "5 x 1.5 x 1.5 mm and intensity z-score"),
    ],
)
def test_a_preparation_is_shown_in_words(intensity, words):
    assert in_words(PrepareConfig((5, 1.5, 1.5), intensity)) == f"spacing {words}"


def test_preparations_that_differ_are_shown_differently():
    ours = PrepareConfig((2, 2, 2))
    theirs = replace(ours, nnunet=NnunetPreparation())
    other = replace(ours, nnunet=NnunetPreparation(separate_z=True))
    assert len({in_words(config) for config in (ours, theirs, other)}) == 3
