"""Which of the images in a study are the CT volume.

A folder from a hospital holds scouts, several reconstructions, dose reports and older results. Images that
belong to one series, have one size and lie parallel are one candidate; localisers, other modalities and
leftovers are none. Where more than one candidate remains the user is shown the list instead of a guess.

In:  DICOM files
Out: Series: its frames, each with its place in the patient
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pydicom import Dataset

from continual_segment.errors import ScanError
from continual_segment.files.dicom.headers import (
    BROKEN,
    DicomFile,
    dicom_files,
    gone,
    number,
    numbers,
    text,
    words,
)

FEWEST_SLICES = 3
NO_VOLUME = ("LOCALIZER", "SCOUT", "TOPOGRAM")
DERIVED = ("MPR", "MIP", "PROJECTION IMAGE", "REFORMATTED", "SECONDARY")


@dataclass(frozen=True, eq=False)
class Frame:
    """One slice and where it lies."""

    file: DicomFile
    header: Dataset
    index: int
    """In a file of several frames; 0 else."""
    position_mm: np.ndarray
    orientation: np.ndarray
    """Along a row, then along a column; left, posterior, superior."""
    pixel_mm: tuple[float, float]
    rescale: tuple[float, float]
    """Slope, intercept."""


@dataclass(frozen=True, eq=False)
class Series:
    """Frames of one size that lie parallel."""

    uid: str
    description: str
    modality: str
    image_type: tuple[str, ...]
    frames: tuple[Frame, ...]

    @property
    def is_localiser(self) -> bool:
        return any(kind in NO_VOLUME for kind in self.image_type)

    @property
    def is_derived(self) -> bool:
        return any(kind in DERIVED for kind in self.image_type)

    def line(self, number: int) -> str:
        """For a list to choose from."""
        heights = np.sort([frame.position_mm @ normal_of(frame) for frame in self.frames])
        step = f" {np.median(np.diff(heights)):.2f} mm apart" if len(heights) > 1 else ""
        kind = ", a localiser" if self.is_localiser else ", derived" if self.is_derived else ""
        return (
            f"  {number}: {self.description or 'no description'} ({self.modality or 'no modality'}, "
            f"{len(self.frames)} slices{step}{kind}) {self.uid}"
        )


def normal_of(frame: Frame) -> np.ndarray:
    return np.cross(frame.orientation[:3], frame.orientation[3:])


def choose_series(path: Path, wanted: str | None = None) -> Series:
    """The CT volume at a path; `wanted` is a series' UID, or its number in the list an error shows."""
    files = dicom_files(path)
    if not files:
        raise ScanError(f"{path}: no DICOM file was found here. Give the folder or zip of a CT series.")
    found = list_series(path, files)
    if wanted is not None:
        return _wanted(path, found, wanted)
    volumes = [each for each in found if _can_be_volume(each)]
    for better in (lambda s: s.modality == "CT", lambda s: not s.is_derived):
        volumes = [each for each in volumes if better(each)] or volumes
    if len(volumes) == 1:
        return volumes[0]
    if not volumes:
        raise ScanError(
            f"{path}: no CT volume is among these images; at least {FEWEST_SLICES} parallel slices "
            f"were expected. Found:\n{_list(found)}"
        )
    raise ScanError(
        f"{path}: {len(volumes)} series could be meant. Choose with --series NUMBER or UID:\n{_list(found)}"
    )


def _can_be_volume(series: Series) -> bool:
    return not series.is_localiser and len(series.frames) >= FEWEST_SLICES


def _wanted(path: Path, found: Sequence[Series], wanted: str) -> Series:
    for number_in_list, series in enumerate(found, start=1):
        if wanted in (str(number_in_list), series.uid):
            return series
    raise ScanError(f"{path}: there is no series {wanted!r}. Choose one of:\n{_list(found)}")


def _list(found: Sequence[Series]) -> str:
    return "\n".join(series.line(number) for number, series in enumerate(found, start=1))


