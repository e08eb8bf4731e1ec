"""What all formats share: turning voxels to (z, y, x) near RAS and back, and telling scans from junk."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from nibabel.affines import obliquity
from nibabel.orientations import (
    apply_orientation,
    axcodes2ornt,
    inv_ornt_aff,
    io_orientation,
    ornt2axcodes,
    ornt_transform,
)

from continual_segment.errors import ScanError
from continual_segment.volume import Grid, LabelMap, Volume

RAS = np.array([[0, 1], [1, 1], [2, 1]])  # nibabel's form of an orientation: per file axis, (axis, direction)
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])
"""DICOM, NRRD and MetaImage count millimetres to the left and back, NIfTI to the right and front."""
LARGEST_LABEL = 65535
LARGEST_FILE_BYTES = 64 * 2**30  # of voxels, unpacked: no CT has more; such a header is broken
SMALLEST_DETERMINANT = 1e-3  # of axes of length 1: nearer to flat than this no scanner tilts


def to_canonical(voxels: np.ndarray, affine: np.ndarray) -> tuple[np.ndarray, Grid]:
    """Flip and swap the axes (x, y, z) of a file to RAS, without resampling, and lay them as (z, y, x)."""
    orientation = io_orientation(affine)
    turned = apply_orientation(voxels, orientation).T
    return np.ascontiguousarray(turned), canonical_grid(voxels.shape, affine)


def canonical_grid(shape: tuple[int, ...], affine: np.ndarray) -> Grid:
    """The place of the voxels (x, y, z) of a file once they are turned."""
    orientation = io_orientation(affine)
    z, y, x = (shape[int(np.flatnonzero(orientation[:, 0] == axis)[0])] for axis in (2, 1, 0))
    return Grid((z, y, x), affine @ inv_ornt_aff(orientation, shape), "".join(ornt2axcodes(orientation)))


def from_canonical(voxels: np.ndarray, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """Voxels (x, y, z) in the order of the file that the grid came from, and their affine."""
    back = ornt_transform(RAS, axcodes2ornt(grid.orientation))
    return apply_orientation(voxels.T, back), grid.affine @ inv_ornt_aff(back, voxels.T.shape)


def scan_of(path: Path | str, voxels: np.ndarray, affine: np.ndarray) -> Volume:
    """A scan from what a file holds, axes (x, y, z)."""
    check_finite(path, voxels)
    turned, grid = to_canonical(voxels, affine)
    return Volume(as_hounsfield(turned), grid)


def labels_of(path: Path | str, voxels: np.ndarray, affine: np.ndarray, names: dict[int, str]) -> LabelMap:
    """A label map from what a file holds, axes (x, y, z)."""
    turned, grid = to_canonical(as_labels(path, voxels), affine)
    return LabelMap(turned, grid, names)


def read_bytes(path: Path, most: int = -1) -> bytes:
    """The bytes of a file, or the first of them."""
    try:
        with path.open("rb") as file:
            return file.read(most)
    except FileNotFoundError:
        raise ScanError(f"{path}: there is no such file. Check the path.") from None
    except OSError as error:
        raise ScanError(f"{path}: the file cannot be read ({error.strerror}). Check its rights.") from error


def check_finite(path: Path | str, voxels: np.ndarray) -> None:
    if voxels.dtype.kind == "f" and not np.isfinite(voxels).all():
        bad = int(np.count_nonzero(~np.isfinite(voxels)))
        raise ScanError(
            f"{path}: {bad} voxels are NaN or infinite. Set them to a value such as air, -1000 HU."
        )


def check_shape(path: Path | str, shape: tuple[int, ...]) -> None:
    if len(shape) < 3 or any(length != 1 for length in shape[3:]):
        raise ScanError(
            f"{path}: the file has {len(shape)} axes, {by(shape)}; one volume of three axes was expected. "
            "Save each volume in a file of its own."
        )
    if min(shape) < 1:
        raise ScanError(f"{path}: an axis has no voxels, {by(shape)}. Export the scan again.")


def check_size(path: Path | str, shape: Iterable[int], bytes_per_voxel: int) -> None:
    """Refuse sizes before memory is allocated: a damaged header can name any."""
    size = bytes_per_voxel
    for length in shape:
        size *= int(length)
    if size > LARGEST_FILE_BYTES:
        raise ScanError(
            f"{path}: the header has {by(shape)} voxels, {size / 2**30:.0f} GiB; no CT is so large. "
            "The file is damaged: copy or export it again."
        )


def check_affine(path: Path | str, affine: np.ndarray) -> None:
    spacing_mm = np.linalg.norm(affine[:3, :3], axis=0)
    if not np.isfinite(affine).all() or (spacing_mm <= 0).any():
        raise ScanError(
            f"{path}: the voxel size in the header is {by(spacing_mm.round(3))} mm; "
            "positive numbers were expected. Correct the header or export the scan again."
        )
    if abs(np.linalg.det(affine[:3, :3] / spacing_mm)) < SMALLEST_DETERMINANT:
        raise ScanError(
            f"{path}: the header's affine is singular, so its axes span no volume. "
            "Correct the header or export the scan again."
        )


def oblique_deg(grid: Grid) -> float:
    """The largest angle between an axis of the grid and the patient's nearest one."""
    return float(np.degrees(obliquity(grid.affine).max()))


