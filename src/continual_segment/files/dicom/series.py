"""The images of a study, put together as series.

Images that belong to one series, have one size and are parallel are one stack. A series that holds the same
places several times, such as two phases, is several stacks.

In:  a folder, zip or file
Out: Study: every Series with its frames, and the files that cannot be read
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from pydicom import Dataset

from continual_segment.errors import ScanError
from continual_segment.files.dicom.find import dicom_files
from continual_segment.files.dicom.frames import Frame, frames_of, image_type, normal_of
from continual_segment.files.dicom.headers import BROKEN, DicomFile, gone, number, numbers, text
from continual_segment.files.dicom.unreadable import Unreadable, ends_early

NO_VOLUME = ("LOCALIZER", "SCOUT", "TOPOGRAM")
DERIVED = ("MPR", "MIP", "PROJECTION IMAGE", "REFORMATTED", "SECONDARY")
PHASES = ("TemporalPositionIdentifier", "AcquisitionNumber")
"""What distinguishes phases of one series."""
NO_PLACE = "no place in the patient: ImagePositionPatient, ImageOrientationPatient, PixelSpacing"


@dataclass(frozen=True, eq=False)
class Series:
    """Parallel frames of one size."""

    uid: str
    description: str
    modality: str
    image_type: tuple[str, ...]
    frames: tuple[Frame, ...]

    @property
    def header(self) -> Dataset:
        """Of the first slice."""
        return self.frames[0].header

    @property
    def number(self) -> int | None:
        """DICOM's SeriesNumber."""
        found = numbers(self.header, "SeriesNumber", 1)
        return None if found is None else int(found[0])

    @property
    def is_ct(self) -> bool:
        """Whether the images are CT, or the header names no modality."""
        return self.modality in ("CT", "")

    @property
    def is_localiser(self) -> bool:
        return any(kind in NO_VOLUME for kind in self.image_type)

    @property
    def is_derived(self) -> bool:
        return any(kind in DERIVED for kind in self.image_type)

    @property
    def folders(self) -> set[str]:
        return {frame.file.folder for frame in self.frames}

    @cached_property
    def step_mm(self) -> float | None:
        """Usual distance of neighbouring slices."""
        heights = np.sort([frame.position_mm @ normal_of(frame) for frame in self.frames])
        return float(np.median(np.diff(heights))) if len(heights) > 1 else None


@dataclass(frozen=True, eq=False)
class Study:
    """What the DICOM files at a path hold."""

    path: Path
    series: tuple[Series, ...]
    """The one with most slices first."""
    unreadable: tuple[Unreadable, ...]

    def unreadable_of(self, series: Series) -> tuple[list[Unreadable], list[Unreadable]]:
        """Files that cannot be read: those of a series, and the others."""
        folders = series.folders
        parts: tuple[list[Unreadable], list[Unreadable]] = [], []
        for file in self.unreadable:
            parts[0 if file.may_belong_to(series.uid, folders) else 1].append(file)
        return parts


def read_study(path: Path) -> Study:
    """Every stack of parallel images at a path, and every file that should hold some but cannot be read."""
    files = dicom_files(path)
    if not files:
        raise ScanError(f"{path}: no DICOM file was found here. Give the folder or zip of a CT series.")
    groups: dict[tuple[object, ...], list[Frame]] = defaultdict(list)
    unreadable = []
    for file in files:
        frames, problem = _frames_in(file)
        for frame in frames:
            groups[_key(frame)].append(frame)
        if problem:
            unreadable.append(problem)
    if not groups:
        raise _no_slices(path, len(files), unreadable)
    series = [_series(frames) for group in groups.values() for frames in _phases(group)]
    series.sort(key=lambda each: (-len(each.frames), each.uid, each.description))
    return Study(path, tuple(series), tuple(unreadable))


def _no_slices(path: Path, files: int, unreadable: list[Unreadable]) -> ScanError:
    misplaced = sum(NO_PLACE in each.reason for each in unreadable)
    damaged = len(unreadable) - misplaced
    return ScanError(
        f"{path}: none of {files} DICOM files is a slice: {misplaced} are images without a "
        "position in the patient (ImagePositionPatient, ImageOrientationPatient, PixelSpacing), "
        f"{damaged} cannot be read, {files - misplaced - damaged} are no images. Export the CT series "
        "itself, not screenshots or reports."
    )


def _frames_in(file: DicomFile) -> tuple[list[Frame], Unreadable | None]:
    """The frames of a file, and what is wrong with it."""
    try:
        header = file.read(pixels=False)
    except BROKEN as error:
        return [], Unreadable(file, f"the header is damaged: {type(error).__name__}")
    uid = text(header, "SeriesInstanceUID")
    if not (number(header, "Rows", 0) > 0 and number(header, "Columns", 0) > 0):
        return [], Unreadable(file, "the header ends early", uid or None) if ends_early(header) else None
    try:
        frames = list(frames_of(file, header))
    except BROKEN:
        frames = []
    expected = max(1, int(number(header, "NumberOfFrames", 1)))
    if len(frames) < expected:
        return frames, Unreadable(file, f"{expected - len(frames)} of {expected} slices have {NO_PLACE}", uid)
    return frames, None


def _key(frame: Frame) -> tuple[object, ...]:
    """Same for frames that can be slices of one volume."""
    header = frame.header
    return (
        text(header, "SeriesInstanceUID"),
        text(header, "Rows"),
        text(header, "Columns"),
        *(round(part, 2) + 0.0 for part in frame.orientation),
        *(round(part, 3) for part in frame.pixel_mm),
        any(kind in NO_VOLUME for kind in image_type(frame)),
    )


def _phases(frames: list[Frame]) -> list[list[Frame]]:
    """Split a series that holds the same places several times by acquisition, where that explains it."""
    if not _repeated(frames):
        return [frames]
    for keyword in PHASES:
        parts: dict[str, list[Frame]] = defaultdict(list)
        for frame in frames:
            parts[text(frame.header, keyword)].append(frame)
        if len(parts) > 1 and not any(_repeated(part) for part in parts.values()):
            return list(parts.values())
    return [frames]


def _repeated(frames: list[Frame]) -> bool:
    return len({tuple(frame.position_mm.round(2)) for frame in frames}) < len(frames)


def _series(frames: list[Frame]) -> Series:
    header = frames[0].header
    return Series(
        text(header, "SeriesInstanceUID"),
        text(header, "SeriesDescription"),
        text(header, "Modality"),
        image_type(frames[0]),
        tuple(frames),
    )


def without_frames(series: Series, dropped: list[int]) -> Series:
    """The series without the frames at these places of its list."""
    return replace(series, frames=tuple(f for index, f in enumerate(series.frames) if index not in dropped))


def without_files(series: Series) -> Series:
    """The series without the content of its files: what results refer to is in the headers."""
    return replace(series, frames=tuple(replace(f, file=gone(f.file.name)) for f in series.frames))
