import time
from math import isnan, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from scipy.spatial.distance import cdist

from continual_segment.metrics import OrganScore, score_labels

SPACING_MM = (3.0, 0.75, 1.25)

spacings = st.tuples(*[st.floats(0.3, 6.0)] * 3)


def score_organ(prediction, truth, spacing_mm):
    """Of one organ, given as two masks (z, y, x)."""
    return score_labels(prediction.astype(np.uint8), truth.astype(np.uint8), [1], spacing_mm)[1]


@st.composite
def mask_pairs(draw):
    """Two smooth random shapes on one small grid, both with at least one voxel."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = tuple(draw(st.integers(1, 11)) for _ in range(3))
    masks = []
    for _ in range(2):
        field = ndimage.gaussian_filter(random.normal(size=shape), draw(st.sampled_from([0.0, 0.8, 1.6])))
        masks.append(field >= np.quantile(field, draw(st.floats(0.1, 0.95))))
    return masks


def surface_by_neighbour_counting(mask):
    """Surface voxels the slow way: visit each voxel and look at its six neighbours."""
    inside = {tuple(int(i) for i in voxel) for voxel in np.argwhere(mask)}
    steps = [(1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (0, 0, 1), (0, 0, -1)]
    return [
        voxel
        for voxel in sorted(inside)
        if any(tuple(a + b for a, b in zip(voxel, step, strict=True)) not in inside for step in steps)
    ]


def brute_force(prediction, truth, spacing_mm):
    predicted = np.array(surface_by_neighbour_counting(prediction)) * spacing_mm
    true = np.array(surface_by_neighbour_counting(truth)) * spacing_mm
    every = cdist(predicted, true)
    pool = np.concatenate([every.min(axis=1), every.min(axis=0)])
    dice = 2 * np.logical_and(prediction, truth).sum() / (prediction.sum() + truth.sum())
    return dice, np.percentile(pool, 95), pool.mean()


@settings(max_examples=120, deadline=None)
@given(mask_pairs(), spacings)
def test_scores_agree_with_an_independent_brute_force(masks, spacing_mm):
    score = score_organ(*masks, spacing_mm)
    assert (score.dice, score.hd95_mm, score.asd_mm) == pytest.approx(
        brute_force(*masks, spacing_mm), rel=1e-9, abs=1e-9
    )


@settings(max_examples=60, deadline=None)
@given(mask_pairs(), spacings)
def test_prediction_and_truth_may_change_places(masks, spacing_mm):
    there, back = score_organ(*masks, spacing_mm), score_organ(*masks[::-1], spacing_mm)
    assert (there.dice, there.hd95_mm, there.asd_mm) == pytest.approx((back.dice, back.hd95_mm, back.asd_mm))
    assert (there.truth_ml, there.prediction_ml) == (back.prediction_ml, back.truth_ml)


@settings(max_examples=60, deadline=None)
@given(mask_pairs(), spacings)
def test_a_mask_against_itself_is_perfect(masks, spacing_mm):
    score = score_organ(masks[0], masks[0], spacing_mm)
    assert (score.dice, score.hd95_mm, score.asd_mm) == (1, 0, 0)


@settings(max_examples=60, deadline=None)
@given(mask_pairs(), spacings, st.floats(0.1, 10))
def test_distances_grow_with_the_spacing_and_dice_does_not(masks, spacing_mm, factor):
    once = score_organ(*masks, spacing_mm)
    scaled = score_organ(*masks, tuple(factor * s for s in spacing_mm))
    assert scaled.dice == once.dice
    assert scaled.hd95_mm == pytest.approx(factor * once.hd95_mm)
    assert scaled.asd_mm == pytest.approx(factor * once.asd_mm)
    assert scaled.truth_ml == pytest.approx(factor**3 * once.truth_ml)


@settings(max_examples=40, deadline=None)
@given(mask_pairs(), st.permutations([0, 1, 2]), st.lists(st.booleans(), min_size=3, max_size=3))
def test_turning_and_mirroring_both_masks_changes_nothing(masks, axes, flips):
    flipped = [axis for axis, flip in enumerate(flips) if flip]
    turned = [np.flip(mask.transpose(axes), flipped) for mask in masks]
    before = score_organ(*masks, SPACING_MM)
    after = score_organ(*turned, tuple(SPACING_MM[axis] for axis in axes))
    assert (after.dice, after.hd95_mm, after.asd_mm) == pytest.approx(
        (before.dice, before.hd95_mm, before.asd_mm)
    )


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shift", [1, 2, 5])
def test_two_flat_sheets_lie_apart_by_the_shift_along_their_axis(axis, shift):
    prediction, truth = np.zeros((2, 12, 12, 12), bool)
    np.moveaxis(truth, axis, 0)[3] = True
    np.moveaxis(prediction, axis, 0)[3 + shift] = True
    score = score_organ(prediction, truth, SPACING_MM)
    assert score.dice == 0
    assert score.hd95_mm == pytest.approx(shift * SPACING_MM[axis])
    assert score.asd_mm == pytest.approx(shift * SPACING_MM[axis])


def test_a_slab_one_voxel_too_thick_on_one_side_is_wrong_on_that_side_alone():
    # Faces only: the slab spans the array, whose border ring is surface as well.
    prediction, truth = np.zeros((2, 8, 40, 40), bool)
    truth[2:4] = True
    prediction[2:5] = True
    score = score_organ(prediction, truth, (2.0, 1.0, 1.0))
    # Truth: both layers are surface and lie at most one layer (2 mm) from the prediction's surface.
    # Its inner layer at z=3 is no surface of the prediction except for the ring at the array's border.
    assert score.dice == pytest.approx(2 * 2 / 5)
    assert score.hd95_mm == pytest.approx(2.0)
    assert 0.5 < score.asd_mm < 1.0


def test_hd95_and_asd_pool_both_directions():
    # 99 prediction voxels at distance 0 and one 10 mm away; every truth voxel at distance 0.
    prediction, truth = np.zeros((2, 1, 1, 130), bool)
    truth[0, 0, :99] = prediction[0, 0, :99] = True
    prediction[0, 0, 108] = True
    score = score_organ(prediction, truth, (1.0, 1.0, 1.0))
    assert score.asd_mm == pytest.approx(10 / 199)  # a mean of the two directed means would be 10 / 200
    assert score.hd95_mm == 0


def test_a_mask_at_the_border_of_the_array_has_a_surface_there():
    # Filling the whole array, the truth has only border surface; the centre lies two voxels inside it.
    truth = np.ones((5, 5, 5), bool)
    prediction = np.zeros_like(truth)
    prediction[2, 2, 2] = True
    score = score_organ(prediction, truth, (1.0, 1.0, 1.0))
    surface = np.argwhere(np.pad(np.zeros((3, 3, 3), bool), 1, constant_values=True)) - 2
    lengths = [sqrt(float((point**2).sum())) for point in surface]
    assert score.asd_mm == pytest.approx((sum(lengths) + 2) / (len(lengths) + 1))


def test_an_empty_prediction_has_dice_zero_and_no_distances():
    truth = np.zeros((4, 4, 4), bool)
    truth[1:3, 1:3, 1:3] = True
    score = score_organ(np.zeros_like(truth), truth, (5.0, 5.0, 5.0))
    assert score.dice == 0
    assert isnan(score.hd95_mm)
    assert isnan(score.asd_mm)
    assert score.distances_excluded
    assert score.penalised(123.0) == (123.0, 123.0)
    assert score.truth_ml == pytest.approx(1.0)


def test_an_empty_truth_is_not_scored_and_the_false_volume_is_reported():
    prediction = np.zeros((4, 4, 4), bool)
    prediction[0, 0, :2] = True
    score = score_organ(prediction, np.zeros_like(prediction), (10.0, 10.0, 10.0))
    assert all(isnan(value) for value in (score.dice, score.hd95_mm, score.asd_mm))
    assert score.false_positive_ml == pytest.approx(2.0)
    assert not score.distances_excluded
    assert all(isnan(value) for value in score.penalised(123.0))


def test_a_found_organ_has_no_false_positive_volume_and_no_penalty():
    mask = np.ones((2, 2, 2), bool)
    score = score_organ(mask, mask, (1.0, 1.0, 1.0))
    assert isnan(score.false_positive_ml)
    assert score.penalised(123.0) == (0, 0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), spacings)
def test_scoring_all_labels_at_once_equals_scoring_each_mask(seed, spacing_mm):
    random = np.random.default_rng(seed)
    ids = np.array([0, 2, 7, 300, 65535])
    maps = [
        ids[ndimage.zoom(random.integers(0, 5, (3, 3, 3)), 3, order=0)].astype(np.uint16) for _ in range(2)
    ]
    labels = [2, 7, 9, 300]  # 9 is in neither map, 65535 is not asked for
    together = score_labels(*maps, labels, spacing_mm)
    for label in labels:
        alone = score_organ(maps[0] == label, maps[1] == label, spacing_mm)
        assert together[label] == alone or (isnan(alone.hd95_mm) and _same(together[label], alone))
    assert set(together) == set(labels)


def _same(one: OrganScore, other: OrganScore) -> bool:
    fields = ("dice", "hd95_mm", "asd_mm", "truth_ml", "prediction_ml")
    return all(np.array_equal(getattr(one, f), getattr(other, f), equal_nan=True) for f in fields)


def test_negative_voxels_count_as_none_of_the_organs():
    truth = np.array([[[-1, -2, 1, 1]]], np.int16)
    assert score_labels(truth, truth, [1, 3], (10.0, 10.0, 10.0))[1].truth_ml == pytest.approx(2.0)
    assert not score_labels(truth, truth, [1, 3], (1.0, 1.0, 1.0))[3].in_truth


def test_maps_of_different_shape_are_refused():
    with pytest.raises(ValueError, match="one grid"):
        score_organ(np.ones((2, 2, 2), bool), np.ones((2, 2, 3), bool), (1.0, 1.0, 1.0))


def test_background_is_no_organ_to_score():
    with pytest.raises(ValueError, match="positive"):
        score_labels(np.ones((1, 1, 1), int), np.ones((1, 1, 1), int), [0, 1], (1.0, 1.0, 1.0))


def test_many_organs_cost_far_less_than_one_after_the_other():
    truth = np.arange(1, 217, dtype=np.uint8).reshape(6, 6, 6)
    truth = truth.repeat(12, 0).repeat(12, 1).repeat(12, 2)
    prediction = np.roll(truth, 1, axis=1)
    start = time.process_time()
    together = score_labels(prediction, truth, range(1, 217), (1.0, 1.0, 1.0))
    middle = time.process_time()
    for label in range(1, 217, 9):
        assert score_organ(prediction == label, truth == label, (1.0, 1.0, 1.0)) == together[label]
    each = (time.process_time() - middle) / 24
    assert middle - start < 216 * each / 2
