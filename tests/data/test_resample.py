"""Laws of resampling: what must hold whatever the shapes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.nn import functional

from continual_segment.data.resample import resample_labels, resample_scan
from continual_segment.volume import Grid, LabelMap, Volume

shapes = st.tuples(*[st.integers(1, 40)] * 3)


def grid_of(shape):
    return Grid(shape, np.array([[0.8, 0, 0, -30], [0, 0.8, 0, 12], [0, 0, 3.0, 100], [0, 0, 0, 1]], float))


def ellipsoid(grid, centre_mm, radii_mm):
    offsets = places_mm(grid) - np.array(centre_mm)
    return ((offsets / np.array(radii_mm)) ** 2).sum(axis=-1) <= 1


def places_mm(grid):
    z, y, x = np.indices(grid.shape)
    return np.stack([x, y, z], axis=-1) @ grid.affine[:3, :3].T + grid.affine[:3, 3]


def centroid_mm(mask, grid):
    return places_mm(grid)[mask].mean(axis=0)


def middle_mm(grid, offset_mm):
    return places_mm(grid).reshape(-1, 3).mean(axis=0) + np.array(offset_mm)


def test_equal_shapes_change_nothing():
    grid = grid_of((5, 6, 7))
    voxels = np.random.default_rng(0).integers(-1000, 1000, grid.shape).astype(np.int16)
    labels = np.random.default_rng(1).integers(0, 5, grid.shape).astype(np.uint8)
    assert np.array_equal(resample_scan(Volume(voxels, grid), grid).voxels, voxels)
    assert np.array_equal(resample_labels(LabelMap(labels, grid), grid).voxels, labels)


@settings(max_examples=25, deadline=None)
@given(old=shapes, new=shapes, value=st.integers(-1024, 3000))
def test_a_constant_scan_stays_constant(old, new, value):
    grid = grid_of(old)
    resampled = resample_scan(Volume(np.full(old, value, np.int16), grid), grid.with_shape(new))
    assert resampled.voxels.shape == new
    assert resampled.voxels.dtype == np.float32
    np.testing.assert_allclose(resampled.voxels, value, atol=0.01)


@settings(max_examples=25, deadline=None)
@given(
    labels=arrays(np.uint8, st.tuples(*[st.integers(1, 9)] * 3), elements=st.sampled_from([0, 2, 7, 200])),
    new=shapes,
)
def test_no_label_appears_that_was_not_there(labels, new):
    grid = grid_of(labels.shape)
    resampled = resample_labels(LabelMap(labels, grid, {2: "liver"}), grid.with_shape(new))
    assert resampled.voxels.shape == new
    assert resampled.voxels.dtype == np.uint8
    assert resampled.names == {2: "liver"}
    assert set(np.unique(resampled.voxels)) <= set(np.unique(labels))


@pytest.mark.parametrize("shape", [(20, 30, 36), (41, 57, 64), (70, 96, 100)])
def test_an_organ_stays_where_it_is_in_millimetres(shape):
    grid = grid_of((40, 60, 72))
    new = grid.with_shape(shape)
    mask = ellipsoid(grid, middle_mm(grid, [3.1, -2.3, 4.7]), [14, 12, 30])
    there = resample_labels(LabelMap(mask.astype(np.uint8), grid), new)
    back = resample_labels(there, grid)
    spacing = np.array(grid.spacing_mm[::-1])
    assert np.all(abs(centroid_mm(there.voxels > 0, new) - centroid_mm(mask, grid)) < 0.1 * spacing)
    assert np.all(abs(centroid_mm(back.voxels > 0, grid) - centroid_mm(mask, grid)) < 0.1 * spacing)
    overlap = 2 * (back.voxels[mask] > 0).sum() / (mask.sum() + (back.voxels > 0).sum())
    assert overlap > 0.93


@pytest.mark.parametrize("shape", [(20, 30, 36), (41, 57, 64), (70, 96, 100)])
def test_a_bright_ball_in_a_scan_stays_where_it_is(shape):
    grid = grid_of((40, 60, 72))
    new = grid.with_shape(shape)
    ball = ellipsoid(grid, middle_mm(grid, [3.1, -2.3, 4.7]), [14, 12, 30]).astype(np.float32)
    resampled = resample_scan(Volume(ball, grid), new).voxels
    centre = (places_mm(new) * resampled[..., None]).sum(axis=(0, 1, 2)) / resampled.sum()
    assert np.all(abs(centre - centroid_mm(ball > 0, grid)) < 0.1 * np.array(grid.spacing_mm[::-1]))


def test_left_stays_left_of_right():
    grid = grid_of((12, 24, 40))
    labels = np.zeros(grid.shape, np.uint8)
    labels[ellipsoid(grid, middle_mm(grid, [-9, 0, 0]), [5, 6, 12])] = 1
    labels[ellipsoid(grid, middle_mm(grid, [9, 0, 0]), [5, 6, 12])] = 2
    for shape in [(6, 10, 17), (30, 50, 77)]:
        resampled = resample_labels(LabelMap(labels, grid), grid.with_shape(shape)).voxels
        assert np.nonzero(resampled == 1)[2].max() < np.nonzero(resampled == 2)[2].min()


def test_three_thin_organs_together_win_against_background_only_one_by_one():
    """Shares 1/4 each: none is larger than another, so the lowest id has the voxel and no id is made up."""
    grid = grid_of((1, 1, 4))
    labels = LabelMap(np.array([[[0, 3, 5, 9]]], np.uint8), grid)
    assert resample_labels(labels, grid.with_shape((1, 1, 1))).voxels.item() == 3
    labels = LabelMap(np.array([[[0, 0, 5, 9]]], np.uint8), grid)
    assert resample_labels(labels, grid.with_shape((1, 1, 1))).voxels.item() == 0


def test_down_sampling_averages_instead_of_picking():
    grid = grid_of((1, 1, 64))
    noise = np.random.default_rng(0).normal(0, 100, grid.shape).astype(np.float32)
    resampled = resample_scan(Volume(noise, grid), grid.with_shape((1, 1, 8))).voxels
    assert resampled.std() < 60


@pytest.mark.parametrize("new", [(90, 7, 30), (40, 20, 9), (75, 11, 20)])
def test_slab_by_slab_is_the_whole_at_once(new):
    """In-plane bicubic of all slices, then linear between them."""
    grid = grid_of((75, 12, 20))
    voxels = np.random.default_rng(0).integers(-1000, 1000, grid.shape).astype(np.int16)
    whole = torch.from_numpy(voxels.astype(np.float32))
    for size, mode in ((new[1:], "bicubic"), ((new[0], new[2]), "bilinear")):
        whole = functional.interpolate(whole[:, None], size=size, mode=mode, antialias=True)[:, 0]
        whole = whole.transpose(0, 1)
    resampled = resample_scan(Volume(voxels, grid), grid.with_shape(new)).voxels
    np.testing.assert_allclose(resampled, whole, atol=0.01)
    rounded = resample_scan(Volume(voxels, grid), grid.with_shape(new), np.int16).voxels
    assert rounded.dtype == np.int16
    assert np.abs(rounded - resampled).max() <= 0.5


def test_slabs_leave_no_seam():
    """A grid taller than one slab gives the same slices as its flat neighbour."""
    grid = grid_of((50, 12, 12))
    labels = np.zeros(grid.shape, np.uint8)
    labels[:, 3:9, 4:10] = 1
    resampled = resample_labels(LabelMap(labels, grid), grid.with_shape((100, 20, 20))).voxels
    assert np.all(resampled == resampled[:1])
