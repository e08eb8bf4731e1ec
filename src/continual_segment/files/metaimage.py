"""MetaImage in: a header of `Key = value` lines, voxels after it (.mha) or in a file beside it (.mhd).

In:  .mha or .mhd, voxels raw or zlib-compressed
Out: Volume or LabelMap
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import numpy as np

from continual_segment.errors import ScanError
from continual_segment.files.grids import (
    LPS_TO_RAS,
    check_affine,
    check_shape,
    check_size,
    labels_of,
    read_bytes,
    scan_of,
)
from continual_segment.names import printable
from continual_segment.volume import LabelMap, Volume

TYPES = {
    "MET_CHAR": "i1",
    "MET_UCHAR": "u1",
    "MET_SHORT": "i2",
    "MET_USHORT": "u2",
    "MET_INT": "i4",
    "MET_UINT": "u4",
    "MET_LONG": "i8",
    "MET_ULONG": "u8",
    "MET_LONG_LONG": "i8",
    "MET_ULONG_LONG": "u8",
    "MET_FLOAT": "f4",
    "MET_DOUBLE": "f8",
}
LONGEST_HEADER = 64 * 1024
HEADER_SIZE = re.compile(r"-1|[0-9]{1,9}")
LAST_KEY = "ElementDataFile"  # its line ends the header


def read_scan(path: Path) -> Volume:
    return scan_of(path, *_load(path))


def read_labels(path: Path) -> LabelMap:
    return labels_of(path, *_load(path), names={})


def _load(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Voxels (x, y, z) and the affine to our millimetres."""
    data = read_bytes(path)
    header, end = _header(path, data)
    try:
        shape = tuple(int(length) for length in header["DimSize"].split())
        check_shape(path, shape)
        kind = _type(path, header)
        affine = _affine(path, header)
    except (KeyError, ValueError) as error:
        raise ScanError(
            f"{path}: the MetaImage header lacks or garbles {error}. Export the scan again."
        ) from error
    check_size(path, shape, kind.itemsize)
    voxels = np.frombuffer(_voxel_bytes(path, header, data[end:], shape, kind), kind)
    return voxels.reshape(shape[:3], order="F").astype(kind.newbyteorder("="), copy=False), affine


def _header(path: Path, data: bytes) -> tuple[dict[str, str], int]:
    """Keys and values, and where the voxels start."""
    header: dict[str, str] = {}
    start = 0
    while LAST_KEY not in header:
        end = data.find(b"\n", start, LONGEST_HEADER)
        key, equals, value = data[start:end].decode("latin-1").partition("=")
        if end < 0 or not equals:
            raise ScanError(f"{path}: this is no MetaImage file, or it is cut short. Export the scan again.")
        header[key.strip()] = value.strip()
        start = end + 1
    return header, start


def _type(path: Path, header: dict[str, str]) -> np.dtype:
    name = header["ElementType"].removesuffix("_ARRAY")
    channels = header.get("ElementNumberOfChannels", "1")
    if name not in TYPES or channels != "1":
        raise ScanError(
            f"{path}: voxels are {printable(name)} with {printable(channels)} channels; one plain number "
            "each was expected. Export the scan as CT."
        )
    order = header.get("BinaryDataByteOrderMSB", header.get("ElementByteOrderMSB", "False"))
    return np.dtype(TYPES[name]).newbyteorder(">" if order.lower() == "true" else "<")


def _affine(path: Path, header: dict[str, str]) -> np.ndarray:
    directions = _numbers(header, ("TransformMatrix", "Rotation", "Orientation"), "1 0 0 0 1 0 0 0 1")
    spacing_mm = _numbers(header, ("ElementSpacing", "ElementSize"), "1 1 1")
    affine = np.eye(4)
    affine[:3, :3] = np.array(directions).reshape(3, 3).T * np.array(spacing_mm)[:3]  # file: axis by axis
    affine[:3, 3] = _numbers(header, ("Offset", "Position", "Origin"), "0 0 0")[:3]
    check_affine(path, affine)
    return LPS_TO_RAS @ affine


def _numbers(header: dict[str, str], keys: tuple[str, ...], default: str) -> list[float]:
    text = next((header[key] for key in keys if key in header), default)
    return [float(word) for word in text.split()]


def _voxel_bytes(
    path: Path, header: dict[str, str], rest: bytes, shape: tuple[int, ...], kind: np.dtype
) -> bytes:
    place = header[LAST_KEY]
    if header.get("BinaryData", "True").lower() == "false":
        raise ScanError(f"{path}: the voxels are stored as text, which is not read. Save as binary .mha.")
    if place.upper() != "LOCAL":
        if place.upper().startswith("LIST") or "%" in place or Path(place).name != place:
            raise ScanError(
                f"{path}: the voxels are in {place!r}; one file beside the header was expected. Save as .mha."
            )
        rest = read_bytes(path.with_name(place))
    expected = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    rest = rest[max(0, _header_size(path, header)) :]
    if header.get("CompressedData", "False").lower() == "true":
        rest = _unpack(path, rest, expected)
    elif header.get("HeaderSize") == "-1":
        rest = rest[-expected:]
    if len(rest) < expected:
        raise ScanError(
            f"{path}: the file is cut short: {len(rest)} bytes of voxels where {expected} were expected. "
            "Copy or export it again."
        )
    return rest[:expected]


def _header_size(path: Path, header: dict[str, str]) -> int:
    """Bytes before the voxels in their file; -1: the voxels are at its end."""
    text = header.get("HeaderSize", "0")
    if not HEADER_SIZE.fullmatch(text):
        raise ScanError(f"{path}: the header has a HeaderSize of {printable(text)}. Export the scan again.")
    return int(text)


def _unpack(path: Path, data: bytes, expected: int) -> bytes:
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(data, expected)
    except zlib.error as error:
        raise ScanError(f"{path}: the compressed voxels are damaged. Copy or export it again.") from error
