"""Pruning a decoder."""

from dataclasses import replace

import pytest
import torch

from continual_segment.learning.distil import DistilConfig
from continual_segment.learning.prune import PruneConfig, Pruning, prune_decoder
from continual_segment.learning.selection import PathScore
from continual_segment.learning.validation import CoveringWindows
from continual_segment.networks import (
    Decoder,
    DecoderPlan,
    PrunableDecoder,
    multiply_adds,
    paper_count,
    true_count,
)
from continual_segment.training.validate import patch_dice

QUICK = PruneConfig(validation_windows=6, candidates=0, timing_repeats=1)


@pytest.fixture
def decoder(phantom_step):
    torch.manual_seed(4)
    return Decoder(phantom_step.encoder.config, DecoderPlan(("p3d", "2d")), phantom_step.organs)


def prune(step, decoder, **settings):
    return prune_decoder(step, decoder, DistilConfig(), replace(QUICK, **settings))


def scores_of(pruned):
    return [PathScore.from_json(path) for path in pruned.card["paths"]]


def test_the_path_without_students_has_the_dice_of_the_decoder_exactly(phantom_step, decoder):
    windows = CoveringWindows(phantom_step.source.dataset, phantom_step.source.patches.size, 6)
    dice = patch_dice(
        lambda images: decoder(phantom_step.features(images)), windows, len(windows), decoder.organs, "cpu"
    )
    assert scores_of(prune(phantom_step, decoder))[0].dice == dice


def test_every_path_is_scored_with_its_sizes(phantom_step, decoder):
    scores = scores_of(prune(phantom_step, decoder))
    assert len({score.mask for score in scores}) == 4
    for score in scores:
        plan, network = DecoderPlan(score.plan), decoder.network
        assert score.paper_parameters == paper_count(plan, network)
        assert score.true_parameters == true_count(Decoder(network, plan, decoder.organs))
        assert score.multiply_adds == multiply_adds(
            plan, network, phantom_step.source.patches.size, decoder.organs
        )
        assert score.plan == tuple(
            "projection" if on else name for on, name in zip(score.mask, ("p3d", "2d"), strict=True)
        )


@pytest.mark.parametrize("method", ["enumerate", "greedy"])
def test_without_a_limit_all_blocks_become_projections(method, phantom_step, decoder):
    pruned = prune(phantom_step, decoder, tau=float("inf"), method=method)
    assert pruned.decoder.plan.kernels == ("projection", "projection")
    assert true_count(pruned.decoder) == scores_of(pruned)[pruned.card["chosen"]].true_parameters


def test_with_tau_0_the_chosen_path_loses_nothing(phantom_step, decoder):
    pruned = prune(phantom_step, decoder, tau=0.0)
    scores = scores_of(pruned)
    assert scores[pruned.card["chosen"]].dice >= scores[0].dice


def test_the_card_tells_what_tau_1_3_and_5_give(phantom_step, decoder):
    card = prune(phantom_step, decoder, tau=3.0).card
    assert set(card["choices"]) == {"1", "3", "5"}
    assert card["choices"]["3"] == card["chosen"]
    assert 0 <= card["final_dice"] <= 1


def greedy_with(phantom_step, decoder, dices, monkeypatch):
    """Greedy pruning where the paths' Dice is as given, by mask."""
    pruning = Pruning(phantom_step, PrunableDecoder(decoder), DistilConfig(), replace(QUICK, method="greedy"))
    score = pruning.score
    monkeypatch.setattr(
        pruning,
        "score",
        lambda masks, file: [replace(one, dice=dices[one.mask]) for one in score(masks, file)],
    )
    return [score.mask for score in pruning.greedy()]


def test_greedy_keeps_a_student_that_costs_less_than_a_point_and_restores_otherwise(
    phantom_step, decoder, monkeypatch
):
    dices = {(False, False): 0.9, (True, False): 0.88, (False, True): 0.893}
    assert greedy_with(phantom_step, decoder, dices, monkeypatch) == [(False, False), (False, True)]


def test_greedy_goes_on_from_what_it_kept(phantom_step, decoder, monkeypatch):
    dices = {(False, False): 0.9, (True, False): 0.893, (True, True): 0.885}  # each loses less than a point
    assert greedy_with(phantom_step, decoder, dices, monkeypatch)[-1] == (True, True)


def test_encoder_and_decoder_are_as_before_pruning(phantom_step, decoder):
    before = {
        name: tensor.clone()
        for module in (phantom_step.encoder, decoder)
        for name, tensor in module.state_dict().items()
    }
    pruned = prune(phantom_step, decoder)
    assert pruned.decoder is not decoder
    for module in (phantom_step.encoder, decoder):
        assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_promising_paths_get_time_to_recover_before_the_choice(phantom_step, decoder):
    pruned = prune(phantom_step, decoder, tau=0.0, candidates=3)
    scores = scores_of(pruned)
    assert not scores[0].fine_tuned
    literal = scores_of(prune(replace_run(phantom_step), decoder, tau=0.0))
    tuned = [score for score in scores if score.fine_tuned]
    assert all(score.dice in [other.dice for other in literal] for score in scores if not score.fine_tuned)
    assert len(tuned) <= 3
    for score in tuned:  # the tuned one is what the pack would hold
        name = "".join("1" if on else "0" for on in score.mask)
        assert (phantom_step.run / f"candidate_{name}" / "log.csv").exists()


def replace_run(step):
    return replace(step, run=step.run / "again")


def test_selection_by_time_measures_every_path(phantom_step, decoder):
    scores = scores_of(prune(phantom_step, decoder, select_by="time", tau=100.0))
    assert all(score.seconds > 0 for score in scores)
    chosen = prune(phantom_step, decoder, select_by="time", tau=100.0)  # not measured anew: the choice stays
    assert scores_of(chosen) == scores


def test_a_decoder_of_projections_is_only_fine_tuned(phantom_step):
    torch.manual_seed(0)
    plan = DecoderPlan(("projection", "projection"))
    decoder = Decoder(phantom_step.encoder.config, plan, phantom_step.organs)
    pruned = prune(phantom_step, decoder)
    assert len(pruned.card["paths"]) == 1
    assert pruned.decoder.plan == plan


# Settings


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"method": "all"}, "method is one of enumerate, greedy"),
        ({"select_by": "size"}, "select_by is one of params, cost, time"),
        ({"tau": -1.0}, "tau is a number of Dice points"),
        ({"tau": float("nan")}, "tau is a number of Dice points"),
        ({"validation_windows": 0}, "at least 1"),
        ({"fine_tune_share": 0.0}, "above 0"),
    ],
)
def test_wrong_settings_fail_on_construction(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        PruneConfig(**settings)
