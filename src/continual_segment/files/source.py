"""A scan as it came: its voxels, where they came from, and what had to be corrected to read them.

`read_scan` gives a volume and is enough for training data, which is checked elsewhere. Results for a hospital
need more: the slices that a DICOM segmentation refers to, the modality, and a word on everything that was
changed. A gantry tilt that a converter left in a NIfTI header as a shear is taken out here, too. `grid` and
`slices` are the grids for labels then: voxels that were scanned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from continual_segment.errors import ScanError
from continual_segment.files.dicom.headers import text
from continual_segment.files.dicom.read import read_series
from continual_segment.files.dicom.series import Series
from continual_segment.files.grids import plane_of
from continual_segment.files.stack import AIR_HU, Stack, without_tilt
from continual_segment.volume import Grid, LabelMap, Volume

RIGHT_ANGLE = 0.005  # cosine between two axes up to which they count as perpendicular: 0.3 degrees


@dataclass(frozen=True, eq=False)
class Source:
    """A scan ready to be segmented, and all that results need to know of it."""

    volume: Volume
    """Upright; knows which of its voxels were scanned."""
    grid: Grid
    """The grid of label maps: the volume's own, or that of the file it was straightened from."""
    modality: str = ""
    """As DICOM names it; empty where the file does not name it."""
    notes: tuple[str, ...] = ()
    """What was changed on the way, in sentences."""
    series: Series | None = None
    """The DICOM slices it was made of."""
    slices: Grid | None = None
    """Where these slices were scanned, if they had to be moved; the grid of labels in DICOM results."""
    original: Volume | None = None
    """The scan on `grid`, where that is not the volume's own."""

    @property
    def on_grid(self) -> Volume:
        """The scan on the grid of label maps."""
        return self.original or self.volume


def source_of_series(
    path: Path, wanted: str | None = None, force: bool = False, pick: str | None = None
) -> Source:
    scan = read_series(path, wanted, force, pick)
    volume, notes = without_padding(scan.volume)
    modality = scan.series.modality
    rescale = text(scan.series.header, "RescaleType")
    if rescale and rescale not in ("HU", "US"):
        modality = f"{modality} in {rescale}"
    return Source(volume, volume.grid, modality, (*scan.notes, *notes), scan.series, scan.slices)


def source_of_volume(path: Path, volume: Volume) -> Source:
    """From a file that holds a whole volume."""
    volume, padded = without_padding(volume)
    upright, sheared = without_shear(path, volume)
    original = None if upright is volume else volume
    return Source(upright, volume.grid, notes=(*padded, *sheared), original=original)


def without_padding(volume: Volume) -> tuple[Volume, tuple[str, ...]]:
    """No tissue is below -1024 HU: scanners and converters mark with -2000 or -3024 what they did not see."""
    lowest = volume.voxels.min()
    if lowest >= AIR_HU:
        return volume, ()
    note = f"Voxels below {AIR_HU} HU (down to {lowest:g}) are padding; they were set to {AIR_HU}."
    return replace(volume, voxels=np.maximum(volume.voxels, volume.voxels.dtype.type(AIR_HU))), (note,)


def without_shear(path: Path, volume: Volume) -> tuple[Volume, tuple[str, ...]]:
    """Right angles between the axes, where slices were shifted against each other."""
    x, y, z = (column / np.linalg.norm(column) for column in volume.grid.affine[:3, :3].T)
    if max(abs(x @ y), abs(x @ z), abs(y @ z)) <= RIGHT_ANGLE:
        return volume, ()
    if abs(x @ y) > RIGHT_ANGLE:
        raise ScanError(
            f"{path}: rows and columns of the slices are not at right angles (cosine {x @ y:.3f}), as "
            "no scanner makes it. Resample it to a rectangular grid first."
        )
    if volume.grid.shape[0] < 2:
        return volume, ()
    spacing = volume.grid.spacing_mm
    positions = (volume.grid.affine @ _first_voxels(volume.grid.shape[0]))[:3].T
    stack, notes = without_tilt(Stack(volume.voxels, positions, x, y, (spacing[1], spacing[2])))
    grid = Grid(stack.voxels.shape, stack.affine(), volume.grid.orientation)
    return Volume(stack.voxels, grid, stack.scanned), notes


def _first_voxels(slices: int) -> np.ndarray:
    return np.array([[0, 0, index, 1] for index in range(slices)]).T


def labels_on(labels: LabelMap, grid: Grid) -> LabelMap:
    """The label map on another grid: every voxel takes the label at its middle, 0 outside."""
    if labels.grid.same_place(grid):
        return labels
    x, y, z, corner = grid.affine[:3].T
    corners = (corner + index * z for index in range(grid.shape[0]))
    planes = [plane_of(labels.voxels, labels.grid, each, x, y, grid.shape[1:]) for each in corners]
    return LabelMap(np.stack(planes), grid, labels.names)
