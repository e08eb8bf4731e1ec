"""A first step on several datasets at once."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from continual_segment.api import learn
from continual_segment.cli.main import main
from continual_segment.errors import ConfigError, DatasetError, ModelError
from continual_segment.learning import StageConfig, learn_dataset, learn_jointly
from continual_segment.learning.budget import Budget, shares_of
from continual_segment.learning.joint import JointObjective, Turns, TurnUpdate, with_split_budget
from continual_segment.learning.step import run_folder
from continual_segment.model import Model, verify
from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder
from continual_segment.training import LossConfig, TrainConfig
from continual_segment.training.update import Update

TWO = ("totalseg", "chest")


@pytest.fixture
def config(preset, quick, no_pictures):
    return quick(preset, iterations=5, report_every=4, validation_batches=1)


@pytest.fixture
def both(datasets):
    return [datasets[name] for name in TWO]


def test_every_dataset_becomes_a_pack_on_one_encoder(both, config, tmp_path):
    packs = learn_jointly(both, tmp_path / "model", config, licence="CC0")
    model = Model.open(tmp_path / "model")
    assert list(model.pack_names) == sorted(dataset.name for dataset in both)
    for pack, dataset in zip(packs, both, strict=True):
        assert [organ.name for organ in pack.organs] == [organ.name for organ in dataset.learnable().organs]
        assert pack.encoder_fingerprint == model.encoder_fingerprint
        assert pack.licence == "CC0"
        assert {"pieces", "body_parts"} <= pack.card.keys()
    assert verify(tmp_path / "model").good
    assert not list(run_folder(tmp_path / "model", "").rglob("checkpoint.pt"))


def test_further_packs_are_added_to_such_a_model(both, datasets, config, tmp_path, contents):
    folder = tmp_path / "model"
    learn_jointly(both, folder, config)
    before = contents(folder)
    learn_dataset(datasets["chest"], folder, config, "more")
    after = contents(folder)
    assert {name for name in after if after[name] != before.get(name)} == {"model.json", "packs/more.pack"}


def test_a_stopped_run_ends_with_the_same_model(both, config, tmp_path, monkeypatch, contents):
    learn_jointly(both, tmp_path / "whole" / "model", config)
    update, done = Update.__call__, []

    def stop(self, *batch, **more):
        done.append(1)
        if len(done) == 6:
            raise KeyboardInterrupt
        return update(self, *batch, **more)

    monkeypatch.setattr(Update, "__call__", stop)
    with pytest.raises(KeyboardInterrupt):
        learn_jointly(both, tmp_path / "stopped" / "model", config)
    assert not (tmp_path / "stopped" / "model").exists()
    learn_jointly(both, tmp_path / "stopped" / "model", config)
    assert contents(tmp_path / "stopped" / "model") == contents(tmp_path / "whole" / "model")


def test_a_batch_trains_the_encoder_and_the_decoder_of_its_dataset_alone(preset):
    torch.manual_seed(0)
    encoder = GeneralEncoder(preset.network)
    decoders = [Decoder(preset.network, DecoderPlan.nnunet(preset.network), organs) for organs in (1, 2)]
    update = TurnUpdate(
        JointObjective(encoder, decoders, LossConfig().build()), TrainConfig(4, optimiser="adamw")
    )
    parts = {"encoder": encoder, "first": decoders[0], "second": decoders[1]}
    for iteration, expected in enumerate(({"encoder", "first"}, {"encoder", "second"})):
        before = {name: first_weight(part).clone() for name, part in parts.items()}
        images = torch.randn(1, 1, *preset.patches.size)
        update(images, (images[:, 0] > 0).long(), iteration)
        changed = {name for name in parts if not torch.equal(first_weight(parts[name]), before[name])}
        assert changed == expected


def first_weight(module):
    return next(module.parameters()).detach()


def test_datasets_take_turns():
    turns = Turns([["a0", "a1"], ["b0", "b1"]])
    assert [turns[number] for number in range(4)] == ["a0", "b0", "a1", "b1"]


def test_the_number_of_updates_is_that_of_one_by_one(both, config, tmp_path):
    pack, _ = learn_jointly(both, tmp_path / "model", replace(config, stage=StageConfig()))
    log = (run_folder(tmp_path / "model", "joint") / "log.csv").read_text().splitlines()
    assert log[-1].startswith("10,")  # 5 of a first step and 5 of a later one
    assert 0 <= pack.card["validation_patch_dice"] <= 1


def test_datasets_that_do_not_fit_together_are_refused(both, config, tmp_path, base_model_folder):
    with pytest.raises(ModelError, match="exists"):
        learn_jointly(both, base_model_folder, config)
    with pytest.raises(DatasetError, match="Two datasets are named"):
        learn_jointly([both[0], both[0]], tmp_path / "model", config)
    other = SimpleNamespace(
        config=replace(both[1].config, spacing_mm=(9.0, 9.0, 9.0)), name="other", folder=tmp_path
    )
    with pytest.raises(DatasetError, match="spacing 9 x 9 x 9 mm"):
        learn_jointly([both[0], other], tmp_path / "model", config)


def test_packs_that_are_learned_together_share_the_budget(both, config, tmp_path):
    shrink = replace(config, stage=StageConfig(("train", "shrink")))
    each = with_split_budget(replace(shrink, shrink=replace(shrink.shrink, budget=Budget(0.9, 1.2))), 2)
    assert each.shrink.budget == Budget(0.45, 0.6)
    assert with_split_budget(shrink, 2) == shrink
    organs = len(both[0].learnable().organs)
    plan, window = config.shrink.smallest_plan(config.network), config.patches.size
    least = shares_of(plan, config.network, window, organs)
    enough_for_one = Budget(*(1.5 * share for share in least))
    with pytest.raises(ConfigError, match="--budget"):  # before any training
        learn_jointly(
            both, tmp_path / "model", replace(shrink, shrink=replace(shrink.shrink, budget=enough_for_one))
        )


@pytest.mark.parametrize(
    ("anomalies", "sentence"),
    [
        (["tumour"], "Which of the datasets shows tumour"),
        ({"liver": ["tumour"]}, "No dataset is named 'liver'"),
        ({"chest": "tumour"}, r"are a list: \['tumour'\]"),
        ("tumour", r"are a list: \['tumour'\]"),
    ],
)
def test_a_disease_of_no_known_dataset_is_refused_before_anything_is_learned(
    anomalies, sentence, both, tmp_path
):
    with pytest.raises(ConfigError, match=sentence):
        learn(both[0], tmp_path / "model", "tiny", anomalies=anomalies, together_with=both[1:])
    assert not (tmp_path / "model").exists()


def test_the_command_learns_together(both, tmp_path, capsys, no_pictures):
    first, second = (str(dataset.folder) for dataset in both)
    words = ["learn", first, "--with", second, "-m", str(tmp_path / "model"), "--preset", "tiny"]
    assert main([*words, "--anomaly", f"{both[1].name}=lung tumour"]) == 0
    printed = capsys.readouterr().out
    assert all(f"now has pack '{dataset.name}'" in printed for dataset in both)
    model = Model.open(tmp_path / "model")
    assert [model.pack(dataset.name).anomalies for dataset in both] == [(), ("lung tumour",)]
    assert main([*words, "--name", "x"]) == 2
    assert main([*words, "--anomaly-head"]) == 2
    assert "--with" in capsys.readouterr().err
