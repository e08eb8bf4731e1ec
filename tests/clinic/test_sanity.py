"""What can hardly be a CT is stopped with its numbers before any work; honest scans pass."""

from __future__ import annotations

import numpy as np
import pytest
from made_scans import AXIAL, LPS

from continual_segment.clinic.sanity import check_scan, look_at
from continual_segment.errors import ScanError
from continual_segment.files import Source
from continual_segment.volume import Grid, Volume


@pytest.fixture(scope="module")
def honest():
    scan = Volume.from_array(AXIAL.voxels.transpose(2, 1, 0), LPS @ AXIAL.affine)
    return Source(scan, scan.grid)


def changed(source, voxels=None, spacing_mm=None, modality=""):
    grid = source.volume.grid
    if spacing_mm:
        grid = Grid(grid.shape, np.diag([*spacing_mm[::-1], 1.0]))
    voxels = source.volume.voxels if voxels is None else voxels
    return Source(Volume(voxels, grid), grid, modality)


def test_an_honest_scan_passes_and_its_peaks_are_those_of_air_and_soft_tissue(honest):
    sanity = look_at(honest)
    assert sanity.problems == ()
    assert sanity.facts["air_peak_hu"] == pytest.approx(-1000, abs=15)
    assert sanity.facts["soft_tissue_peak_hu"] == pytest.approx(0, abs=60)
    assert sanity.facts["spacing_mm"] == [3.1, 2.1, 1.9]


def test_a_crop_without_air_and_metal_pass_with_a_word(honest):
    voxels = np.random.default_rng(0).normal(40, 30, honest.volume.voxels.shape)
    voxels[0, 0, 0] = 20_000
    sanity = look_at(changed(honest, voxels.astype(np.float32)))
    assert sanity.problems == ()
    assert "hardly any air" in sanity.warnings[0]


WRONG = {
    "another modality": (lambda s: changed(s, modality="MR"), "The images are MR; CT"),
    "an electron density map": (lambda s: changed(s, modality="CT in ED"), "The images are CT in ED"),
    "an 8-bit picture": (
        lambda s: changed(s, ((np.clip(s.volume.voxels, -160, 240) + 160) / 400 * 255).astype(np.uint8)),
        "from 0 to 255; .* an 8-bit picture",
    ),
    "values without offset": (lambda s: changed(s, s.volume.voxels + 1100), "stored values without the"),
    "values from 0 to 1": (
        lambda s: changed(s, s.volume.voxels / np.float32(2000)),
        "too little",
    ),
    "halved values": (lambda s: changed(s, s.volume.voxels // 2), r"Air seems to be at -50\d HU"),
    "one value": (lambda s: changed(s, np.zeros_like(s.volume.voxels)), "Every voxel is 0"),
    "no patient": (
        lambda s: changed(s, np.where(s.volume.voxels > -200, 900, -1000)),
        r"0\.0 % of the voxels are between -200 and 200 HU",
    ),
    "metres": (lambda s: changed(s, spacing_mm=(0.016, 0.016, 0.016)), "The scan covers .* mm"),
    "a tiny voxel": (lambda s: changed(s, spacing_mm=(16.0, 16.0, 0.01)), "Voxels are 16 x 16 x 0.01 mm"),
    "a giant": (lambda s: changed(s, spacing_mm=(300.0, 16.0, 16.0)), "20 to 3000 mm a side was expected"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_ct_is_stopped_unless_forced(name, honest):
    make, sentence = WRONG[name]
    wrong = make(honest)
    with pytest.raises(ScanError, match=rf"scan\.nii: .*{sentence}.*give --force"):
        check_scan("scan.nii", wrong)
    assert check_scan("scan.nii", wrong, force=True).problems
