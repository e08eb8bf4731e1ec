"""Which path is chosen."""

import json
from dataclasses import asdict, replace

import pytest

from continual_segment.learning.selection import PathScore, pareto_front, select


def path(mask, dice, parameters, cost, seconds=None):
    return PathScore(mask, ("2d",), dice, parameters, parameters, cost, seconds)


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
    assert select(SCORES, tau, by) is chosen


def test_with_tau_0_no_dice_is_lost():
    better = replace(BOTH, dice=0.91)
    assert select([REFERENCE, DEEP, better], 0, "params") is better


def test_between_equals_the_one_with_more_dice_is_chosen():
    equal = replace(BOTH, dice=0.87)
    assert select([*SCORES, equal], 5, "params") is equal


def test_without_any_dice_the_decoder_stays_as_it_is():
    nothing = float("nan")
    assert select([replace(REFERENCE, dice=nothing), replace(BOTH, dice=nothing)], 5, "cost").mask == (
        False,
        False,
    )


def test_the_front_holds_paths_that_none_of_their_size_beats():
    assert pareto_front(SCORES, "params") == [BOTH, DEEP, SHALLOW, REFERENCE]
    assert pareto_front(SCORES, "cost") == [BOTH, SHALLOW, REFERENCE]


def test_a_path_reads_back_from_a_card():
    assert PathScore.from_json(json.loads(json.dumps(asdict(DEEP)))) == DEEP
