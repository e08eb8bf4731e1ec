"""Stages of a step: train, search, prune."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from continual_segment.cli.main import main
from continual_segment.learning import StageConfig, learn_dataset
from continual_segment.learning.prune import PruneConfig
from continual_segment.learning.step import run_folder
from continual_segment.model import Model, OrganPack, verify
from continual_segment.training.update import Update

ALL = ("train", "search", "prune")


@pytest.fixture
def config(preset, quick, no_pictures):
    """All stages, small; candidates that are always tried."""
    learned = quick(preset, iterations=8, report_every=3, validation_batches=1)
    return replace(
        learned,
        stage=StageConfig(ALL),
        prune=PruneConfig(validation_windows=4, candidates=2, tau=0.0),
    )


def without_seconds(pack):
    return {key: value for key, value in json.loads(json.dumps(pack.card)).items() if key != "seconds"}


@pytest.fixture
def whole(base_model_folder, datasets, config, tmp_path):
    """The pack of an unstopped step."""
    folder = shutil.copytree(base_model_folder, tmp_path / "whole")
    return learn_dataset(datasets["chest"], folder, config, "chest")


def test_all_stages_leave_everything_learned_earlier_as_it_was(base_folder, datasets, config, contents):
    before = contents(base_folder)
    pack = learn_dataset(datasets["chest"], base_folder, config, "chest")
    after = contents(base_folder)
    assert {name for name in after if after[name] != before.get(name)} == {"model.json", "packs/chest.pack"}
    assert verify(base_folder).good
    assert pack.plan.kernels in [tuple(path["plan"]) for path in pack.card["prune"]["paths"]]
    assert not list(run_folder(base_folder, "chest").rglob("checkpoint.pt"))
    read = Model.open(base_folder).pack("chest")
    assert read.plan == pack.plan
    assert read.decoder().plan == pack.plan


def test_the_card_keeps_plan_shares_paths_and_choice(whole, config):
    card = json.loads(json.dumps(whole.card))  # as a file holds it
    assert len(card["search"]["shares"]) == len(card["search"]["plan"]) == 2
    assert tuple(card["prune"]["paths"][0]["plan"]) == tuple(card["search"]["plan"])
    assert tuple(card["prune"]["paths"][card["prune"]["chosen"]]["plan"]) == whole.plan.kernels
    assert set(card["seconds"]) == set(ALL)
    assert 0 <= card["trained"]["validation_patch_dice"] <= 1


def test_the_first_step_searches_on_the_encoder_it_trained(datasets, config, tmp_path):
    config = replace(config, stage=StageConfig(ALL, first_step=0.5))
    learn_dataset(datasets["totalseg"], tmp_path / "model", config, "base")
    learn_dataset(
        datasets["totalseg"], tmp_path / "alone" / "model", replace(config, stage=StageConfig()), "base"
    )
    encoders = [(tmp_path / part / "encoder.safetensors").read_bytes() for part in ("model", "alone/model")]
    assert encoders[0] == encoders[1]  # frozen once it was trained
    assert verify(tmp_path / "model").good


def test_the_decoder_before_pruning_is_left_as_a_pack_of_its_own(base_folder, datasets, config):
    pruned = learn_dataset(datasets["chest"], base_folder, config, "chest")
    run = run_folder(base_folder, "chest")
    assert OrganPack.read(run / "train.pack").plan.kernels == ("nnunet", "nnunet")
    before = OrganPack.read(run / "search.pack")
    assert before.plan.kernels == tuple(pruned.card["search"]["plan"])
    assert not (run / "prune.pack").exists()
    Model.open(base_folder).add(before.renamed("before"))
    assert verify(base_folder).good


@pytest.mark.parametrize("stages", [("train", "search"), ("train", "prune")])
def test_stages_can_be_left_out(stages, base_folder, datasets, config):
    pack = learn_dataset(datasets["chest"], base_folder, replace(config, stage=StageConfig(stages)), "chest")
    assert ("search" in pack.card, "prune" in pack.card) == ("search" in stages, "prune" in stages)
    assert "nnunet" in pack.card.get("prune", {"paths": [{"plan": ["nnunet"]}]})["paths"][0]["plan"]
    assert verify(base_folder).good


class Dies:
    """Updates until it has done some, then the power goes."""

    def __init__(self, after):
        self.after, self.update = after, Update.__call__

    def __call__(self, *batch, **known):
        if self.after == 0:
            raise RuntimeError("the power went")
        self.after -= 1
        return self.update(*batch, **known)


def updates_of(folder, datasets, config, monkeypatch):
    """The part of the step that each update belongs to."""
    parts = []
    update = Update.__call__

    def noted(self, images, labels, iteration):
        parts.append(type(self.module).__name__ + str(self.config.seed))
        return update(self, images, labels, iteration)

    with monkeypatch.context() as patched:
        patched.setattr(Update, "__call__", noted)
        learn_dataset(datasets["chest"], folder, config, "chest")
    return parts


@pytest.mark.parametrize(("stages", "count"), [(("train", "search"), 3), (("train", "prune"), 6)])
def test_a_step_that_dies_in_every_part_ends_with_the_same_pack(
    stages, count, base_model_folder, datasets, config, monkeypatch, tmp_path
):
    config = replace(config, stage=StageConfig(stages))
    counted = shutil.copytree(base_model_folder, tmp_path / "counted")
    parts = updates_of(counted, datasets, config, monkeypatch)
    whole = Model.open(counted).pack("chest")
    last_of_part = [n for n, part in enumerate(parts) if n + 1 == len(parts) or parts[n + 1] != part]
    assert len(last_of_part) >= count
    folder = shutil.copytree(base_model_folder, tmp_path / "dying")
    done = 0
    for number in last_of_part:  # dies in every part of one and the same step
        dies = Dies(max(0, number - done))
        with monkeypatch.context() as patched:
            patched.setattr(Update, "__call__", lambda *batch, dies=dies, **known: dies(*batch, **known))
            with pytest.raises(RuntimeError, match="the power went"):
                learn_dataset(datasets["chest"], folder, config, "chest")
        done = updates_kept(folder)
    resumed = learn_dataset(datasets["chest"], folder, config, "chest")
    assert resumed.fingerprint == whole.fingerprint
    assert without_seconds(resumed) == without_seconds(whole)
    assert verify(folder).good


def updates_kept(folder):
    """Iterations that checkpoints hold."""
    checkpoints = run_folder(folder, "chest").rglob("checkpoint.pt")
    return sum(torch.load(path, weights_only=True)["iteration"] for path in checkpoints)


@pytest.mark.parametrize(
    "stages",
    [(), ("search",), ("train", "prune", "search"), ("train", "distil"), ("train", "shrink", "prune")],
)
def test_stages_in_no_order_are_refused(stages):
    with pytest.raises(ValueError, match="stages are train; train,shrink"):
        StageConfig(stages)


def test_the_command_takes_stages_and_the_rule_of_choice(
    base_folder, datasets, tmp_path, capsys, no_pictures
):
    options = ["--stages", "train,search,prune", "--minimise", "params", "--tau", "5", "--prune", "greedy"]
    words = [
        "learn",
        datasets["chest"].folder,
        "-m",
        base_folder,
        "--preset",
        "tiny",
        "--name",
        "chest",
        *options,
    ]
    assert main([str(word) for word in words]) == 0
    said = capsys.readouterr().out
    assert "Searched kernels, deepest block first: " in said
    assert "Pruned to: " in said or "Dice on validation windows" in said
    settings = OrganPack.read(base_folder / "packs" / "chest.pack").card["prune"]["settings"]
    assert (settings["select_by"], settings["tau"], settings["method"]) == ("params", 5.0, "greedy")


def test_a_stage_that_does_not_exist_gets_a_sentence(base_folder, datasets, capsys):
    words = [
        "learn",
        datasets["chest"].folder,
        "-m",
        base_folder,
        "--preset",
        "tiny",
        "--stages",
        "train,squeeze",
    ]
    assert main([str(word) for word in words]) != 0
    assert "stages are train; train,shrink" in capsys.readouterr().err
