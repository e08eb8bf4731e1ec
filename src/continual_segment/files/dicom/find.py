"""Which files at a path are DICOM.

A file is DICOM if it has the mark of a DICOM file, or starts as a data set does: older machines and some
archives write files without preamble, mark and ending. Only the first bytes of a file are read for that.
Files that are only named as DICOM files, by their ending or like their neighbours, are found, too: reading
them fails, and a slice that is damaged does not vanish from its series.

In:  a file, a folder, a zip, or the DICOMDIR of a medium, which means all of its folder
Out: DicomFile
"""

from __future__ import annotations

import io
import re
import struct
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePath

from pydicom import Dataset
from pydicom.datadict import dictionary_has_tag
from pydicom.dataset import FileMetaDataset
from pydicom.filereader import read_file_meta_info
from pydicom.uid import MediaStorageDirectoryStorage
from pydicom.valuerep import EXPLICIT_VR_LENGTH_16, EXPLICIT_VR_LENGTH_32

from continual_segment.errors import ScanError
from continual_segment.files.dicom.headers import BROKEN, DicomFile, file_at, text

MAGIC_AT, MAGIC = 128, b"DICM"
HEAD_BYTES = 512
ENDINGS = (".dcm", ".dicom", ".ima")
LARGEST_ZIP_BYTES = 64 * 2**30  # unpacked
FIRST_GROUPS = (0x0002, 0x0008)
"""A data set starts with one of these."""
FEWEST_ELEMENTS = 3
"""In a row that make a data set."""
LONGEST_FIRST_VALUE = 2**16
SHORT_VRS = {vr.value.encode() for vr in EXPLICIT_VR_LENGTH_16}
LONG_VRS = {vr.value.encode() for vr in EXPLICIT_VR_LENGTH_32}


def is_dicom(path: Path) -> bool:
    """Whether a file starts as DICOM files do, or is named so."""
    try:
        return _is_directory_name(path.name) or _seems_dicom(path.name, _head(path))
    except OSError:
        return False


def is_dicomdir(path: Path) -> bool:
    """Whether a file is the directory of a medium, by its name or its kind."""
    if _is_directory_name(path.name):
        return path.is_file()
    try:
        return path.is_file() and _is_directory(read_file_meta_info(path))
    except BROKEN:
        return False


def folder_of_medium(path: Path) -> Path:
    """The folder that a DICOMDIR describes; any other path as it is."""
    return path.parent if is_dicomdir(path) else path


def study_of(folder: Path) -> str | None:
    """The first study that a DICOM file of a folder names; None where there is no DICOM.

    Empty where the slices name no study, or no file can be read.
    """
    found = None
    for path in sorted(folder.iterdir()):
        if not path.is_file() or _is_directory_name(path.name) or not is_dicom(path):
            continue
        header = _header_or_nothing(path)
        if _is_directory(header.file_meta):
            continue
        found = text(header, "StudyInstanceUID")
        if found or "Rows" in header:  # without either the file is cut short, or no image: try the next one
            return found
    return found


def _header_or_nothing(path: Path) -> Dataset:
    try:
        return file_at(path).read(pixels=False)
    except BROKEN:
        nothing = Dataset()
        nothing.file_meta = FileMetaDataset()
        return nothing


def _is_directory_name(name: str) -> bool:
    return name.upper() == "DICOMDIR"


def _is_directory(file_meta: Dataset) -> bool:
    return text(file_meta, "MediaStorageSOPClassUID") == MediaStorageDirectoryStorage


def dicom_files(path: Path) -> list[DicomFile]:
    """Every file at or below a path that is DICOM or is named so, without the directory of a medium."""
    path = folder_of_medium(path)
    if path.is_dir():
        return _with_namesakes(list(_below(path)))
    if zipfile.is_zipfile(path):
        return _with_namesakes(list(_zipped(path)))
    return [file_at(path)] if is_dicom(path) else []