def list_series(path: Path, files: Sequence[DicomFile]) -> list[Series]:
    """Every stack of parallel images, the one with most slices first."""
    groups: dict[tuple[object, ...], list[Frame]] = defaultdict(list)
    misplaced = 0
    for file in files:
        header = _header_of(file)
        if header is None or not _is_image(header):
            continue
        frames = _sound_frames(file, header)
        misplaced += not frames
        for frame in frames:
            groups[_key(frame)].append(frame)
    if not groups:
        raise ScanError(
            f"{path}: of {len(files)} DICOM files {misplaced} are images that do not say where they lie "
            "in the patient (ImagePositionPatient, ImageOrientationPatient, PixelSpacing); the others are "
            "none. Export the CT series itself, not screenshots or reports."
        )
    series = [_series(frames) for group in groups.values() for frames in _phases(group)]
    return sorted(series, key=lambda each: (-len(each.frames), each.uid, each.description))


def _header_of(file: DicomFile) -> Dataset | None:
    try:
        return file.read(pixels=False)
    except BROKEN:
        return None  # counted by what is missing in the volume


def _sound_frames(file: DicomFile, header: Dataset) -> list[Frame]:
    """The frames of a file; none where its lists of frames are damaged."""
    try:
        return list(frames_of(file, header))
    except BROKEN:
        return []


def _is_image(header: Dataset) -> bool:
    return number(header, "Rows", 0) > 0 and number(header, "Columns", 0) > 0


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


def image_type(frame: Frame) -> tuple[str, ...]:
    return tuple(word.upper() for word in words(frame.header, "ImageType"))


def _phases(frames: list[Frame]) -> list[list[Frame]]:
    """Split a series that holds the same places several times by acquisition, where that explains it."""
    if not _repeated(frames):
        return [frames]
    for keyword in ("TemporalPositionIdentifier", "AcquisitionNumber"):
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


def frames_of(file: DicomFile, header: Dataset) -> Iterator[Frame]:
    """The frames of a file that say where they lie."""
    if "PerFrameFunctionalGroupsSequence" not in header:
        places = [header]
    else:
        places = [_flat(header, index) for index in range(len(header.PerFrameFunctionalGroupsSequence))]
    for index, place in enumerate(places):
        position = numbers(place, "ImagePositionPatient", 3)
        orientation = numbers(place, "ImageOrientationPatient", 6)
        spacing = numbers(place, "PixelSpacing", 2)
        if position is None or orientation is None or spacing is None or not _sound(orientation, spacing):
            continue
        rescale = number(place, "RescaleSlope", 1.0), number(place, "RescaleIntercept", 0.0)
        pixel_mm = float(spacing[0]), float(spacing[1])
        yield Frame(file, header, index, position, _unit(orientation), pixel_mm, rescale)


def _flat(header: Dataset, index: int) -> Dataset:
    """What the functional groups say of one frame, its own before what all share."""
    flat = Dataset()
    own = header.PerFrameFunctionalGroupsSequence[index]
    shared = header.get("SharedFunctionalGroupsSequence") or [Dataset()]
    for groups in (shared[0], own):
        for element in groups:
            if element.VR == "SQ" and element.value:
                flat.update(element.value[0])
    return flat


def _sound(orientation: np.ndarray, spacing: np.ndarray) -> bool:
    """Whether both axes are about of length 1 and at right angles, and pixels have a size."""
    row, column = orientation[:3], orientation[3:]
    lengths = np.linalg.norm(row), np.linalg.norm(column)
    return bool(np.allclose(lengths, 1, atol=0.05) and abs(row @ column) < 0.02 and (spacing > 0).all())


def _unit(orientation: np.ndarray) -> np.ndarray:
    """Both axes of length 1 and exactly at right angles: headers are rounded."""
    row = orientation[:3] / np.linalg.norm(orientation[:3])
    column = orientation[3:] - (orientation[3:] @ row) * row
    return np.concatenate([row, column / np.linalg.norm(column)])


def without_frames(series: Series, dropped: list[int]) -> Series:
    """The series without the frames at these places of its list."""
    return replace(series, frames=tuple(f for index, f in enumerate(series.frames) if index not in dropped))


def without_files(series: Series) -> Series:
    """The series without the content of its files: what results refer to is in the headers."""
    return replace(series, frames=tuple(replace(f, file=gone(f.file.name)) for f in series.frames))
