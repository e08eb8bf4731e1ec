"""Numbers and the picture of a segmentation."""

from __future__ import annotations

import csv
import io

import numpy as np
import pytest
from made_scans import AXIAL, LPS
from matplotlib.image import imread

from continual_segment.clinic.preview import first_organs, preview, seen
from continual_segment.clinic.statistics import as_csv, organ_statistics
from continual_segment.files.organ_colours import label_colour
from continual_segment.organs import find_organ
from continual_segment.segmentation.explanation import OrganQuality
from continual_segment.segmentation.nested import layers
from continual_segment.volume import Grid, LabelMap, Volume

NAMES = ("aorta", "aorta_arch", "kidney_left", "spleen")
AORTA, ARCH, KIDNEY, SPLEEN = IDS = [find_organ(name).id for name in NAMES]
GRID = Grid((20, 30, 40), np.diag([2.0, 2.5, 4.0, 1.0]))


@pytest.fixture
def labels():
    voxels = np.zeros(GRID.shape, np.uint16)
    voxels[2:10, 5:9, 5:9] = AORTA
    voxels[8:10, 5:9, 5:9] = ARCH
    voxels[12:16, 20:24, 30:38] = KIDNEY
    return LabelMap(voxels, GRID, dict(zip(IDS, NAMES, strict=True)))


def test_volume_and_hounsfield_units_of_every_organ_wholes_with_their_parts(labels):
    scan = Volume(np.random.default_rng(0).normal(40, 20, GRID.shape).astype(np.float32), GRID)
    quality = OrganQuality("kidney_left", 1.0, 0.91, 0.2, 0.05, {"base": 1.0}, ("right",))
    rows = {row["organ"]: row for row in organ_statistics(scan, layers(labels), [quality])}
    assert list(rows) == sorted(NAMES, key=lambda name: find_organ(name).id)
    whole = np.isin(labels.voxels, [AORTA, ARCH])
    assert rows["aorta"]["volume_ml"] == pytest.approx(whole.sum() * 20 / 1000)
    assert rows["aorta"]["mean_hu"] == pytest.approx(scan.voxels[whole].mean(), abs=0.01)
    assert rows["aorta"]["deviation_hu"] == pytest.approx(scan.voxels[whole].std(), abs=0.01)
    assert rows["aorta_arch"]["volume_ml"] == pytest.approx(2 * 16 * 20 / 1000)
    assert rows["kidney_left"]["mean_score"] == 0.91
    assert (rows["spleen"]["volume_ml"], rows["spleen"]["mean_hu"]) == (0.0, None)
    table = list(csv.DictReader(io.StringIO(as_csv(list(rows.values())))))
    assert [row["organ"] for row in table] == list(rows)
    assert table[1]["touches_edge"] in ("", "right")


def test_the_picture_shows_the_first_organ_on_every_ray_head_up_and_right_on_the_left(labels):
    labels.voxels[4, 12, 6] = SPLEEN  # in front of the aorta, and to its right as x grows
    front = seen(first_organs(labels, axis=1))
    assert front.shape == (20, 40, 4)
    for (z, x), organ in {(3, 6): AORTA, (9, 6): ARCH, (4, 6): SPLEEN, (13, 33): KIDNEY}.items():
        colour = front[19 - z, 39 - x, :3]
        np.testing.assert_allclose(
            colour / colour.max(), np.divide(label_colour(organ), max(label_colour(organ)))
        )
    assert front[19 - 4, 39 - 20, 3] == 0
    left = seen(first_organs(labels, axis=2))
    assert left[19 - 3, 29 - 6, 3] > 0


def test_nothing_found_and_many_organs_are_drawn_too():
    scan = Volume.from_array(AXIAL.voxels.transpose(2, 1, 0), LPS @ AXIAL.affine)
    empty = LabelMap(np.zeros(AXIAL.shape, np.uint16), scan.grid, {AORTA: "aorta"})
    assert preview(scan, empty).startswith(b"\x89PNG")


@pytest.mark.parametrize("shape", [(3, 40, 40), (200, 20, 20), (30, 30, 30)])
def test_a_thin_or_a_long_scan_makes_no_giant_picture(shape):
    grid = Grid(shape, np.diag([5.0, 5.0, 5.0, 1.0]))
    labels = LabelMap(np.ones(shape, np.uint8), grid, {1: "spleen"})
    height, width, _ = imread(io.BytesIO(preview(Volume(np.zeros(shape, np.int16), grid), labels))).shape
    assert 300 < height <= 610
    assert 250 < width < 1200
