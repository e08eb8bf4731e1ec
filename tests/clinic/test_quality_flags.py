"""Quality flags: when an organ is flagged, and the numbers in the sentence."""

from __future__ import annotations

from typing import Any

import pytest

from continual_segment.clinic.quality_flags import FlagLimits, quality_flags
from continual_segment.model.pieces import OrganPieces
from continual_segment.segmentation.clean_up import RemovedIslands

GOOD: dict[str, Any] = {"volume_ml": 100.0, "touches_edge": [], "mean_score": 0.9, "contested_share": 0.0}
TRAINED = OrganPieces(12, (12,), (80.0, 160.0), (1.0, 1.0), 0.0)


def names(row: dict[str, Any], known: OrganPieces | None = TRAINED, removed: RemovedIslands | None = None):
    return [flag.name for flag in quality_flags(GOOD | row, known, removed)]


def test_an_organ_as_in_training_has_no_flag():
    assert names({}) == []
    assert names({"mean_score": None, "contested_share": None}, None) == []


@pytest.mark.parametrize(
    ("row", "flag"),
    [
        ({"touches_edge": ["top"]}, "edge"),
        ({"volume_ml": 63.9}, "small"),
        ({"volume_ml": 200.1}, "large"),
        ({"mean_score": 0.69}, "unsure"),
        ({"contested_share": 0.21}, "contested"),
    ],
)
def test_each_limit_has_its_flag(row, flag):
    assert names(row) == [flag]


def test_volumes_just_beyond_those_in_training_are_not_flagged():
    assert names({"volume_ml": 64.1}) == names({"volume_ml": 199.9}) == []


def test_an_organ_that_is_cut_off_is_not_called_small():
    assert names({"volume_ml": 1.0, "touches_edge": ["bottom"]}) == ["edge"]


def test_volumes_are_not_judged_without_training_volumes():
    assert names({"volume_ml": 1.0}, known=None) == []


def test_large_islands_that_clean_up_removed_are_flagged():
    assert names({}, removed=RemovedIslands("liver", 9.9, 2)) == []
    assert names({}, removed=RemovedIslands("liver", 10.1, 2)) == ["islands"]


def test_the_sentence_has_the_numbers_and_every_flag_has_a_meaning():
    (flag,) = quality_flags(GOOD | {"volume_ml": 300.0}, TRAINED)
    assert all(number in flag.sentence for number in ("300.0", "80.0", "160.0", "12"))
    limits = FlagLimits(least_score=0.95)
    (unsure,) = quality_flags(GOOD, TRAINED, limits=limits)
    assert unsure.name in limits.meanings()
    assert "0.95" in limits.meanings()["unsure"]
