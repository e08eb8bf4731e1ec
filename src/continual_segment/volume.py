"""Volume, LabelMap and Grid: voxels with a place in the patient.

Inside this package voxels are indexed (z, y, x) along axes nearest to right, anterior, superior (RAS): x
grows to the patient's right, y to the front, z to the head. `Grid` refuses any other orientation, so an array
in another one cannot be taken for RAS. What comes from or goes to other libraries (`from_array`, `to_array`,
`mask`) is indexed (i, j, k) like the data of a nibabel image, in the orientation of the original scan, which
`Grid.orientation` keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from continual_segment.errors import ContinualSegmentError
from continual_segment.names import did_you_mean
from continual_segment.organs import canonical_name, wholes_of

if TYPE_CHECKING:
    from typing import TypeAlias

    from nibabel.spatialimages import SpatialImage

    Scan: TypeAlias = "str | Path | Volume | SpatialImage | SitkImage"

OBLIQUE_ENOUGH = 0.3
"""Cosine of an axis and the patient's: up to here, which axis is nearest is a matter of taste."""


class SitkImage(Protocol):
    """The methods used of a SimpleITK image; SimpleITK itself is optional."""

    def GetSpacing(self) -> tuple[float, ...]: ...
    def GetOrigin(self) -> tuple[float, ...]: ...
    def GetDirection(self) -> tuple[float, ...]: ...


