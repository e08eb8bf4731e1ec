"""One DICOM object as it comes over a network: what it is and where it belongs, without its pixels.

In:  the bytes of a file
Out: Instance, or a ScanError where it has no place in a series
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import Path

from pydicom import Dataset
from pydicom.uid import CTImageStorage, EnhancedCTImageStorage

from continual_segment.errors import ScanError
from continual_segment.files.dicom.headers import BROKEN, DicomFile, file_at, number, text
from continual_segment.files.dicom.identity import MANUFACTURER, thickness_mm

CT_CLASSES: tuple[str, ...] = (CTImageStorage, EnhancedCTImageStorage)
"""SOP classes of CT images."""
UID = re.compile(r"[0-9]+(\.[0-9]+)*")
LONGEST_UID = 64
MOST_FRAMES = 10**6  # a damaged header can name any number


@dataclass(frozen=True)
class Instance:
    """An image of a series."""

    sop_class: str
    uid: str
    series_uid: str
    frames: int
    description: str
    body_part: str
    thickness_mm: float
    """0 where it is not stated."""
    is_own: bool
    """Whether this package made it."""


def instance_of(content: bytes) -> Instance:
    """What the bytes of a DICOM file are."""
    return _instance(DicomFile("The object", lambda: io.BytesIO(content)))


def read_instance(path: Path) -> Instance:
    return _instance(file_at(path))


def _instance(file: DicomFile) -> Instance:
    try:
        header = file.read(pixels=False)
    except BROKEN as error:
        raise ScanError(f"{file.name}: not readable as DICOM. Send it again.") from error
    uids = {name: _uid(header, name) for name in ("SOPInstanceUID", "SeriesInstanceUID", "StudyInstanceUID")}
    if missing := [name for name, uid in uids.items() if not uid]:
        raise ScanError(f"{file.name}: no valid {' and no valid '.join(missing)}. Export the series again.")
    return Instance(
        text(header, "SOPClassUID"),
        uids["SOPInstanceUID"],
        uids["SeriesInstanceUID"],
        int(min(max(number(header, "NumberOfFrames", 1), 1), MOST_FRAMES)),
        text(header, "SeriesDescription"),
        text(header, "BodyPartExamined"),
        thickness_mm(header),
        text(header, "Manufacturer") == MANUFACTURER,
    )


def _uid(header: Dataset, keyword: str) -> str:
    """A UID in the form that DICOM demands; empty where it has another."""
    value = text(header, keyword)
    return value if UID.fullmatch(value) and len(value) <= LONGEST_UID else ""
