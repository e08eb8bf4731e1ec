"""Resampled values are those of stock nnU-Net 2.8.1, some of which are written down here."""

import numpy as np
import pytest
from scipy import ndimage

from continual_segment.data.nnunet_preparation import SLICES_AT_ONCE
from continual_segment.data.nnunet_resample import (
    axis_weights,
    nearest_voxels,
    resample_like_nnunet,
    resampled_slabs,
)
from continual_segment.packed import PackedVoxels

SCAN = (np.arange(3 * 5 * 4) * 37 % 23 / 7 - 1.5).astype(np.float32).reshape(3, 5, 4)
STOCK = [  # shape, coarse axis, order, every seventh value, sum
    (
        *((4, 3, 6), None, 3),
        [-1.3453498, 0.9729709, 0.5461448, 0.3429912, 0.1188492, 0.0067801, -1.5, 0.2563428, 0.8349845],
        4.796440870501101,
    ),
    (
        *((5, 7, 3), 0, 3),
        [-1.193244, -0.6551427, -0.6805022, -1.193244, -0.6551427, -0.6805022, -0.7177739, 0.1084364],
        6.628881038166583,
    ),
    (
        *((4, 4, 5), 1, 3),
        [-1.5, -0.4167987, -1.1362404, 0.3994196, 1.1436824, 1.6428572, 1.0579417, 0.1688812, 0.7472312],
        6.011756405234337,
    ),
    (
        *((4, 3, 6), None, 1),
        [-1.0238096, 0.7142857, 0.4126984, 0.0793651, 0.1428571, 0.2380952, -1.1428571, 0.1845238],
        4.5178573075681925,
    ),
]


def scan_of(shape):
    """Normalised values, many of them at the ends of the range."""
    return np.clip(np.random.default_rng(0).normal(0, 1.5, shape), -1.4, 2.1).astype(np.float32)


def whole_at_once(voxels, shape, order=3):
    """The same by scipy on the whole array, limited to the range of the input."""
    factors = np.divide(shape, voxels.shape)
    zoomed = ndimage.zoom(voxels.astype(float), factors, order=order, mode="nearest", grid_mode=True)
    return np.clip(zoomed, voxels.min(), voxels.max())


@pytest.mark.parametrize(("shape", "coarse", "order", "values", "total"), STOCK)
def test_values_are_those_of_nnunet(shape, coarse, order, values, total):
    resampled = resample_like_nnunet(SCAN, shape, coarse, order)
    assert resampled.dtype == np.float32
    assert resampled.shape == shape
    np.testing.assert_allclose(resampled.ravel()[::7][: len(values)], values, atol=6e-8)
    assert resampled.astype(float).sum() == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((2 * SLICES_AT_ONCE + 5, 9, 14), (5 * SLICES_AT_ONCE + 1, 13, 6)),
        ((5 * SLICES_AT_ONCE + 3, 12, 7), (SLICES_AT_ONCE + 2, 40, 7)),
        ((90, 6, 5), (11, 6, 5)),  # slices in between contribute next to nothing
        ((1, 8, 9), (4, 8, 3)),
        ((60, 1, 2), (60, 5, 1)),
    ],
)
def test_slab_by_slab_is_the_whole_at_once(old, new):
    scan = scan_of(old)
    np.testing.assert_allclose(resample_like_nnunet(scan, new), whole_at_once(scan, new), atol=1.2e-7)


@pytest.mark.parametrize("coarse", [0, 1, 2])
def test_along_a_coarse_axis_slices_are_resized_one_by_one_and_repeated(coarse):
    scan, new = scan_of((21, 20, 19)), (30, 33, 31)
    plane = tuple(np.delete(new, coarse))
    slices = [whole_at_once(each, plane) for each in np.moveaxis(scan, coarse, 0)]
    expected = np.stack(slices)[nearest_voxels(scan.shape[coarse], new[coarse])]
    resampled = np.moveaxis(resample_like_nnunet(scan, new, coarse), coarse, 0)
    np.testing.assert_allclose(resampled, expected, atol=1.2e-7)


def test_no_value_leaves_the_range_of_the_scan():
    scan = scan_of((12, 13, 14))
    overshooting = axis_weights(12, 17, order=3).numpy() @ scan.reshape(12, -1)
    assert overshooting.max() > scan.max()
    resampled = resample_like_nnunet(scan, (17, 20, 30))
    assert resampled.min() >= scan.min()
    assert resampled.max() <= scan.max()


def test_an_equal_shape_changes_nothing():
    assert np.array_equal(resample_like_nnunet(SCAN, SCAN.shape, coarse=0), SCAN)


def test_turned_and_packed_scans_are_read_as_they_are():
    scan, new = scan_of((20, 11, 12)), (13, 14, 9)
    expected = resample_like_nnunet(np.ascontiguousarray(scan[::-1, :, ::-1]), new)
    assert np.array_equal(resample_like_nnunet(scan[::-1, :, ::-1], new), expected)
    packed = PackedVoxels.of(np.ascontiguousarray(scan[::-1, :, ::-1]))
    slabs = list(resampled_slabs(packed, new))
    assert len(slabs) == -(-new[0] // SLICES_AT_ONCE)
    assert np.array_equal(np.concatenate(slabs), expected)


@pytest.mark.parametrize("old", [1, 2, 5, 30, 64, 101])
def test_the_nearest_voxel_is_that_of_scipy_where_two_are_equally_near(old):
    """Rounding decides there."""
    for new in range(1, 200):
        centres = old / new * (np.arange(new) + 0.5) - 0.5
        expected = ndimage.map_coordinates(np.arange(old), [centres], order=0, mode="nearest")
        assert np.array_equal(nearest_voxels(old, new), expected)


def test_of_two_voxels_the_middle_one_of_49_gets_the_lower_and_that_of_51_the_upper():
    assert nearest_voxels(2, 49)[24] == 0
    assert nearest_voxels(2, 51)[25] == 1