class SliceSource(Protocol):
    """An array of three axes, or anything that returns slices along its first axis."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, part: slice, /) -> np.ndarray: ...


@dataclass(frozen=True, eq=False)
class Grid:
    """Where voxels are in the patient."""

    shape: tuple[int, int, int]
    """(z, y, x)"""
    affine: np.ndarray
    """4x4, as in NIfTI: index (x, y, z) -> millimetres right, anterior, superior."""
    orientation: str = "RAS"
    """Axis codes of the file the grid came from."""

    def __post_init__(self) -> None:
        affine = np.asarray(self.affine, dtype=np.float64)
        if affine.shape != (4, 4) or not np.isfinite(affine).all() or not np.linalg.det(affine[:3, :3]):
            raise ValueError(f"An affine is 4x4, finite and not singular, not {self.affine}.")
        if not _is_nearest_to_ras(affine[:3, :3]):
            raise ValueError(
                "The axes (x, y, z) of a Grid are those nearest to right, anterior, superior. "
                "Volume.from_array brings voxels of any orientation there."
            )

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
class VoxelGrid:
    """Voxels (z, y, x) on a grid; what Volume and LabelMap have in common."""

    voxels: np.ndarray
    """(z, y, x)"""
    grid: Grid

    def __post_init__(self) -> None:
        if tuple(self.voxels.shape) != tuple(self.grid.shape):
            found, expected = tuple(self.voxels.shape), tuple(self.grid.shape)
            raise ValueError(f"Voxels are {found}, their grid {expected} (z, y, x).")

    def to_array(self) -> np.ndarray:
        """Voxels indexed (i, j, k) in the orientation of the original scan."""
        return _in_own_orientation(self.voxels, self.grid)[0]

    def to_nibabel(self) -> SpatialImage:
        from continual_segment.files.arrays import nibabel_image

        return nibabel_image(*_in_own_orientation(self.voxels, self.grid))

    def to_sitk(self) -> Any:
        """A SimpleITK image; SimpleITK must be installed."""
        from continual_segment.files.arrays import sitk_image

        return sitk_image(*_in_own_orientation(self.voxels, self.grid))


@dataclass(frozen=True, eq=False)
class Volume(VoxelGrid):
    """A CT scan in Hounsfield units."""

    scanned: np.ndarray | None = None
    """bool (z, y, x): voxels that were scanned; None: all. The others fill the box of a straightened scan."""

    @classmethod
    def read(cls, path: str | Path) -> Volume:
        """A NIfTI, NRRD or MetaImage file, or a DICOM series as folder or zip."""
        from continual_segment.files import read_scan

        return read_scan(path)

    @classmethod
    def from_array(cls, voxels: np.ndarray, affine: np.ndarray) -> Volume:
        """Hounsfield units indexed (i, j, k), in any orientation.

        `affine` is 4x4 as in NIfTI: index (i, j, k) -> millimetres right, anterior, superior.
        """
        from continual_segment.files.arrays import volume_from_array

        return volume_from_array(voxels, affine)

    @classmethod
    def from_nibabel(cls, image: SpatialImage) -> Volume:
        """A nibabel image in Hounsfield units, in any orientation."""
        return cls.from_array(np.asanyarray(image.dataobj), np.asarray(image.affine))

    @classmethod
    def from_sitk(cls, image: SitkImage) -> Volume:
        """A SimpleITK image in Hounsfield units, in any orientation."""
        from continual_segment.files.arrays import array_of_sitk

        return cls.from_array(*array_of_sitk(image))

    @classmethod
    def of(cls, scan: Scan) -> Volume:
        """A scan as a path, a nibabel image, a SimpleITK image or a Volume."""
        if isinstance(scan, Volume):
            return scan
        if isinstance(scan, (str, Path)):
            return cls.read(scan)
        if hasattr(scan, "GetDirection"):
            return cls.from_sitk(scan)
        if hasattr(scan, "dataobj"):
            return cls.from_nibabel(scan)
        raise TypeError(
            "A scan is a path, a nibabel image, a SimpleITK image or a Volume, not "
            f"{type(scan).__name__}. Volume.from_array takes an array with its affine."
        )

    def write(self, path: str | Path) -> None:
        """Write a .nii.gz file, complete or not at all."""
        from continual_segment.files import write_scan

        write_scan(path, self)

    def slices(self, part: slice) -> np.ndarray:
        """Some slices; those of packed scans are unpacked."""
        return self.voxels[part]

    def scanned_slices(self, part: slice) -> np.ndarray | None:
        """Which voxels of some slices were scanned; None: all."""
        return None if self.scanned is None else self.scanned[part]


@dataclass(frozen=True)
class VolumeSlices:
    """The slices of a scan as a SliceSource."""

    volume: Volume

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.volume.grid.shape

    def __getitem__(self, part: slice, /) -> np.ndarray:
        return self.volume.slices(part)


@dataclass(frozen=True, eq=False)
class LabelMap(VoxelGrid):
    """One organ id per voxel; 0 is background. Parts of an organ are drawn over it."""

    names: dict[int, str] = field(default_factory=dict)
    """Organ name of every id that may occur."""

    @cached_property
    def organs(self) -> tuple[str, ...]:
        """Names of the organs that have at least one voxel, by id."""
        found = np.flatnonzero(np.bincount(self.voxels.ravel()))
        return tuple(self.names[label] for label in found.tolist() if label in self.names)

    def mask(self, organ: str, parts: bool = True) -> np.ndarray:
        """Voxels of one organ: bool, indexed (i, j, k) in the orientation of the original scan.

        With `parts`, voxels of organs within it belong to it, such as those of the aortic arch to the aorta.
        """
        wanted = canonical_name(organ)
        known = {label: canonical_name(name) for label, name in self.names.items()}
        if wanted not in known.values():
            there = ", ".join(known.values()) or "no organ"
            hint = did_you_mean(wanted, known.values())
            raise ContinualSegmentError(f"This label map has no {organ!r}. {hint}It has {there}.")
        labels = [
            label for label, name in known.items() if name == wanted or (parts and wanted in wholes_of(name))
        ]
        return _in_own_orientation(np.isin(self.voxels, labels), self.grid)[0]

    def write(self, path: str | Path) -> None:
        """Write a .nii.gz file with the organ names in its header, complete or not at all."""
        from continual_segment.files import write_labels

        write_labels(path, self)


def _is_nearest_to_ras(axes: np.ndarray) -> bool:
    """Whether x, y, z each run along the patient axis they are nearest to, in its direction."""
    left, _, right = np.linalg.svd(axes / np.linalg.norm(axes, axis=0))
    rotation = left @ right
    cosines = np.diag(rotation)
    nearest = np.abs(rotation).argmax(axis=0)
    return bool((cosines > 0).all() and (cosines.min() > OBLIQUE_ENOUGH or (nearest == range(3)).all()))


def _in_own_orientation(voxels: np.ndarray, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    from continual_segment.files.grids import from_canonical

    return from_canonical(voxels, grid)
