"""Crop, shape and coarse axis are those of stock nnU-Net 2.8.1, whose numbers are written down here.

benchmarks/nnunet_parity.py compares with nnU-Net itself.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage

from continual_segment.data.nnunet_preparation import (
    SLICES_AT_ONCE,
    coarse_axis,
    nonzero_box,
    nonzero_mask,
    put_back,
    resampled_shape,
)

sparse = arrays(np.int16, st.tuples(*[st.integers(1, 7)] * 3), elements=st.sampled_from([0, 0, 0, -1000, 40]))


@settings(max_examples=100, deadline=None)
@given(scan=sparse)
def test_filling_holes_before_the_box_or_after_it_is_the_same(scan):
    filled = ndimage.binary_fill_holes(scan != 0)
    box = nonzero_box(scan)
    if filled.any():
        assert box == ndimage.find_objects(filled.astype(int))[0]
    assert np.array_equal(nonzero_mask(scan[box]), filled[box])


def test_the_box_of_a_long_scan_is_found_over_all_its_slices():
    scan = np.zeros((3 * SLICES_AT_ONCE, 9, 8), np.float32)
    scan[5, 2, 6] = scan[-2, 7, 3] = -1.0
    assert nonzero_box(scan) == (slice(5, 3 * SLICES_AT_ONCE - 1), slice(2, 8), slice(3, 7))


def test_a_scan_of_zeros_is_not_cropped():
    assert nonzero_box(np.zeros((4, 5, 6))) == (slice(0, 4), slice(0, 5), slice(0, 6))


def test_water_inside_a_body_is_in_the_mask_and_an_open_hole_is_not():
    crop = np.ones((5, 5, 5), np.float32)
    crop[2, 2, 2] = 0
    crop[:, 4, 4] = 0
    mask = nonzero_mask(crop)
    assert mask[2, 2, 2]
    assert not mask[:, 4, 4].any()


def test_labels_return_to_their_place_in_the_scan():
    scan = np.zeros((6, 7, 8), np.int16)
    scan[1:4, 2:7, 3:5] = 1
    box = nonzero_box(scan)
    labels = np.full(scan[box].shape, 3, np.uint8)
    whole = put_back(labels, box, scan.shape)
    assert whole.dtype == np.uint8
    assert np.array_equal(whole, 3 * scan)
    assert put_back(whole, nonzero_box(whole + 1), scan.shape) is whole


@pytest.mark.parametrize(
    ("shape", "spacing", "new", "expected"),
    [
        ((101, 103, 7), (0.5, 0.5, 3.0), (1.0, 1.0, 2.0), (50, 52, 10)),  # 50.5, 51.5 and 10.5
        ((512, 512, 97), (0.7, 0.7, 5.0), (1.5, 1.5, 1.5), (239, 239, 323)),
        ((9, 9, 9), (1.5, 1.5, 1.5), (1.0, 1.0, 3.0), (14, 14, 4)),
        ((1, 50, 50), (0.4, 1.0, 1.0), (1.0, 1.0, 1.0), (1, 50, 50)),  # nnU-Net fails at 0
    ],
)
def test_halves_are_rounded_to_even(shape, spacing, new, expected):
    assert resampled_shape(shape, spacing, new) == expected


@pytest.mark.parametrize(
    ("spacing", "new", "separate", "expected"),
    [
        ((1, 1, 1), (1.5, 1.5, 1.5), None, None),
        ((5, 0.8, 0.8), (1.5, 1.5, 1.5), None, 0),
        ((1.5, 1.5, 1.5), (0.8, 5, 0.8), None, 1),
        ((5, 0.8, 0.8), (0.8, 0.8, 5), None, 0),  # the old voxels decide first
        ((3, 1, 1), (3, 1, 1), None, None),  # the ratio has to be more than 3
        ((0.24, 1.25, 1.25), (1, 1, 1), None, None),  # two coarse axes
        ((0.24, 1.25, 1.25), (5, 1, 1), None, None),  # and the new voxels are not asked
        ((2, 1, 1), (1, 1, 1), True, 0),
        ((2, 2, 1), (1, 1, 1), True, None),
        ((5, 0.8, 0.8), (5, 0.8, 0.8), False, None),
    ],
)
def test_the_coarse_axis(spacing, new, separate, expected):
    assert coarse_axis(spacing, new, separate) == expected
