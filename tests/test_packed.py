"""Voxels at rest are the voxels that were given, in less memory."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_segment.packed import SLICES_A_PACKET, PackedVolume, PackedVoxels
from continual_segment.volume import Grid, Volume


def make_voxels(slices, dtype=np.int16):
    return np.random.default_rng(slices).integers(-1024, 3000, (slices, 5, 7)).astype(dtype)


def make_volume(slices):
    return Volume(make_voxels(slices), Grid((slices, 5, 7), np.diag([1.0, 2.0, 3.0, 1.0])))


@settings(deadline=None)
@given(slices=st.integers(1, 30), data=st.data())
def test_any_slices_come_out_as_they_went_in(slices, data):
    voxels = make_voxels(slices)
    start = data.draw(st.integers(0, slices))
    part = slice(start, data.draw(st.integers(start, slices + 3)))
    found = PackedVoxels.of(voxels)[part]
    assert found.dtype == voxels.dtype
    np.testing.assert_array_equal(found, voxels[part])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float16, np.float32])
def test_voxels_of_any_kind_are_packed(dtype):
    voxels = make_voxels(2 * SLICES_A_PACKET + 1, dtype)
    np.testing.assert_array_equal(PackedVoxels.of(voxels)[:], voxels)


def test_slices_can_be_read_while_more_are_appended():
    voxels, packed = make_voxels(20), PackedVoxels((5, 7), np.int16)
    for count, plane in enumerate(voxels, start=1):
        packed.append(plane)
        assert packed.shape == (count, 5, 7)
        np.testing.assert_array_equal(packed[:], voxels[:count])


def test_slices_are_not_unpacked_in_steps():
    with pytest.raises(ValueError, match="2"):
        PackedVoxels.of(make_voxels(9))[::2]


def test_a_packed_scan_is_used_as_any_other():
    volume = make_volume(19)
    packed = PackedVolume.compress(volume)
    np.testing.assert_array_equal(packed.voxels, volume.voxels)
    np.testing.assert_array_equal(packed.slices(slice(7, 12)), volume.slices(slice(7, 12)))
    assert packed.grid is volume.grid
    assert PackedVolume.compress(packed) is packed


def test_a_packed_scan_goes_from_process_to_process():
    packed = pickle.loads(pickle.dumps(PackedVolume.compress(make_volume(19))))
    np.testing.assert_array_equal(packed.voxels, make_voxels(19))
    assert packed.grid.spacing_mm == (3.0, 2.0, 1.0)


def test_labels_take_next_to_no_memory():
    labels = np.zeros((40, 100, 100), np.uint16)
    labels[10:30, 20:60, 30:80] = 7
    assert len(pickle.dumps(PackedVoxels.of(labels))) < labels.nbytes / 50
