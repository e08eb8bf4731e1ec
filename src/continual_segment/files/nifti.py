"""NIfTI in and out.

Decides what of the many things a NIfTI file may be is a CT scan or a label map: one volume of three axes
whose place in the patient is known. Voxels are turned to (z, y, x) near RAS on the way in and back on the way
out. A compressed file is unpacked whole, so that its checksum is checked, but no more of it is kept in memory
than its header speaks of: a few megabytes can unpack to any size.

In:  .nii or .nii.gz, NIfTI-1 or NIfTI-2
Out: Volume or LabelMap; files written are NIfTI-1, the same bytes for the same content
"""

from __future__ import annotations

import gzip
import logging
import math
import struct
import zlib
from pathlib import Path

import nibabel as nib
import numpy as np
from nibabel.filebasedimages import ImageFileError
from nibabel.spatialimages import HeaderDataError
from nibabel.wrapstruct import WrapStructError

from continual_segment.errors import ScanError
from continual_segment.files.atomic import atomic_path
from continual_segment.files.grids import (
    LARGEST_FILE_BYTES,
    as_hounsfield,
    as_labels,
    check_affine,
    check_shape,
    check_size,
    from_canonical,
    labels_of,
    read_bytes,
    scan_of,
)
from continual_segment.files.label_table import label_table, read_label_table
from continual_segment.volume import Grid, LabelMap, Volume

logging.getLogger("nibabel.global").setLevel(logging.CRITICAL)  # our errors report the same

COMPRESSION_LEVEL = 3  # half the time of gzip's own default for a few per cent more bytes
BROKEN = (
    HeaderDataError,
    ImageFileError,
    WrapStructError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    OverflowError,
    OSError,
    EOFError,
    struct.error,
)
"""What nibabel raises on damaged files."""
GZIP_MARK = b"\x1f\x8b"
GZIP_WINDOW = zlib.MAX_WBITS | 16  # with the header and checksum of gzip
HEADER_BYTES = 540  # of NIfTI-2, the longer one
HEADER_PACKED_WITHIN = 2**20
PIECE_BYTES = 2**24
EXTENSION_CODE = 0  # "unknown" in the standard; what other writers of label tables use


def read_scan(path: Path) -> Volume:
    image, voxels = _load(path)
    return scan_of(path, voxels, image.affine)


def read_labels(path: Path) -> LabelMap:
    image, voxels = _load(path)
    return labels_of(path, voxels, image.affine, _names(image))


def write_scan(path: Path, volume: Volume) -> None:
    _save(path, _image(as_hounsfield(volume.voxels), volume.grid))


def write_labels(path: Path, label_map: LabelMap) -> None:
    image = _image(as_labels(path, label_map.voxels), label_map.grid)
    if label_map.names:
        table = label_table(label_map.names)
        image.header.extensions.append(nib.nifti1.Nifti1Extension(EXTENSION_CODE, table))
    _save(path, image)


def _load(path: Path) -> tuple[nib.Nifti1Image, np.ndarray]:
    """The image and its voxels (x, y, z) as the file stores them, scaled by its slope."""
    data = read_bytes(path)
    is_packed = data[:2] == GZIP_MARK  # by content: .nii.gz files that are not compressed do occur
    start = _unpack(path, data[:HEADER_PACKED_WITHIN], HEADER_BYTES, whole=False) if is_packed else data
    kind = _kind_of(path, start)
    try:
        if is_packed:
            data = _unpack(path, data, _bytes_expected(path, kind, start))
        image = kind.from_bytes(data)
        _check_header(path, image, len(data))
        voxels = np.asanyarray(image.dataobj)
    except BROKEN as error:
        reason = " ".join(str(error).split())
        raise ScanError(
            f"{path}: the NIfTI file is damaged or cut short ({reason}). Copy or convert it again."
        ) from error
    return image, voxels.reshape(voxels.shape[:3])


def _kind_of(path: Path, start: bytes) -> type[nib.Nifti1Image]:
    """NIfTI-1 or NIfTI-2, by the first bytes of a file."""
    header_size = {int.from_bytes(start[:4], "little"), int.from_bytes(start[:4], "big")}
    if not header_size & {348, 540}:
        raise ScanError(f"{path}: this is no NIfTI file in spite of its name. Convert it to NIfTI.")
    return nib.Nifti1Image if 348 in header_size else nib.Nifti2Image


def _bytes_expected(path: Path, kind: type[nib.Nifti1Image], start: bytes) -> int:
    """Of a whole file: header, extensions and voxels."""
    header = kind.header_class(start[: kind.header_class.sizeof_hdr])
    shape, itemsize = header.get_data_shape(), header.get_data_dtype().itemsize
    check_shape(path, shape)
    check_size(path, shape, itemsize)
    offset = min(max(0, header.get_data_offset()), LARGEST_FILE_BYTES)
    return offset + math.prod(map(int, shape)) * itemsize


def _check_header(path: Path, image: nib.Nifti1Image, length: int) -> None:
    check_shape(path, image.shape)
    if image.get_data_dtype().kind not in "iufb":
        raise ScanError(
            f"{path}: voxels are {image.get_data_dtype()}, colours or complex numbers; "
            "plain numbers were expected. Export the scan as CT."
        )
    expected = math.prod(map(int, image.shape)) * image.get_data_dtype().itemsize
    if expected > length:  # before memory is allocated: a damaged header can name any size
        raise ScanError(
            f"{path}: the NIfTI file is damaged or cut short: {length} bytes where its header speaks of "
            f"{expected}. Copy or convert it again."
        )
    check_affine(path, image.affine)


def _unpack(path: Path, data: bytes, most: int, whole: bool = True) -> bytes:
    """The first bytes of a gzip file; if `whole`, the others are unpacked as well, for the checksum."""
    try:
        return _first_unpacked(data, most, whole)
    except (EOFError, zlib.error) as error:
        raise ScanError(
            f"{path}: the gzip file is truncated or damaged. Copy or download it again."
        ) from error


def _first_unpacked(data: bytes, most: int, whole: bool) -> bytes:
    """As `gzip.decompress`: of any number of members, with zeros after each."""
    kept: list[bytes] = []
    while data and (most or whole):
        member = zlib.decompressobj(GZIP_WINDOW)
        while not member.eof and (most or whole):
            piece = member.decompress(data, most or PIECE_BYTES)  # 0 would mean: without a limit
            if not piece and not member.eof:
                raise EOFError
            data = member.unconsumed_tail
            if most:
                kept.append(piece)
                most -= len(piece)
        data = member.unused_data.lstrip(b"\0")
    return b"".join(kept)


def _image(voxels: np.ndarray, grid: Grid) -> nib.Nifti1Image:
    turned, affine = from_canonical(voxels, grid)
    image = nib.Nifti1Image(turned, affine)
    image.set_sform(affine, code="scanner")
    image.set_qform(affine, code="scanner")  # for readers that know only this one; it cannot hold a shear
    image.header.set_xyzt_units("mm", "sec")
    return image


def _save(path: Path, image: nib.Nifti1Image) -> None:
    with atomic_path(path) as unfinished, unfinished.open("wb") as stream:
        if not path.name.endswith(".gz"):
            image.to_stream(stream)
            return
        # slice by slice; no clock and no name: equal content, equal bytes
        with gzip.GzipFile("", "wb", COMPRESSION_LEVEL, stream, mtime=0) as packed:
            image.to_stream(packed)


def _names(image: nib.Nifti1Image) -> dict[int, str]:
    for extension in image.header.extensions:
        names = read_label_table(extension.get_content())
        if names:
            return names
    return {}
