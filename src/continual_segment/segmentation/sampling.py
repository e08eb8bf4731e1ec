"""Where the voxels of a label map are among those of the prepared scan.

A label map has the pixels and slices of the scan: in the scan's own box, or shifted within their planes, as
those of a tilted gantry were before they were straightened.

In:  the scan, the shape of the prepared one, the grid of the label map
Out: Sampling: per slice, the prepared voxels around every pixel, and the pixels that were scanned
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from continual_segment.segmentation.rows import WHOLE, Box
from continual_segment.volume import Grid, Volume

Shape = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Axis:
    """Between which old voxels the middles of new ones are, along one axis."""

    lower: np.ndarray
    upper: np.ndarray
    """The same as `lower` where a new voxel's middle is an old one's, or beyond the last."""
    fraction: np.ndarray
    """Of the way from lower to upper; float32."""
    own: slice
    """Which of all new voxels these are."""

    @classmethod
    def between(cls, old: int, new: int, part: slice | None = None) -> Axis:
        """Of the same box cut into another number of voxels."""
        return cls.at((np.arange(new) + 0.5) * (old / new) - 0.5, old, part)

    @classmethod
    def at(cls, centres: np.ndarray, old: int, part: slice | None = None) -> Axis:
        """Of new voxels with their middles at these indices of old ones.

        `part` of the old voxels are at hand, counted from its first; new voxels beside it are left out.
        """
        start, stop, _ = (part or slice(None)).indices(old)
        inside = np.flatnonzero((centres >= start - 0.5) & (centres <= stop - 0.5))
        centres = np.clip(centres[inside] - start, 0, stop - start - 1)
        whole = np.rint(centres)
        centres = np.where(abs(centres - whole) < 1e-6, whole, centres)
        lower, upper = np.floor(centres).astype(np.int64), np.ceil(centres).astype(np.int64)
        own = slice(int(inside[0]), int(inside[-1]) + 1) if len(inside) else slice(0, 0)
        return cls(lower, upper, (centres - lower).astype(np.float32), own)

    @cached_property
    def nearest(self) -> np.ndarray:
        return np.where(self.fraction < 0.5, self.lower, self.upper)


@dataclass(frozen=True, eq=False)
class Sampling:
    """The voxels of a label map among the prepared ones."""

    prepared: Shape
    box: Shape
    """The scan's number of voxels in the box that was prepared."""
    shape: Shape
    """Of the label map."""
    shifts: np.ndarray | None = None
    """(z, 2): index (y, x) in the scan of each slice's first pixel; None: all 0."""
    scan: Volume | None = None
    """Knows which voxels of the label map were scanned; None: all."""

    @classmethod
    def of(cls, scan: Volume, prepared: Shape, grid: Grid) -> Sampling:
        """On the scan's own grid, or on one whose slices are the scan's, shifted."""
        if grid.same_place(scan.grid):
            return cls(prepared, scan.grid.shape, grid.shape, scan=scan)
        shifts = scan.grid.slice_shifts(grid)
        assert shifts is not None, "labels are made on the slices of the scan"
        return cls(prepared, scan.grid.shape, grid.shape, shifts)

    @cached_property
    def depth(self) -> Axis:
        return Axis.between(self.prepared[0], self.box[0])

    def shift(self, z: int) -> tuple[float, float]:
        """Of a slice (y, x), in the scan's voxels."""
        return (0.0, 0.0) if self.shifts is None else (float(self.shifts[z, 0]), float(self.shifts[z, 1]))

    def across(self, z: int, box: Box = WHOLE) -> tuple[Axis, Axis]:
        """Lines and columns of a slice, as far as they are in a `box` of the prepared ones."""
        y, x = (
            Axis.at((np.arange(new) + shift + 0.5) * (old / scan) - 0.5, old, part)
            for new, shift, old, scan, part in zip(
                self.shape[1:], self.shift(z), self.prepared[1:], self.box[1:], box, strict=True
            )
        )
        return y, x

    def scanned(self, z: int, part: Box) -> np.ndarray | None:
        """Which pixels of a part of a slice were scanned; None: all."""
        found = None if self.scan is None else self.scan.scanned_slices(slice(z, z + 1))
        return None if found is None else found[0][part]

    def nearest(self, voxels: np.ndarray) -> np.ndarray:
        """For every voxel of the label map the prepared one around its middle; 0 outside."""
        found = np.zeros(self.shape, voxels.dtype)
        for z, at in enumerate(self.depth.nearest):
            y, x = self.across(z)
            found[z, y.own, x.own] = voxels[at][np.ix_(y.nearest, x.nearest)]
        return found
