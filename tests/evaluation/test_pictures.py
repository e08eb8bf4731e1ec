"""Pictures of scans and label maps."""

import numpy as np
import pytest

from continual_segment.evaluation.pictures import (
    best_centre,
    coloured,
    plane_aspect,
    plane_slice,
    three_planes,
)
from continual_segment.organs import find_organ
from continual_segment.volume import Grid, LabelMap, Volume

GRID = Grid((6, 8, 10), np.diag([2.0, 3.0, 4.0, 1.0]))


@pytest.fixture
def labels():
    voxels = np.zeros(GRID.shape, np.uint8)
    voxels[1:5, 2:4, 3:5] = 1
    voxels[4, 3, 4] = 2
    return LabelMap(voxels, GRID, {1: "liver", 2: "spleen"})


def test_slices_lie_as_a_radiologist_sees_them():
    voxels = np.zeros(GRID.shape)
    voxels[5, 7, 9] = 1  # head, front, right
    centre = (5, 7, 9)
    assert plane_slice(voxels, centre, "axial")[0, 0] == 1  # right on the left, front at the top
    assert plane_slice(voxels, centre, "coronal")[0, 0] == 1  # right on the left, head at the top
    assert plane_slice(voxels, centre, "sagittal")[0, 0] == 1  # head at the top


def test_the_slice_with_most_organs_is_shown(labels):
    assert best_centre(labels) == (4, 3, 4)


def test_pixels_keep_the_shape_they_have_in_the_patient():
    assert plane_aspect(GRID.spacing_mm, "axial") == 3 / 2
    assert plane_aspect(GRID.spacing_mm, "coronal") == 4 / 2
    assert plane_aspect(GRID.spacing_mm, "sagittal") == 4 / 3


def test_an_organ_has_one_colour_whatever_its_number_in_the_file(labels):
    renumbered = LabelMap(
        np.where(labels.voxels == 1, 2, np.where(labels.voxels == 2, 1, 0)), GRID, {2: "liver", 1: "spleen"}
    )
    one, other = (coloured(each, (4, 3, 4), "axial") for each in (labels, renumbered))
    np.testing.assert_array_equal(one, other)
    assert len(np.unique(one.reshape(-1, 4), axis=0)) == 3  # two organs and see-through background


def test_a_picture_has_a_column_per_map_and_is_a_png(labels):
    scan = Volume(np.zeros(GRID.shape, np.int16), GRID)
    truth = LabelMap(labels.voxels * 0 + 1, GRID, {1: find_organ("liver").name})
    picture = three_planes(scan, [("scan", None), ("truth", truth), ("found", labels)])
    assert picture.startswith(b"\x89PNG")
