"""DICOM files that cannot be read: an error that names them, or, if forced, a note that they are missing.

A series without some of its slices is another scan: an organ ends where the slices do. So a damaged file is
never left out on our own account.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from pydicom import Dataset
from pydicom.uid import UID

from continual_segment.errors import ScanError
from continual_segment.files.dicom.headers import DicomFile, text
from continual_segment.names import some_of

MOST_NAMED = 3


@dataclass(frozen=True)
class Unreadable:
    """A file whose slices, or some of them, are not known."""

    file: DicomFile
    reason: str
    series_uid: str | None = None
    """None where the file is damaged before its header names the series."""

    def may_belong_to(self, series_uid: str, folders: Iterable[str]) -> bool:
        """Whether it is a file of the series: the header names it, or the series is in the same folder."""
        if self.series_uid is None:
            return self.file.folder in folders
        return self.series_uid == series_uid


def ends_early(header: Dataset) -> bool:
    """Whether a header without image size is that of an image; reports and plans have none."""
    kind = text(header, "SOPClassUID") or text(header.file_meta, "MediaStorageSOPClassUID")
    return not kind or "Image Storage" in UID(kind).name


def leave_out(path: Path, unreadable: Sequence[Unreadable], force: bool) -> tuple[str, ...]:
    """A note on files of the series that are left out; ScanError unless forced.

    The note is stored in the manifest: no name of a file is in it, which may be that of the patient.
    """
    if not unreadable:
        return ()
    files = _count(len(unreadable), "file")
    if not force:
        raise ScanError(
            f"{path}: {files} of the series cannot be read: {_names(path, unreadable)} "
            f"({unreadable[0].reason}). Copy or export the series again, or segment it without them with "
            "--force."
        )
    return (f"{files} of the series cannot be read; their slices are left out.",)


def unknown_elsewhere(unreadable: Sequence[Unreadable]) -> tuple[str, ...]:
    """A note on damaged files in other folders, which may or may not be of the series."""
    count = sum(each.series_uid is None for each in unreadable)
    if not count:
        return ()
    return (
        f"{_count(count, 'DICOM file')} in other folders cannot be read; which series is damaged is unknown.",
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _names(path: Path, unreadable: Sequence[Unreadable]) -> str:
    return some_of((_below(path, each.file.name) for each in unreadable), MOST_NAMED)


def _below(path: Path, name: str) -> str:
    return str(PurePath(name).relative_to(path)) if PurePath(name).is_relative_to(path) else name
