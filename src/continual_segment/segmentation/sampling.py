"""Positions of the voxels of a label map in the prepared scan.

A label map has the pixels and slices of the scan: either on the scan's own grid, or shifted within their
planes, as the slices of a tilted gantry before they are straightened.

In:  the scan, the shape of the prepared scan, the grid of the label map
Out: Sampling: per slice, the prepared voxels around every pixel, and the pixels that were scanned
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from continual_segment.data.nnunet_resample import nearest_voxels
from continual_segment.segmentation.padded_scan import WHOLE, Box
from continual_segment.volume import Grid, Volume


@dataclass(frozen=True, eq=False)
class Axis:
    """Linear interpolation along one axis: the two old voxels around the centre of each new one."""

    lower: np.ndarray
    upper: np.ndarray
    """Equal to `lower` where both centres coincide, or beyond the last voxel."""
    fraction: np.ndarray
    """Weight of `upper`; float32."""
    inside: slice
    """Which of all new voxels these are."""

    @classmethod
    def between(cls, old: int, new: int, part: slice | None = None) -> Axis:
        """The same extent divided into another number of voxels."""
        return cls.at((np.arange(new) + 0.5) * (old / new) - 0.5, old, part)

    @classmethod
    def at(cls, centres: np.ndarray, old: int, part: slice | None = None) -> Axis:
        """New voxels with their centres at these indices of old ones.

        Only `part` of the old voxels exist, and indices count from its first; new voxels outside are omitted.
        """
        start, stop, _ = (part or slice(None)).indices(old)
        covered = np.flatnonzero((centres >= start - 0.5) & (centres <= stop - 0.5))
        centres = np.clip(centres[covered] - start, 0, stop - start - 1)
        whole = np.rint(centres)
        centres = np.where(abs(centres - whole) < 1e-6, whole, centres)
        lower, upper = np.floor(centres).astype(np.int64), np.ceil(centres).astype(np.int64)
        inside = slice(int(covered[0]), int(covered[-1]) + 1) if len(covered) else slice(0, 0)
        return cls(lower, upper, (centres - lower).astype(np.float32), inside)

    @classmethod
    def repeated(cls, old: int, new: int) -> Axis:
        """The same extent divided into another number of voxels, each a copy of the nearest old one."""
        nearest = nearest_voxels(old, new)
        return cls(nearest, nearest, np.zeros(new, np.float32), slice(0, new))

    @cached_property
    def nearest(self) -> np.ndarray:
        return np.where(self.fraction < 0.5, self.lower, self.upper)


@dataclass(frozen=True, eq=False)
class Sampling:
    """The voxels of a label map in the prepared scan."""

    prepared: tuple[int, int, int]
    scan_shape: tuple[int, int, int]
    """Of the scan, which has the same extent as the prepared scan."""
    shape: tuple[int, int, int]
    """Of the label map."""
    shifts: np.ndarray | None = None
    """(z, 2): index (y, x) in the scan of each slice's first pixel; None: all 0."""
    scan: Volume | None = None
    """Source of the mask of scanned voxels of the label map; None: all were scanned."""
    coarse: int | None = None
    """Axis along which prepared voxels are repeated instead of interpolated."""

    @classmethod
    def of(cls, scan: Volume, prepared: tuple[int, int, int], grid: Grid) -> Sampling:
        """For the scan's own grid, or for a grid with the scan's slices, shifted within their planes."""
        if grid.same_place(scan.grid):
            return cls(prepared, scan.grid.shape, grid.shape, scan=scan)
        shifts = scan.grid.slice_shifts(grid)
        assert shifts is not None, "labels are made on the slices of the scan"
        return cls(prepared, scan.grid.shape, grid.shape, shifts)

    @cached_property
    def depth(self) -> Axis:
        between = Axis.repeated if self.coarse == 0 else Axis.between
        return between(self.prepared[0], self.scan_shape[0])

    def shift(self, z: int) -> tuple[float, float]:
        """Shift of a slice (y, x), in voxels of the scan."""
        return (0.0, 0.0) if self.shifts is None else (float(self.shifts[z, 0]), float(self.shifts[z, 1]))

    def across(self, z: int, box: Box = WHOLE) -> tuple[Axis, Axis]:
        """Lines and columns of a slice, limited to those in a `box` of the prepared slices."""
        y, x = (
            Axis.repeated(old, new)
            if axis == self.coarse
            else Axis.at((np.arange(new) + shift + 0.5) * (old / scan) - 0.5, old, part)
            for axis, new, shift, old, scan, part in zip(
                (1, 2),
                self.shape[1:],
                self.shift(z),
                self.prepared[1:],
                self.scan_shape[1:],
                box,
                strict=True,
            )
        )
        return y, x

    def scanned(self, z: int, part: Box) -> np.ndarray | None:
        """Which pixels in a part of a slice were scanned; None: all."""
        found = None if self.scan is None else self.scan.scanned_slices(slice(z, z + 1))
        return None if found is None else found[0][part]

    def nearest(self, voxels: np.ndarray) -> np.ndarray:
        """For every voxel of the label map the prepared voxel around its centre; 0 outside."""
        found = np.zeros(self.shape, voxels.dtype)
        for z, at in enumerate(self.depth.nearest):
            y, x = self.across(z)
            found[z, y.inside, x.inside] = voxels[at][np.ix_(y.nearest, x.nearest)]
        return found


def on_grid(scan: Volume, voxels: np.ndarray, grid: Grid) -> np.ndarray:
    """An array on the scan's grid as one on a grid with its slices, of the nearest voxels."""
    if grid.same_place(scan.grid):
        return voxels
    return Sampling.of(scan, scan.grid.shape, grid).nearest(voxels)


def nearest_neighbour(voxels: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The same extent divided into another number of voxels, each a copy of the one around its centre."""
    for axis, new in enumerate(shape):
        old = voxels.shape[axis]
        voxels = voxels.take(((np.arange(new) + 0.5) * old / new).astype(int), axis=axis)
    return voxels
