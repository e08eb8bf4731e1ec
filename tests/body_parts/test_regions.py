"""From scores, or from labels, to body parts."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression
from scipy.stats import spearmanr

from continual_segment.body_parts.regions import (
    Calibration,
    crossing,
    height_mm,
    never_falling,
    parts_between,
    rank_correlation,
    regions_from_labels,
    regions_from_scores,
)
from continual_segment.body_parts.spine import LANDMARKS, USUAL_MM, VERTEBRAE, vertebra_bottoms
from continual_segment.data.raw import RawDataset
from continual_segment.lab.phantom import write_phantom
from continual_segment.organs import BODY_PARTS, UNKNOWN_PART, find_organ
from continual_segment.volume import Grid, LabelMap

CALIBRATED = Calibration({"L5": 0.0, "T11": 2.0, "T2": 4.0}, 0.01, lowest=-3.0, highest=7.0)


def grid(slices, slice_mm=5.0, bottom_mm=100.0, plane=(10, 10)):
    affine = np.diag([4.0, 4.0, slice_mm, 1.0])
    affine[2, 3] = bottom_mm
    return Grid((slices, *plane), affine)


def regions(scores, body=None, slice_mm=5.0, calibration=CALIBRATED):
    scores = np.asarray(scores, float)
    body = np.ones(len(scores), bool) if body is None else body
    return regions_from_scores(scores, body, grid(len(scores), slice_mm), calibration)


RAMP = -2 + 0.05 * np.arange(140)  # 0.01 per mm: from the thighs to the head


def test_a_ramp_is_cut_at_the_scores_of_the_landmarks():
    found = regions(RAMP)
    assert found.slices == {
        "hip_thigh": (0, 40),
        "abdomen": (40, 80),
        "chest": (80, 120),
        "head_neck": (120, 140),
    }
    assert found.starts_mm == pytest.approx({"abdomen": 300, "chest": 500, "head_neck": 700}, abs=1)
    assert not found.reversed
    assert found.as_data()["unknown_slices"] == 0


def test_reversed_slices_are_told_and_have_the_same_parts():
    found, turned = regions(RAMP), regions(RAMP[::-1])
    assert turned.reversed
    np.testing.assert_array_equal(turned.body_part[::-1], found.body_part)
    assert turned.slices["head_neck"] == (0, 20)


def test_noise_does_not_tear_parts_apart():
    noisy = RAMP + np.random.default_rng(0).normal(0, 0.3, len(RAMP))
    found = regions(noisy)
    assert (np.diff(found.body_part) >= 0).all()
    for name, (first, end) in regions(RAMP).slices.items():
        assert np.abs(np.subtract(found.slices[name], (first, end))).max() <= 4


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(-4, 8), min_size=2, max_size=60), st.booleans())
def test_parts_are_contiguous_and_ordered_whatever_the_scores(scores, turned):
    ordered = sorted(scores, reverse=turned)
    found = regions(np.repeat(ordered, 4)).body_part
    known = found[found != UNKNOWN_PART].astype(int)
    steps = np.diff(known)
    assert (steps >= 0).all() or (steps <= 0).all()


@given(st.lists(st.floats(-50, 50), min_size=3, max_size=3))
def test_edges_that_contradict_each_other_still_give_ordered_parts(edges):
    assert (np.diff(parts_between(edges, 40)) >= 0).all()


@pytest.mark.parametrize(
    ("scores", "slice_mm", "why"),
    [
        (RAMP[:6], 10.0, "too few"),
        (RAMP[:10], 1.0, "too few"),
        (RAMP[::6], 30.0, "30 mm apart"),
        (np.ones(40), 5.0, "do not follow"),
        (np.random.default_rng(1).normal(size=60), 5.0, "do not follow"),
        (RAMP[:40] * 10, 5.0, "times as fast"),
        (RAMP / 10, 5.0, "times as fast"),
    ],
)
def test_short_scans_large_gaps_and_low_confidence_are_unknown(scores, slice_mm, why):
    found = regions(scores, slice_mm=slice_mm)
    assert (found.body_part == UNKNOWN_PART).all()
    assert why in found.reasons[0]
    assert found.slices == found.starts_mm == {}


def test_a_regressor_without_landmarks_knows_nothing():
    found = regions(RAMP, calibration=Calibration({"L5": 0.0}, 0.01, -3, 7))
    assert (found.body_part == UNKNOWN_PART).all()
    assert "not calibrated" in found.reasons[0]


def test_slices_without_a_body_or_far_from_training_are_unknown_and_the_others_are_not():
    body = np.ones(140, bool)
    body[:10] = False
    found = regions(RAMP, body)
    assert (found.body_part[:10] == UNKNOWN_PART).all()
    assert found.slices["abdomen"] == (40, 80)
    narrow = regions(RAMP, calibration=Calibration(CALIBRATED.landmarks, 0.01, lowest=-1.0, highest=7.0))
    assert (narrow.body_part[:9] == UNKNOWN_PART).all()
    assert narrow.body_part[20] == 0


def test_a_crossing_lies_between_slices():
    assert crossing(np.array([3, 4, 5]), np.array([0.0, 1.0, 3.0]), 2.0) == 4.5
    assert crossing(np.arange(3), np.arange(3.0), -1) == -np.inf
    assert crossing(np.arange(3), np.arange(3.0), 9) == np.inf


# Labels


def spine(first, last, slice_mm=5.0, bottom_mm=0.0, stretch=1.0, slices=140):
    """Vertebrae from `first` to `last`, each a body with a process that hangs behind it; z = 0 below L5."""
    names = VERTEBRAE[VERTEBRAE.index(first) : VERTEBRAE.index(last) + 1]
    voxels = np.zeros((slices, 20, 6), np.uint8)
    for label, name in enumerate(names, start=1):
        start = (USUAL_MM[name] * stretch - bottom_mm) / slice_mm
        low, high = (round(start + share * 15 * stretch / slice_mm) for share in (0, 1))
        voxels[max(low, 0) : max(high, 0), 12:20] = label
        voxels[max(low - 3, 0) : max(high - 2, 0), 2:6, 2:4] = label
    return LabelMap(
        voxels,
        grid(slices, slice_mm, bottom_mm + slice_mm / 2, voxels.shape[1:]),
        {i: f"vertebrae_{n}" for i, n in enumerate(names, 1)},
    )


@pytest.mark.parametrize(
    ("first", "last", "stretch", "within_mm"),
    [
        ("L5", "C1", 1.0, 3),
        ("L5", "C1", 1.15, 3),
        ("L4", "T3", 1.0, 8),
        ("T12", "T9", 1.1, 25),
        ("T6", "T6", 1.0, 12),
    ],
)
def test_parts_meet_at_the_lower_end_plates_also_of_vertebrae_that_are_not_there(
    first, last, stretch, within_mm
):
    found = regions_from_labels(spine(first, last, bottom_mm=-60, stretch=stretch))
    expected = dict(zip(BODY_PARTS[1:], (USUAL_MM[name] * stretch for name in LANDMARKS), strict=True))
    assert found.starts_mm == pytest.approx(expected, abs=within_mm)
    assert (np.diff(found.body_part) >= 0).all()


def test_the_processes_of_a_vertebra_do_not_lower_its_end_plate():
    bottoms = vertebra_bottoms(spine("L5", "L3", bottom_mm=-60))
    assert bottoms["L4"] == pytest.approx((USUAL_MM["L4"] + 60) / 5 - 0.5, abs=0.6)


def test_a_vertebra_cut_by_the_bottom_of_the_scan_has_no_end_plate():
    assert "L3" not in vertebra_bottoms(spine("L3", "T10", bottom_mm=USUAL_MM["L3"] + 6))


def test_one_vertebra_at_a_wrong_place_does_not_fold_the_ruler():
    labels = spine("L5", "C1", bottom_mm=-60)
    wrong = LabelMap(labels.voxels.copy(), labels.grid, labels.names)
    place = next(label for label, name in labels.names.items() if name == "vertebrae_T5")
    wrong.voxels[wrong.voxels == place] = 0
    wrong.voxels[2:5, 12:20] = place
    assert regions_from_labels(wrong).slices == regions_from_labels(labels).slices


def test_labels_without_a_vertebra_use_what_else_tells_the_height():
    voxels = np.zeros((100, 10, 10), np.uint8)
    voxels[10:40] = 1
    labels = LabelMap(voxels, grid(100), {1: "hip_left"})
    found = regions_from_labels(labels)
    assert found.slices["abdomen"][0] == pytest.approx(40 - USUAL_MM["L4"] / 5, abs=1)
    nothing = regions_from_labels(LabelMap(voxels, grid(100), {1: "spleen"}))
    assert (nothing.body_part == UNKNOWN_PART).all()
    assert "no vertebra" in nothing.reasons[0]


def test_glands_and_brainstem_tell_where_the_head_of_a_phantom_begins(tmp_path):
    folder = write_phantom(tmp_path, "headneck", 3, 0, (6.0, 6.0, 6.0), workers=1, progress=False)
    raw = RawDataset.open(folder, progress=False)
    for case in raw.cases:
        labels = raw.read(case)[1]
        truth = json.loads((folder / "body_parts" / f"{case.name}.json").read_text())["starts_mm"]
        edge = regions_from_labels(labels).edges[2]  # mostly below the scan
        assert height_mm(labels.grid, edge) == pytest.approx(truth["head_neck"], abs=25)


def test_landmarks_are_organs_of_the_table():
    assert all(find_organ(f"vertebrae_{name}").id < 100 for name in VERTEBRAE)


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30))
def test_values_that_never_fall_are_those_of_isotonic_regression(values):
    found = never_falling(np.array(values))
    assert (np.diff(found) >= 0).all()
    assert found == pytest.approx(isotonic_regression(values).x, abs=1e-9)


@given(st.lists(st.tuples(st.integers(0, 5), st.floats(-3, 3, width=16)), min_size=3, max_size=30))
@settings(max_examples=100, deadline=None)
def test_the_rank_correlation_is_scipys_with_ties(pairs):
    one, other = np.array(pairs, float).T
    if np.ptp(one) and np.ptp(other):
        assert rank_correlation(one, other) == spearmanr(one, other).statistic