def by(numbers: Iterable[object]) -> str:
    return " x ".join(map(str, numbers))


def as_hounsfield(voxels: np.ndarray) -> np.ndarray:
    """int16 where the numbers allow it, float32 otherwise."""
    if voxels.dtype.kind == "f" or voxels.dtype == np.int16:
        return voxels.astype(np.float32 if voxels.dtype.kind == "f" else np.int16, copy=False)
    limits = np.iinfo(np.int16)
    fits = voxels.size == 0 or (voxels.min() >= limits.min and voxels.max() <= limits.max)
    return voxels.astype(np.int16 if fits else np.float32)


def as_labels(path: Path | str, voxels: np.ndarray) -> np.ndarray:
    """uint8 or, above 255, uint16."""
    if voxels.dtype.kind == "f":
        broken = voxels != np.rint(voxels)  # true for NaN too
        if broken.any():
            raise ScanError(
                f"{path}: labels must be whole numbers, but {int(broken.sum())} voxels are not, such as "
                f"{voxels[broken][0]:g}. Resample label maps with nearest neighbour."
            )
    lowest, highest = voxels.min(), voxels.max()
    if lowest < 0 or highest > LARGEST_LABEL:
        raise ScanError(
            f"{path}: labels run from {lowest:g} to {highest:g}; 0 to {LARGEST_LABEL} was expected. "
            "Renumber them."
        )
    return voxels.astype(np.uint8 if highest <= 255 else np.uint16, copy=False)


def plane_of(
    voxels: np.ndarray,
    grid: Grid,
    corner_mm: np.ndarray,
    column_mm: np.ndarray,
    row_mm: np.ndarray,
    shape: tuple[int, ...],
) -> np.ndarray:
    """Values (row, column) nearest to corner + column * column_mm + row * row_mm in the patient (RAS)."""
    to_index = np.linalg.inv(grid.affine)
    start = to_index[:3, :3] @ corner_mm + to_index[:3, 3]
    across, down = to_index[:3, :3] @ column_mm, to_index[:3, :3] @ row_mm
    rows, columns = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    found, inside = [], np.ones(shape, bool)
    for axis in (2, 1, 0):  # affines count x, y, z; voxels are stored as z, y, x
        index = np.rint(start[axis] + down[axis] * rows + across[axis] * columns)
        length = grid.shape[2 - axis]
        inside &= (index >= 0) & (index < length)
        found.append(np.clip(index, 0, length - 1).astype(np.intp))
    return np.where(inside, voxels[found[0], found[1], found[2]], 0).astype(voxels.dtype)
