"""Where in the body a dataset teaches anything."""

from types import SimpleNamespace

import numpy as np
import pytest

from continual_segment.body_parts import coverage as room
from continual_segment.body_parts.coverage import Coverage, measure_coverage, slices_per_part
from continual_segment.body_parts.regions import Regions, unknown
from continual_segment.organs import BODY_PARTS
from continual_segment.volume import Grid, LabelMap, Volume

HIP, ABDOMEN, CHEST, HEAD = range(4)
GRID = Grid((40, 2, 2), np.diag([5.0, 5.0, 5.0, 1.0]), "LPS")


def labels_between(first, end):
    voxels = np.zeros(GRID.shape, np.uint8)
    voxels[first:end] = 1
    return LabelMap(voxels, GRID, {1: "trachea"})


def regions(*starts):
    """Slices from below; `starts` are those of abdomen, chest and head."""
    return Regions(GRID, np.searchsorted(starts, np.arange(40), side="right").astype(np.int8), starts)


class Told:
    """Stands in for a regressor that knows the scans by number."""

    def __init__(self, *answers):
        self.answers = iter(answers)

    def regions(self, scan):
        return next(self.answers)


@pytest.fixture
def measure(monkeypatch):
    """Coverage of made-up scans, each given by its labelled slices and its regions."""

    def run(*scans):
        cases = [SimpleNamespace(labels=labels_between(*box), grid=GRID) for box, _ in scans]
        monkeypatch.setattr(room, "training_cases", lambda dataset, at_most: cases)
        monkeypatch.setattr(room, "label_map", lambda dataset, case: case.labels)
        monkeypatch.setattr(room, "scan_of", lambda case: Volume(np.zeros(GRID.shape), GRID))
        return measure_coverage(None, Told(*(found for _, found in scans)))

    return run


def test_slices_are_counted_between_the_lowest_and_the_highest_organ():
    assert slices_per_part(labels_between(12, 33), regions(10, 20, 30)).tolist() == [0, 8, 10, 3]
    assert slices_per_part(labels_between(0, 0), regions(10, 20, 30)).tolist() == [0, 0, 0, 0]
    assert slices_per_part(labels_between(5, 9), unknown(GRID, "why")).tolist() == [0, 0, 0, 0]


def test_a_part_that_many_scans_show_is_covered_and_one_that_none_shows_is_not(measure):
    found = measure(*[((10, 36), regions(4, 10, 30))] * 4)
    assert found.coverage == {"hip_thigh": 0, "abdomen": 0, "chest": 1, "head_neck": 1}
    assert found.distribution["chest"] == pytest.approx(20 / 26, abs=1e-4)
    assert sum(found.distribution.values()) == pytest.approx(1, abs=1e-3)
    assert (found.scans, found.unknown, found.by_labels) == (4, 0, 0)


def test_a_part_that_one_scan_in_ten_shows_is_half_trusted_and_one_just_touched_is_not(measure):
    usual, once = ((12, 33), regions(4, 10, 30)), ((4, 30), regions(4, 10, 30))
    found = measure(*[usual] * 9, once)
    assert found.coverage["abdomen"] == pytest.approx(0.1 / 0.25, abs=1e-4)
    assert found.coverage["head_neck"] == 0  # three slices of 5 mm: boundaries are not that exact
    assert found.distribution["head_neck"] > 0


def test_a_broad_dataset_covers_every_part_alike(measure):
    low, high = ((0, 20), regions(10, 30, 40)), ((10, 40), regions(0, 5, 20))
    assert measure(low, low, low, high).coverage == dict.fromkeys(BODY_PARTS, 1.0)


def test_scans_that_nobody_can_place_restrict_nothing(measure):
    found = measure(*[((10, 30), unknown(GRID, "too short"))] * 3)
    assert found == Coverage({}, {}, 0, 3, 0)


def test_vertebrae_are_asked_before_the_regressor():
    class Refuses:
        def regions(self, scan):
            raise AssertionError("the labels tell it")

    voxels = np.zeros((40, 6, 6), np.uint8)
    voxels[10:16] = 1
    grid = Grid((40, 6, 6), np.diag([5.0, 5.0, 5.0, 1.0]), "LPS")
    labels = LabelMap(voxels, grid, {1: "vertebrae_T11"})
    found, by_labels = room.regions_of(Volume(np.zeros(grid.shape), grid), labels, Refuses())
    assert by_labels
    assert found.body_part[[9, 11]].tolist() == [ABDOMEN, CHEST]
