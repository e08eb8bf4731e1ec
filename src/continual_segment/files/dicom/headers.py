"""DICOM files of a folder or a zip, and what their headers say.

Nothing is trusted: every value may be missing, of another kind or nonsense.
"""

from __future__ import annotations

import io
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from pydicom import Dataset, dcmread
from pydicom.errors import BytesLengthException, InvalidDicomError

from continual_segment.errors import ScanError

MAGIC_AT, MAGIC = 128, b"DICM"
LARGEST_ZIP_BYTES = 64 * 2**30  # unpacked
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

    def read(self, pixels: bool) -> Dataset:
        with warnings.catch_warnings(), self.open() as file:
            warnings.simplefilter("ignore")  # of odd values: what matters is checked where it is used
            return dcmread(file, stop_before_pixels=not pixels, force=True)


def file_at(path: Path) -> DicomFile:
    return DicomFile(str(path), lambda: path.open("rb"))


def gone(name: str) -> DicomFile:
    """In place of a file that was read: its name for sentences, without its content."""
    return DicomFile(name, io.BytesIO)


def is_dicom(path: Path) -> bool:
    """Whether a file starts as DICOM files do or, from old machines without that start, is named so."""
    try:
        return _starts_as_dicom(path)
    except OSError:
        return False


def _starts_as_dicom(path: Path) -> bool:
    with path.open("rb") as file:
        return _looks_like_dicom(path.name, file.read(MAGIC_AT + 4))


def study_of(folder: Path) -> str | None:
    """The study that the first DICOM file of a folder belongs to; None where there is no such file."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and is_dicom(path):
            try:
                return text(file_at(path).read(False), "StudyInstanceUID")
            except BROKEN:
                continue
    return None


def _looks_like_dicom(name: str, head: bytes) -> bool:
    return head[MAGIC_AT : MAGIC_AT + 4] == MAGIC or name.lower().endswith((".dcm", ".ima"))


def dicom_files(path: Path) -> list[DicomFile]:
    """Every DICOM file at or below a path, which may be a file, a folder or a zip."""
    if path.is_dir():
        try:
            below = sorted(each for each in path.rglob("*") if each.is_file())
            return [file_at(each) for each in below if _starts_as_dicom(each)]
        except OSError as error:  # left out, a slice would be missing without a word
            raise ScanError(
                f"{error.filename}: {error.strerror}. Make all of the folder readable."
            ) from error
    if zipfile.is_zipfile(path):
        return list(_zipped(path))
    return [file_at(path)] if is_dicom(path) else []


def _zipped(path: Path) -> Iterator[DicomFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.infolist() if not member.is_dir()]
            if sum(member.file_size for member in members) > LARGEST_ZIP_BYTES:
                raise ScanError(f"{path}: unpacked this zip would be over 64 GiB. Give one series alone.")
            for member in sorted(members, key=lambda member: member.filename):
                content = archive.read(member)
                if _looks_like_dicom(member.filename, content[: MAGIC_AT + 4]):
                    yield DicomFile(f"{path}:{member.filename}", partial(io.BytesIO, content))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, OSError) as error:
        raise ScanError(f"{path}: the zip is damaged ({error}). Copy or export it again.") from error
    except RuntimeError as error:  # the only one zipfile has for this
        raise ScanError(f"{path}: the zip is encrypted. Unpack it first.") from error


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
