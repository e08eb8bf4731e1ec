"""Positions rounded by an archive: an even scan stays as it is, an uneven one is still recognised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_scans import AXIAL, read_header, turned, write_series

from continual_segment.errors import ScanError
from continual_segment.files import read_source
from continual_segment.files.rounding import without_rounding

UP = np.array([0.0, 0.0, 1.0])
LONG = turned([1, 0, 0], [0, 1, 0], [0, 0, 1.25], shape=(154, 20, 20))


def write_rounded(folder, made, decimals):
    for path in write_series(folder, made):
        data = read_header(path)
        data.ImagePositionPatient = [round(float(part), decimals) for part in data.ImagePositionPatient]
        data.save_as(path)
    return folder


def positions(heights):
    return np.stack([np.full(len(heights), -249.51171875), np.full(len(heights), -390.5), heights], axis=1)


def test_slices_at_rounded_positions_keep_the_grid_of_the_scan(tmp_path):
    source = read_source(write_rounded(tmp_path, LONG, 1))
    assert source.notes == ()
    assert source.volume.voxels.shape[0] == 154
    assert source.volume.grid.spacing_mm[0] == pytest.approx(1.25, abs=1e-4)
    np.testing.assert_array_equal(source.volume.voxels, LONG.voxels[:, ::-1, ::-1])


def test_of_rounded_positions_a_missing_slice_alone_is_interpolated(tmp_path):
    source = read_source(write_rounded(tmp_path, LONG.without(40, 41), 1))
    assert source.volume.voxels.shape[0] == 154
    assert "152 were interpolated to 154 at 1.25 mm" in source.notes[0]
    kept = np.delete(source.volume.voxels, (40, 41), axis=0)
    np.testing.assert_array_equal(kept, np.delete(LONG.voxels, (40, 41), axis=0)[:, ::-1, ::-1])


def test_rounded_positions_of_an_oblique_scan_are_no_tilt(tmp_path):
    angle = np.radians(20)
    normal = np.array([0, np.sin(angle), np.cos(angle)])
    made = turned([1, 0, 0], [0, np.cos(angle), -np.sin(angle)], 1.25 * normal, shape=(60, 20, 20))
    source = read_source(write_rounded(tmp_path, made, 1))
    assert (source.notes, source.volume.voxels.shape) == ((), (60, 20, 20))


@pytest.mark.parametrize("step", [0.6, 0.625, 1.25, 2.5, 3.1416])
@pytest.mark.parametrize("decimals", [1, 2])
def test_rounding_is_recognised_at_any_distance(step, decimals):
    true = positions(step * np.arange(200) - 123.456)
    found = without_rounding(np.column_stack([true[:, :2], true[:, 2].round(decimals)]), UP)
    np.testing.assert_allclose(found[:, 2], true[:, 2], atol=10.0**-decimals)
    np.testing.assert_allclose(np.diff(found[:, 2]), step, atol=1e-3)


@pytest.mark.parametrize(
    "heights",
    [
        np.delete(np.arange(0.0, 100.0), 50),  # whole numbers, one of them missing
        np.array([0.0, 5, 10, 17, 22, 27]),  # a table that moved by 2 mm
        np.array([0.0, 1.2, 2.6, 3.7, 5.0]),  # 0.2 mm off at one decimal
    ],
)
def test_what_rounding_does_not_explain_stays_as_it_is(heights):
    uneven = positions(heights)
    np.testing.assert_array_equal(without_rounding(uneven, UP), uneven)


def test_exact_positions_stay_as_they_are():
    exact = positions(3.1 * np.arange(26) - 38.75)
    assert without_rounding(exact, UP) is exact


def test_uneven_slices_are_still_recognised(tmp_path):
    write_series(tmp_path, AXIAL.without(*range(1, 10, 2)))
    assert "3.10 to 6.20 mm" in read_source(tmp_path).notes[0]
    with pytest.raises(ScanError, match="10 slices are missing"):
        read_source(write_rounded(tmp_path / "b", replace(LONG, keep=(*range(60), *range(70, 154))), 1))
