"""Volume and LabelMap: what the rooms hand each other.

Everywhere in this package voxels lie as (z, y, x) with axes that run as close as possible to right,
anterior, superior (RAS): x to the patient's right, y to the front, z to the head. A file keeps its own
orientation in `Grid.orientation`, so that what is written back lies in memory as the original did.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np


@dataclass(frozen=True, eq=False)
class Grid:
    """Where voxels lie in the patient."""

    shape: tuple[int, int, int]
    """(z, y, x)"""
    affine: np.ndarray
    """4x4, as in NIfTI: index (x, y, z) -> millimetres right, anterior, superior."""
    orientation: str = "RAS"
    """Axis codes of the file the grid came from."""

    @property
    def spacing_mm(self) -> tuple[float, float, float]:
        """Voxel size (z, y, x)."""
        x, y, z = np.linalg.norm(self.affine[:3, :3], axis=0)
        return float(z), float(y), float(x)

    @property
    def voxel_ml(self) -> float:
        """Volume of a voxel, also where slices are shifted against each other."""
        return abs(float(np.linalg.det(self.affine[:3, :3]))) / 1000

    @property
    def diagonal_mm(self) -> float:
        return float(np.linalg.norm(np.multiply(self.shape, self.spacing_mm)))

    def with_shape(self, shape: tuple[int, int, int]) -> Grid:
        """The same box of the patient cut into another number of voxels."""
        scale = np.divide(self.shape, shape)[::-1]  # (x, y, z)
        change = np.diag([*scale, 1.0])
        change[:3, 3] = scale / 2 - 0.5  # outer faces stay where they are, not voxel centres
        return replace(self, shape=shape, affine=self.affine @ change)

    def with_spacing(self, spacing_mm: tuple[float, float, float]) -> Grid:
        """The same box with voxels as near to this size as a whole number of them allows."""
        shape = np.maximum(1, np.round(np.multiply(self.shape, self.spacing_mm) / spacing_mm)).astype(int)
        return self.with_shape((int(shape[0]), int(shape[1]), int(shape[2])))

    def same_place(self, other: Grid, tolerance_mm: float = 0.01) -> bool:
        """Whether both grids have the same voxels at the same places, up to rounding in a header."""
        if self.shape != other.shape:
            return False
        x, y, z = np.array(self.shape[::-1]) - 1
        corners = np.array([[i, j, k, 1] for i in (0, x) for j in (0, y) for k in (0, z)]).T
        return float(np.abs(self.affine @ corners - other.affine @ corners).max()) <= tolerance_mm

    def slice_shifts(self, other: Grid, tolerance_voxels: float = 0.02) -> np.ndarray | None:
        """Index (y, x) in this grid of the first voxel of every slice of another: (z, 2).

        None where the other grid has other planes or pixels, not the same ones shifted in their planes.
        """
        to_own = np.linalg.inv(self.affine) @ other.affine  # index (x, y, z) -> index (x, y, z)
        shifted = np.eye(4)
        shifted[:2, 2:] = to_own[:2, 2:]
        off = np.abs(to_own - shifted) @ [*other.shape[::-1], 1]
        if other.shape[0] != self.shape[0] or off.max() > tolerance_voxels:
            return None
        first, per_slice = to_own[[1, 0], 3], to_own[[1, 0], 2]
        return first + np.arange(other.shape[0])[:, None] * per_slice


@dataclass(frozen=True, eq=False)
class Volume:
    """A CT scan in Hounsfield units."""

    voxels: np.ndarray
    grid: Grid
    scanned: np.ndarray | None = None
    """bool (z, y, x): voxels that were scanned; None: all. The others fill the box of a straightened scan."""

    def slices(self, part: slice) -> np.ndarray:
        """Some slices, for whoever does not need all at a time; those of packed scans are unpacked."""
        return self.voxels[part]

    def scanned_slices(self, part: slice) -> np.ndarray | None:
        """Which voxels of some slices were scanned; None: all."""
        return None if self.scanned is None else self.scanned[part]


@dataclass(frozen=True, eq=False)
class LabelMap:
    """One organ id per voxel; 0 is background."""

    voxels: np.ndarray
    grid: Grid
    names: dict[int, str] = field(default_factory=dict)
    """Organ name of every id that may occur."""
