"""NIfTI in and out.

Decides what of the many things a NIfTI file may be is a CT scan or a label map: one volume of three axes
whose place in the patient is known. Voxels are turned to (z, y, x) near RAS on the way in and back on the way
out. A compressed file is unpacked whole, so that its checksum tells a damaged one from a sound one.

In:  .nii or .nii.gz, NIfTI-1 or NIfTI-2
Out: Volume or LabelMap; files written are NIfTI-1, the same bytes for the same content
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path

import nibabel as nib
import numpy as np
from nibabel.filebasedimages import ImageFileError
from nibabel.orientations import (
    apply_orientation,
    axcodes2ornt,
    inv_ornt_aff,
    io_orientation,
    ornt2axcodes,
    ornt_transform,
)
from nibabel.spatialimages import HeaderDataError

from continual_segment.errors import ScanError
from continual_segment.files.atomic import write_bytes
from continual_segment.files.label_table import label_table, read_label_table
from continual_segment.volume import Grid, LabelMap, Volume

COMPRESSION_LEVEL = 3  # half the time of gzip's own default for a few per cent more bytes
RAS = np.array([[0, 1], [1, 1], [2, 1]])  # nibabel's form of an orientation: per file axis, (axis, direction)
EXTENSION_CODE = 0  # "unknown" in the standard; what other writers of label tables use
LARGEST_LABEL = 65535
SMALLEST_DETERMINANT = 1e-3  # of axes of length 1: nearer to flat than this no scanner tilts


def read_scan(path: Path) -> Volume:
    image, voxels = _load(path)
    if voxels.dtype.kind == "f" and not np.isfinite(voxels).all():
        bad = int(np.count_nonzero(~np.isfinite(voxels)))
        raise ScanError(
            f"{path}: {bad} voxels are NaN or infinite. Set them to a value such as air, -1000 HU."
        )
    voxels, grid = _to_canonical(voxels, image.affine)
    return Volume(_as_hounsfield(voxels), grid)


def read_labels(path: Path) -> LabelMap:
    image, voxels = _load(path)
    voxels, grid = _to_canonical(_as_labels(path, voxels), image.affine)
    return LabelMap(voxels, grid, _names(image))


def write_scan(path: Path, volume: Volume) -> None:
    _save(path, _image(_as_hounsfield(volume.voxels), volume.grid))


def write_labels(path: Path, label_map: LabelMap) -> None:
    image = _image(_as_labels(path, label_map.voxels), label_map.grid)
    if label_map.names:
        table = label_table(label_map.names)
        image.header.extensions.append(nib.nifti1.Nifti1Extension(EXTENSION_CODE, table))
    _save(path, image)


def _load(path: Path) -> tuple[nib.Nifti1Image, np.ndarray]:
    """The image and its voxels (x, y, z) as the file stores them, scaled by its slope."""
    data = _unpack(path)
    header_size = {int.from_bytes(data[:4], "little"), int.from_bytes(data[:4], "big")}
    if not header_size & {348, 540}:
        raise ScanError(f"{path}: this is no NIfTI file, whatever its name says. Convert it to NIfTI.")
    kind = nib.Nifti1Image if 348 in header_size else nib.Nifti2Image
    try:
        image = kind.from_bytes(data)
        _check_header(path, image)
        voxels = np.asanyarray(image.dataobj)
    except (HeaderDataError, ImageFileError, ValueError, OSError) as error:
        raise ScanError(
            f"{path}: the NIfTI file is damaged or cut short ({error}). Copy or convert it again."
        ) from error
    return image, voxels.reshape(voxels.shape[:3])


def _check_header(path: Path, image: nib.Nifti1Image) -> None:
    shape = image.shape
    if len(shape) < 3 or any(length != 1 for length in shape[3:]):
        raise ScanError(
            f"{path}: the file has {len(shape)} axes, {_by(shape)}; one volume of three axes was expected. "
            "Save each volume in a file of its own."
        )
    if 0 in shape:
        raise ScanError(f"{path}: an axis has no voxels, {_by(shape)}. Export the scan again.")
    if image.get_data_dtype().kind not in "iufb":
        raise ScanError(
            f"{path}: voxels are {image.get_data_dtype()}, colours or complex numbers; "
            "plain numbers were expected. Export the scan as CT."
        )
    _check_affine(path, image.affine)


def _check_affine(path: Path, affine: np.ndarray) -> None:
    spacing_mm = np.linalg.norm(affine[:3, :3], axis=0)
    if not np.isfinite(affine).all() or (spacing_mm <= 0).any():
        raise ScanError(
            f"{path}: the voxel size in the header is {_by(spacing_mm.round(3))} mm; "
            "positive numbers were expected. Mend the header or export the scan again."
        )
    if abs(np.linalg.det(affine[:3, :3] / spacing_mm)) < SMALLEST_DETERMINANT:
        raise ScanError(
            f"{path}: the header's affine is singular, so its axes span no volume. "
            "Mend the header or export the scan again."
        )


def _by(numbers: Iterable[object]) -> str:
    return " x ".join(map(str, numbers))


def _unpack(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ScanError(f"{path}: there is no such file. Check the path.") from None
    except OSError as error:
        raise ScanError(f"{path}: the file cannot be read ({error.strerror}). Check its rights.") from error
    if data[:2] != b"\x1f\x8b":  # judged by content: .nii.gz files that are not compressed do occur
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ScanError(
            f"{path}: the gzip file is truncated or damaged. Copy or download it again."
        ) from error


def _to_canonical(voxels: np.ndarray, affine: np.ndarray) -> tuple[np.ndarray, Grid]:
    """Flip and swap the axes to RAS, without resampling, and lay them out as (z, y, x)."""
    orientation = io_orientation(affine)
    turned = apply_orientation(voxels, orientation).T
    turned_affine = affine @ inv_ornt_aff(orientation, voxels.shape)
    grid = Grid(turned.shape, turned_affine, "".join(ornt2axcodes(orientation)))
    return np.ascontiguousarray(turned), grid


def _image(voxels: np.ndarray, grid: Grid) -> nib.Nifti1Image:
    back = ornt_transform(RAS, axcodes2ornt(grid.orientation))
    turned = apply_orientation(voxels.T, back)
    affine = grid.affine @ inv_ornt_aff(back, voxels.T.shape)
    image = nib.Nifti1Image(turned, affine)
    image.set_sform(affine, code="scanner")
    image.set_qform(affine, code="scanner")  # for readers that know only this one; it cannot hold a shear
    image.header.set_xyzt_units("mm", "sec")
    return image


def _save(path: Path, image: nib.Nifti1Image) -> None:
    data = image.to_bytes()
    if path.name.endswith(".gz"):
        data = gzip.compress(data, COMPRESSION_LEVEL, mtime=0)  # no clock: equal content, equal bytes
    write_bytes(path, data)


def _as_hounsfield(voxels: np.ndarray) -> np.ndarray:
    """int16 where the numbers allow it, float32 otherwise."""
    if voxels.dtype.kind == "f" or voxels.dtype == np.int16:
        return voxels.astype(np.float32 if voxels.dtype.kind == "f" else np.int16, copy=False)
    limits = np.iinfo(np.int16)
    fits = voxels.size == 0 or (voxels.min() >= limits.min and voxels.max() <= limits.max)
    return voxels.astype(np.int16 if fits else np.float32)


def _as_labels(path: Path, voxels: np.ndarray) -> np.ndarray:
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
    return voxels.astype(np.uint8 if highest <= 255 else np.uint16)


def _names(image: nib.Nifti1Image) -> dict[int, str]:
    for extension in image.header.extensions:
        names = read_label_table(extension.get_content())
        if names:
            return names
    return {}
