"""A DICOM file, on disk or in a zip, and the values of its header.

Nothing is trusted: every value may be missing, of another kind or nonsense.
"""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import IO, Any

import numpy as np
from pydicom import Dataset, dcmread
from pydicom.errors import BytesLengthException, InvalidDicomError
from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

BROKEN = (
    BytesLengthException,
    InvalidDicomError,
    AttributeError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    NotImplementedError,
    RuntimeError,
    OverflowError,
    EOFError,
    OSError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
    MemoryError,
)
"""What pydicom and its decoders raise on damaged files: there is no common base."""


@dataclass(frozen=True)
class DicomFile:
    """A file on disk or in a zip that may be DICOM."""

    name: str
    """For sentences."""
    open: Callable[[], IO[bytes]]

    @property
    def folder(self) -> str:
        """Where its neighbours are, on disk or in the zip."""
        return str(PurePath(self.name).parent)

    def read(self, pixels: bool) -> Dataset:
        """The header, and the pixels if requested; raises one of BROKEN."""
        with warnings.catch_warnings(), self.open() as file:
            warnings.simplefilter("ignore")  # of odd values: what matters is checked where it is used
            data = dcmread(file, stop_before_pixels=not pixels, force=True)
        if "TransferSyntaxUID" not in data.file_meta:
            data.file_meta.TransferSyntaxUID = _uncompressed(*data.original_encoding)
        return data


def _uncompressed(implicit: bool, little_endian: bool) -> str:
    """The transfer syntax of a file that names none: files without a preamble have no place for it."""
    if implicit:
        return ImplicitVRLittleEndian
    return ExplicitVRLittleEndian if little_endian else ExplicitVRBigEndian


def file_at(path: Path) -> DicomFile:
    return DicomFile(str(path), lambda: path.open("rb"))


def gone(name: str) -> DicomFile:
    """In place of a file that was read: its name for sentences, without its content."""
    return DicomFile(name, io.BytesIO)


def text(header: Dataset, keyword: str) -> str:
    """A value as text; empty where there is none."""
    try:
        value = header.get(keyword)
    except BROKEN:
        return ""
    return "" if value is None else str(value).strip()


def words(header: Dataset, keyword: str) -> tuple[str, ...]:
    """A value of several parts, such as ImageType."""
    try:
        value: Any = header.get(keyword)
    except BROKEN:
        return ()
    if value is None or isinstance(value, str):
        return tuple((value or "").split("\\")) if value else ()
    return tuple(str(part) for part in value)


def numbers(header: Dataset, keyword: str, count: int) -> np.ndarray | None:
    """A value of so many finite numbers; None where it is missing or another kind of thing."""
    try:
        value: Any = header.get(keyword)
        found = np.atleast_1d(np.array(value, dtype=float)) if value is not None else np.empty(0)
    except BROKEN:
        return None
    return found if found.shape == (count,) and np.isfinite(found).all() else None


def number(header: Dataset, keyword: str, default: float) -> float:
    found = numbers(header, keyword, 1)
    return default if found is None else float(found[0])
