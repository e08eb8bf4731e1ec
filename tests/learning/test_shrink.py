"""Making a trained decoder small."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from continual_segment.cli.main import main
from continual_segment.cli.pack import packs_to_shrink
from continual_segment.errors import ConfigError, DatasetError, ModelError
from continual_segment.evaluation.report import small_decoders
from continual_segment.evaluation.small_decoders import candidates_of
from continual_segment.learning import StageConfig, learn_dataset, shrink_pack, shrink_packs
from continual_segment.learning.budget import Budget, shares_of
from continual_segment.learning.expected_plans import expected_plans
from continual_segment.learning.judge import Judge
from continual_segment.learning.least_squares import FitConfig
from continual_segment.learning.selection import PlanScore
from continual_segment.learning.shrink import (
    Candidate,
    ShrinkConfig,
    Shrinking,
    plans_to_train,
    shortlist,
    shrink_decoder,
)
from continual_segment.learning.shrink_pack import length_of
from continual_segment.learning.teach import Teacher, train_with_teacher
from continual_segment.model import Model, OrganPack, verify
from continual_segment.networks import Decoder, DecoderPlan, true_count

QUICK = ShrinkConfig(
    fit=FitConfig(batches=2, samples=200),
    kernels=("nnunet", "projection"),
    widths=(0.5, 0.25),
    shortlist=3,
    ranking_windows=4,
    validation_windows=4,
    tau=20.0,
)


@pytest.fixture
def decoder(phantom_step):
    torch.manual_seed(4)
    network = phantom_step.encoder.config
    return Decoder(network, DecoderPlan.nnunet(network), phantom_step.organs)


def score(plan, dice, cost):
    return PlanScore(plan=plan, dice=dice, paper_parameters=cost, true_parameters=cost, multiply_adds=cost)


WHOLE = score(("nnunet", "nnunet"), 0.90, 100)
FITTED = [
    WHOLE,
    score(("2d", "nnunet"), 0.88, 60),
    score(("2d", "2d"), 0.85, 40),
    score(("projection", "2d"), 0.84, 50),  # larger and worse than the one before
    score(("projection", "projection"), 0.50, 10),
]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"tau": 0.5}, [("2d", "nnunet")]),  # 15 % of 2 points are left after training
        ({"tau": 1.0}, [("2d", "2d"), ("2d", "nnunet")]),
        ({"tau": 1.0, "candidates": 1}, [("2d", "2d")]),
        ({"tau": 0.1}, []),
        ({"tau": 6.1}, [("projection", "projection"), ("2d", "2d")]),
        ({"tau": 0.1, "budget": Budget(0.45, 1.0)}, [("2d", "2d")]),
        ({"budget": Budget(2.0, 2.0)}, []),  # the trained decoder itself
    ],
)
def test_the_smallest_plans_that_are_expected_to_lose_at_most_tau_are_trained(settings, expected):
    assert plans_to_train(FITTED, WHOLE, ShrinkConfig(recovery=0.85, **settings)) == expected


def test_the_best_plan_within_a_budget_is_taken(phantom_step, decoder):
    small = shrink_decoder(phantom_step, decoder, replace(QUICK, budget=Budget(0.3, 0.5)))
    card = json.loads(json.dumps(small.card))  # as a file holds it
    assert tuple(card["chosen"]["plan"]) == small.decoder.plan.kernels
    assert card["chosen"]["true_parameters"] == true_count(small.decoder) < true_count(decoder)
    assert card["chosen"]["multiply_adds"] <= 0.5 * card["trained"]["multiply_adds"]
    assert card["chosen"]["paper_parameters"] <= 0.3 * card["trained"]["paper_parameters"]
    # the trained one; per block two kernels of two widths, and the smaller one of all channels; combinations
    assert 11 <= len(card["fitted"]) <= 14
    assert card["tried"] == [card["chosen"]]


def with_dice(monkeypatch, dice_of_plan):
    """Trained plans have a given Dice; all fitted ones look promising."""

    def train(self, plan):
        return Candidate(
            self.tree.assembled(plan), replace(self.scored(plan, dice_of_plan(plan)), fine_tuned=True), []
        )

    monkeypatch.setattr(Shrinking, "train", train)
    monkeypatch.setattr(Judge, "dice_of", lambda self, decoder, file: 0.9)
    monkeypatch.setattr(
        Shrinking, "rank", lambda self, plans, file: [self.scored(plan, fitted(plan)) for plan in plans]
    )


def fitted(plan):
    """Dice before training: the fewer blocks are whole, the less."""
    return 0.8 + 0.03 * plan.count("nnunet")


def test_where_every_small_plan_loses_too_much_the_trained_decoder_stays(phantom_step, decoder, monkeypatch):
    with_dice(monkeypatch, lambda plan: 0.5)
    small = shrink_decoder(phantom_step, decoder, replace(QUICK, tau=1.0))
    assert small.decoder is decoder
    assert small.card["chosen"] == small.card["trained"]
    assert small.card["tried"]


def test_a_plan_that_loses_more_than_tau_is_followed_by_a_larger_one(phantom_step, decoder, monkeypatch):
    with_dice(monkeypatch, lambda plan: 0.895 if "nnunet" in plan else 0.5)
    small = shrink_decoder(phantom_step, decoder, replace(QUICK, tau=1.0))
    first, second = (tuple(tried["plan"]) for tried in small.card["tried"])
    assert "nnunet" not in first
    assert small.decoder.plan.kernels == second
    assert small.card["tried"][0]["multiply_adds"] < small.card["tried"][1]["multiply_adds"]


def test_what_a_combination_is_expected_to_keep_is_the_product_over_its_blocks():
    whole = score(("nnunet", "nnunet"), 0.8, 100)
    deep = [score(("2d@4", "nnunet"), 0.6, 70), score(("2d@2", "nnunet"), 0.5, 75)]
    fine = [score(("nnunet", "2d@4"), 0.4, 60), score(("nnunet", "2d@2"), 0.0, 50)]
    found = {
        plan.plan: (round(plan.dice, 4), plan.multiply_adds) for plan in expected_plans(deep + fine, whole)
    }
    assert found == {
        ("nnunet", "nnunet"): (0.8, 100),
        ("2d@4", "nnunet"): (0.6, 70),
        ("nnunet", "2d@4"): (0.4, 60),
        ("nnunet", "2d@2"): (0.0, 50),
        ("2d@4", "2d@4"): (0.3, 30),  # three quarters of a half
        ("2d@4", "2d@2"): (0.0, 20),  # 2d@2 in the deep block is larger and worse than 2d@4
    }


def test_sizes_of_combinations_are_exact(phantom_step, decoder):
    shrinking = Shrinking(phantom_step, decoder, QUICK)
    expected = shrinking.expected
    assert any("nnunet" not in found.plan for found in expected)
    for found in expected:
        real = shrinking.scored(found.plan, found.dice)
        assert found == real


def test_shrinking_again_gives_the_same_bits_without_training(phantom_step, decoder):
    first = shrink_decoder(phantom_step, decoder, QUICK)
    logs = {path: path.stat().st_mtime_ns for path in phantom_step.run.rglob("checkpoint.pt")}
    again = shrink_decoder(phantom_step, decoder, QUICK)
    assert {path: path.stat().st_mtime_ns for path in phantom_step.run.rglob("checkpoint.pt")} == logs
    assert again.card == first.card
    for name, value in first.decoder.state_dict().items():
        assert torch.equal(value, again.decoder.state_dict()[name])


def test_only_combinations_within_the_budget_are_fitted(phantom_step, decoder):
    shrinking = Shrinking(phantom_step, decoder, QUICK)
    budget = Budget(0.4, 0.5)
    plans = shortlist(shrinking.expected, shrinking.whole, replace(QUICK, budget=budget))
    assert 1 <= len(plans) <= QUICK.shortlist
    assert all(budget.allows(shrinking.scored(plan, 0.0), shrinking.whole) for plan in plans)


def test_a_teacher_pulls_a_decoder_towards_its_answers(phantom_step, decoder):
    torch.manual_seed(9)
    plan = DecoderPlan(("2d", "projection"))
    student = Decoder(decoder.network, plan, decoder.organs)
    teacher = Teacher(decoder, 50.0)
    features = phantom_step.features(phantom_step.source.validation(phantom_step.settings)[0][0])

    def distance():
        with torch.no_grad():
            return float(teacher.loss(features, student.forward_supervised(features)))

    before = distance()
    settings = replace(phantom_step.settings, iterations=30, report_every=30, learning_rate=0.01)
    train_with_teacher(phantom_step, student, teacher, settings, "taught")
    assert distance() < 0.7 * before


def test_a_teacher_is_no_further_than_nothing_from_itself(phantom_step, decoder):
    features = phantom_step.features(phantom_step.source.validation(phantom_step.settings)[0][0])
    with torch.no_grad():
        assert abs(float(Teacher(decoder, 5.0).loss(features, decoder.forward_supervised(features)))) < 1e-6


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tau": -1.0}, "tau and teacher_weight"),
        ({"candidates": 0}, "at least 1"),
        ({"share": 0.0}, "above 0"),
        ({"kernels": ("4d",)}, "4d"),
        ({"widths": (1.5,)}, "widths"),
    ],
)
def test_wrong_settings_fail_on_construction(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        ShrinkConfig(**settings)
    with pytest.raises(ValueError, match="above 0"):
        Budget(parameters=0.0, multiply_adds=1.0)


def test_a_budget_counts_the_packs_that_the_model_has(base_folder, datasets, preset, quick, no_pictures):
    whole = len(Model.open(base_folder).pack_names)  # packs of whole decoders
    config = quick(preset, iterations=4)
    config = replace(
        config, stage=StageConfig(("train", "shrink")), shrink=replace(QUICK, budget=Budget(0.9, 0.9))
    )
    with pytest.raises(ConfigError, match=r"leave -0\.100 of the parameters"):
        learn_dataset(datasets["chest"], base_folder, config, "chest")
    assert whole == 1
    config = replace(config, shrink=replace(QUICK, budget=Budget(1.3, 1.6)))
    pack = learn_dataset(datasets["chest"], base_folder, config, "chest")
    assert verify(base_folder).good
    shares = shares_of(pack.plan, pack.network, preset.patches.size, len(pack.organs))
    assert shares[0] <= 0.3
    assert shares[1] <= 0.6
    assert pack.card["seconds"].keys() == {"train", "shrink"}


@pytest.fixture
def quick_config(preset, quick, no_pictures):
    return replace(quick(preset, iterations=4), stage=StageConfig(("train", "shrink")), shrink=QUICK)


def test_a_pack_of_a_model_is_made_small_without_a_change_to_the_model(
    base_folder, datasets, quick_config, contents
):
    before, whole = contents(base_folder), Model.open(base_folder).pack("totalseg")
    config = replace(quick_config, shrink=replace(QUICK, budget=Budget(0.5, 0.6)))
    small = shrink_pack("totalseg", datasets["totalseg"], base_folder, config)
    assert contents(base_folder) == before
    assert (small.name, small.organs, small.coverage) == (whole.name, whole.organs, whole.coverage)
    assert sum(map(torch.numel, small.weights.values())) < sum(map(torch.numel, whole.weights.values()))
    assert small.card["decoder_parameters"]["true"] == true_count(small.decoder())
    Model.open(base_folder).remove("totalseg").add(small)
    assert verify(base_folder).good


@pytest.mark.parametrize("card", [{}, {"seconds": "many"}])
def test_a_pack_whose_card_knows_little_may_stay_as_it_is(
    card, base_folder, datasets, quick_config, monkeypatch
):
    """Such as one that was imported: its card has no Dice and no seconds."""
    model = Model.open(base_folder)
    pack = replace(model.pack("totalseg"), card=card)
    model.remove("totalseg").add(pack)
    with_dice(monkeypatch, lambda plan: 0.5)
    kept = shrink_pack("totalseg", datasets["totalseg"], base_folder, quick_config)
    assert kept.plan == pack.plan
    assert kept.card["seconds"].keys() == {"shrink"}


def test_a_pack_needs_its_own_dataset_and_a_whole_decoder(base_folder, datasets, quick_config):
    with pytest.raises(DatasetError, match="learned from"):
        shrink_pack("totalseg", datasets["chest"], base_folder, quick_config)
    config = replace(quick_config, shrink=replace(QUICK, budget=Budget(0.5, 0.6)))
    small = shrink_pack("totalseg", datasets["totalseg"], base_folder, config)
    Model.open(base_folder).remove("totalseg").add(small)
    with pytest.raises(ModelError, match="small already"):
        shrink_pack("totalseg", datasets["totalseg"], base_folder, config)


def test_several_packs_share_a_budget(base_folder, datasets, quick_config, contents):
    learn_dataset(
        datasets["chest"], base_folder, replace(quick_config, stage=StageConfig(("train",))), "chest"
    )
    before = contents(base_folder)
    config = replace(quick_config, shrink=replace(QUICK, budget=Budget(0.6, 0.9)))
    both = {name: datasets[name] for name in ("totalseg", "chest")}
    packs = list(shrink_packs(both, base_folder, config))
    assert [pack.name for pack in packs] == list(both)
    window = Model.open(base_folder).window
    sizes = [shares_of(pack.plan, pack.network, window, len(pack.organs)) for pack in packs]
    assert sum(size[0] for size in sizes) <= 0.6
    assert sum(size[1] for size in sizes) <= 0.9
    assert contents(base_folder) == before
    # one by one, the other whole pack keeps an equal part
    alone = shrink_pack("chest", datasets["chest"], base_folder, config)
    parameters, cost = shares_of(alone.plan, alone.network, window, len(alone.organs))
    assert parameters <= 0.3
    assert cost <= 0.45


def test_the_command_writes_a_small_pack(base_folder, datasets, tmp_path, capsys, no_pictures):
    out = tmp_path / "small.pack"
    words = ["pack", "shrink", "totalseg", datasets["totalseg"].folder, "-m", base_folder, "-o", out]
    words += ["--preset", "tiny", "--budget", "0.5,0.6"]
    assert main([str(word) for word in words]) == 0
    assert "Made small: " in capsys.readouterr().out
    pack = OrganPack.read(out)
    candidates, chosen = candidates_of(pack)
    assert candidates[0].plan == ("nnunet", "nnunet")
    assert chosen in candidates
    assert small_decoders([pack])["pictures"].keys() == {"totalseg"}
    with pytest.raises(SystemExit):
        main([*map(str, words[:-1]), "a,b,c"])
    assert "one or two numbers such as 0.97,0.75" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["a"], "NAME=PREPARED"), (["a=x", "b"], "NAME=PREPARED"), (["a=x", "a=y"], "twice")],
)
def test_packs_without_a_dataset_are_refused(words, sentence):
    with pytest.raises(ConfigError, match=sentence):
        packs_to_shrink(words)
    assert packs_to_shrink(["a", "x=y"]) == {"a": Path("x=y")}
    assert packs_to_shrink(["a=x", "b=y"]) == {"a": Path("x"), "b": Path("y")}


def test_a_block_may_keep_all_of_its_channels_with_a_smaller_kernel(preset):
    forms = ShrinkConfig(kernels=("nnunet", "2d"), widths=(0.5,)).forms(preset.network, 0)
    width = preset.network.features[-2] // 2
    assert [form.name for form in forms] == ["nnunet", f"nnunet@{width}", "2d", f"2d@{width}"]


def test_no_block_is_reduced_to_a_single_channel(preset):
    finest = ShrinkConfig(kernels=("2d",), widths=(1e-3,)).forms(
        preset.network, len(preset.network.features) - 2
    )
    assert [form.name for form in finest] == ["2d", "2d@2"]


@pytest.mark.parametrize(
    ("trained", "length"),
    [(40, 4.0), (10, 1.0), (5, 1.0), (10**12, 4.0), ("many", 1.0), (None, 1.0)],
)
def test_a_pack_of_a_longer_training_is_made_small_for_longer(trained, length, preset, base_model_folder):
    config = replace(
        preset, first=replace(preset.first, iterations=40), later=replace(preset.later, iterations=10)
    )
    model = Model.open(base_model_folder)
    pack = replace(model.pack(model.pack_names[0]), card={"train": {"iterations": trained}})
    assert length_of(pack, config) == length
    assert length_of(replace(pack, card={}), config) == 1