def _with_namesakes(found: list[tuple[DicomFile, bool]]) -> list[DicomFile]:
    """The DICOM files, and those that are named like one in the same folder: they are damaged slices."""
    patterns = defaultdict(set)
    for file, certain in found:
        if certain:
            patterns[file.folder].add(_pattern(file))
    return [file for file, certain in found if certain or _pattern(file) in patterns[file.folder]]


def _pattern(file: DicomFile) -> str:
    """The file's name without its numbers, which may be hexadecimal: IM0017 and IM0018 have the same."""
    return re.sub(r"[0-9a-f]+", "0", PurePath(file.name).name.lower())


def _below(folder: Path) -> Iterator[tuple[DicomFile, bool]]:
    """Every file below a folder, and whether it is DICOM."""
    try:
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            if not _is_directory_name(path.name):
                yield file_at(path), _seems_dicom(path.name, _head(path))
    except OSError as error:  # left out, a slice would be missing without a word
        raise ScanError(f"{error.filename}: {error.strerror}. Make all of the folder readable.") from error


def _zipped(path: Path) -> Iterator[tuple[DicomFile, bool]]:
    """Every file in a zip, and whether it is DICOM; of others the head is enough, as they are not read."""
    try:
        with zipfile.ZipFile(path) as archive:
            for member in _members(path, archive):
                content = archive.read(member)
                name = PurePath(member.filename).name
                certain = _seems_dicom(name, content[:HEAD_BYTES])
                kept = content if certain else content[:HEAD_BYTES]
                if not _is_directory_name(name):
                    yield DicomFile(f"{path}:{member.filename}", partial(io.BytesIO, kept)), certain
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, OSError) as error:
        raise ScanError(f"{path}: the zip is damaged ({error}). Copy or export it again.") from error
    except RuntimeError as error:  # the only one zipfile has for this
        raise ScanError(f"{path}: the zip is encrypted. Unpack it first.") from error


def _members(path: Path, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    members = [member for member in archive.infolist() if not member.is_dir()]
    if sum(member.file_size for member in members) > LARGEST_ZIP_BYTES:
        raise ScanError(f"{path}: unpacked this zip would be over 64 GiB. Give one series alone.")
    return sorted(members, key=lambda member: member.filename)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def _seems_dicom(name: str, head: bytes) -> bool:
    if head[MAGIC_AT : MAGIC_AT + len(MAGIC)] == MAGIC:
        return True
    if name.startswith("."):  # such as ._IM001.dcm, which macOS writes beside IM001.dcm
        return False
    return name.lower().endswith(ENDINGS) or starts_as_data_set(head)


def starts_as_data_set(head: bytes) -> bool:
    """Whether bytes are elements of a data set: known tags that ascend, sound lengths; in any byte order."""
    return any(_elements(head, order) >= FEWEST_ELEMENTS for order in "<>")


def _elements(head: bytes, order: str) -> int:
    """Number of elements that follow each other from the first byte on; as far as they are in sight."""
    at, count, last = 0, 0, (0, 0)
    while at + 12 <= len(head):
        tag = struct.unpack_from(f"{order}HH", head, at)
        length, value_at = _length(head, at, order)
        if tag <= last or tag[0] not in FIRST_GROUPS or length % 2 or length > LONGEST_FIRST_VALUE:
            break
        if tag[1] != 0 and not dictionary_has_tag(tag[0] << 16 | tag[1]):  # 0: the length of the group
            break
        at, count, last = value_at + length, count + 1, tag
    return count


def _length(head: bytes, at: int, order: str) -> tuple[int, int]:
    """Length of the value of the element at a place, and where the value starts."""
    kind = head[at + 4 : at + 6]
    if kind in LONG_VRS:
        return struct.unpack_from(f"{order}I", head, at + 8)[0], at + 12
    if kind in SHORT_VRS:
        return struct.unpack_from(f"{order}H", head, at + 6)[0], at + 8
    return struct.unpack_from(f"{order}I", head, at + 4)[0], at + 8
