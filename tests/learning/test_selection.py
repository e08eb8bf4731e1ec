"""Which path is chosen."""

import json
from dataclasses import asdict, replace

import pytest

from continual_segment.learning.selection import PathScore, pareto_front, select


def path(mask, dice, parameters, cost, seconds=None):
    return PathScore(
        mask=mask,
        plan=("2d",),
        dice=dice,
        paper_parameters=parameters,
        true_parameters=parameters,
        multiply_adds=cost,
        seconds=seconds,
    )


REFERENCE = path((False, False), 0.90, 100, 100, 1.0)
DEEP = path((True, False), 0.88, 20, 90, 0.8)  # few parameters, still slow
SHALLOW = path((False, True), 0.895, 90, 30, 0.9)  # quick, still large
BOTH = path((True, True), 0.86, 10, 20, 0.2)
SCORES = [REFERENCE, SHALLOW, DEEP, BOTH]


@pytest.mark.parametrize(
    ("tau", "by", "chosen"),
    [
        (0, "params", REFERENCE),
        (1, "params", SHALLOW),
        (3, "params", DEEP),
        (5, "params", BOTH),
        (3, "cost", SHALLOW),
        (3, "time", DEEP),
        (float("inf"), "cost", BOTH),
    ],
)
def test_the_smallest_path_within_tau_is_chosen(tau, by, chosen):
    assert select(SCORES, REFERENCE, tau, by) is chosen


def test_with_tau_0_no_dice_is_lost():
    better = replace(BOTH, dice=0.91)
    assert select([REFERENCE, DEEP, better], REFERENCE, 0, "params") is better


def test_between_equals_the_one_with_more_dice_is_chosen():
    equal = replace(BOTH, dice=0.87)
    assert select([*SCORES, equal], REFERENCE, 5, "params") is equal


def test_without_any_dice_the_decoder_stays_as_it_is():
    whole, small = (replace(score, dice=float("nan")) for score in (REFERENCE, BOTH))
    assert select([whole, small], whole, 5, "cost") is whole


def test_a_reference_outside_the_paths_stays_where_all_lose_too_much():
    trained = replace(REFERENCE, dice=0.95)
    assert select(SCORES, trained, 3, "params") is trained
    assert select(SCORES, trained, 6, "params") is SHALLOW


def test_the_front_holds_paths_that_none_of_their_size_beats():
    assert pareto_front(SCORES, "params") == [BOTH, DEEP, SHALLOW, REFERENCE]
    assert pareto_front(SCORES, "cost") == [BOTH, SHALLOW, REFERENCE]


def test_a_path_reads_back_from_a_card():
    assert PathScore.from_json(json.loads(json.dumps(asdict(DEEP)))) == DEEP
