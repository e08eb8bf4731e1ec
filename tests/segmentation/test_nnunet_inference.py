"""Windows and weights are those of stock nnU-Net 2.8.1; so is the way of logits back to the scan."""

import numpy as np
import pytest
import torch
from scipy import ndimage

from continual_segment.segmentation.nnunet_inference import nnunet_window_starts, nnunet_window_weights
from continual_segment.segmentation.sampling import Axis, Sampling
from continual_segment.segmentation.window_accumulator import WindowAccumulator
from continual_segment.segmentation.windows import gaussian_weights, window_starts


@pytest.mark.parametrize(
    ("length", "window", "step", "expected"),
    [
        (110, 64, 0.5, [0, 23, 46]),
        (131, 128, 0.5, [0, 3]),
        (300, 128, 0.8, [0, 86, 172]),
        (50, 7, 0.5, [0, 3, 7, 10, 13, 17, 20, 23, 26, 30, 33, 36, 40, 43]),  # by 3.5 voxels at most
        (64, 64, 0.5, [0]),
        (40, 64, 0.5, [0]),
    ],
)
def test_windows_start_where_those_of_nnunet_do(length, window, step, expected):
    assert nnunet_window_starts(length, window, step) == expected


def test_windows_of_even_sides_and_half_overlap_start_where_our_own_do():
    for window in range(2, 130, 2):
        for length in range(window, window + 200, 7):
            assert nnunet_window_starts(length, window) == window_starts(length, window, 0.5)


def test_windows_of_odd_sides_are_fewer_than_our_own():
    assert len(nnunet_window_starts(50, 7)) == 14
    assert len(window_starts(50, 7, 0.5)) == 16


def test_weights_are_those_of_nnunet():
    weights = nnunet_window_weights((4, 5, 6))
    assert weights.dtype == np.float16
    assert weights[:, 2, 3].tolist() == [0.0033550262451171875, 1.353515625, 10.0, 1.353515625]
    assert weights[2, :, 3].tolist() == [0.05975341796875, 2.78125, 10.0, 2.78125, 0.05975341796875]
    assert weights[2, 2, :3].tolist() == [0.0033550262451171875, 0.28564453125, 4.109375]


def test_weights_too_small_for_half_precision_are_the_smallest_that_is_not():
    weights = nnunet_window_weights((48, 48, 48))
    assert weights[0, 0, 0] == weights[weights > 0].min() == np.float16(6e-8)
    assert weights.max() == weights[24, 24, 24] == 10


def test_the_largest_weight_is_half_a_voxel_beside_that_of_our_own():
    ours = gaussian_weights((8, 8, 8))
    assert np.argwhere(ours == ours.max()).mean(axis=0).tolist() == [3.5] * 3
    assert np.unravel_index(nnunet_window_weights((8, 8, 8)).argmax(), (8, 8, 8)) == (4, 4, 4)


def test_sums_of_windows_round_as_those_of_nnunet():
    """Sums in float16 whose terms are products in float32, windows in the order of their starts."""
    rng = np.random.default_rng(0)
    weights = torch.from_numpy(nnunet_window_weights((6, 8, 6)))
    starts = nnunet_window_starts(17, 8)
    logits = [torch.from_numpy(rng.normal(0, 5, (3, 6, 8, 6)).astype(np.float32)) for _ in starts]
    total, count = torch.zeros(3, 6, 17, 6, dtype=torch.half), torch.zeros(6, 17, 6, dtype=torch.half)
    weight = torch.zeros(6, 17, 6, dtype=torch.half)
    accumulator = WindowAccumulator(3, weight)
    for start, window in zip(starts, logits, strict=True):
        lines = slice(start, start + 8)
        accumulator.add(window, weights, (lines, slice(None)))
        total[:, :, lines] += window * weights
        count[:, lines] += weights
    weight += count
    mean = accumulator.finish(6, (slice(None), slice(None), slice(None)))
    assert torch.equal(mean.values, total / count)


def dense(axis, old):
    weights = np.zeros((len(axis.lower), old))
    np.add.at(weights, (np.arange(len(weights)), axis.lower), 1 - axis.fraction)
    np.add.at(weights, (np.arange(len(weights)), axis.upper), axis.fraction)
    return weights


@pytest.mark.parametrize("old", [1, 2, 7, 30, 64])
def test_logits_between_voxels_have_the_weights_of_nnunet(old):
    for new in [1, 2, 5, 29, 64, 101, 150]:
        expected = ndimage.zoom(np.eye(old), (new / old, 1), order=1, mode="nearest", grid_mode=True)
        np.testing.assert_allclose(dense(Axis.between(old, new), old), expected, atol=1e-6)


def test_along_a_coarse_axis_logits_are_those_of_the_nearest_slice():
    """Of 2 slices the middle one of 49 is the lower: with rounded fractions it would be the upper."""
    sampling = Sampling((2, 10, 11), (49, 14, 15), (49, 14, 15), coarse=0)
    z, (y, x) = sampling.depth, sampling.across(0)
    assert np.array_equal(z.lower, z.upper)
    assert not z.fraction.any()
    assert z.lower.tolist() == [0] * 25 + [1] * 24
    assert z.inside == slice(0, 49)
    assert Axis.between(2, 49).nearest[24] == 1
    assert y.fraction.any()
    assert x.fraction.any()
