"""The frames of a DICOM file: slices and their places in the patient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from pydicom import Dataset

from continual_segment.files.dicom.headers import DicomFile, number, numbers, words


@dataclass(frozen=True, eq=False)
class Frame:
    """One slice and its place in the patient."""

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


def normal_of(frame: Frame) -> np.ndarray:
    return np.cross(frame.orientation[:3], frame.orientation[3:])


def image_type(frame: Frame) -> tuple[str, ...]:
    return tuple(word.upper() for word in words(frame.header, "ImageType"))


def frames_of(file: DicomFile, header: Dataset) -> Iterator[Frame]:
    """The frames of a file that have a place in the patient."""
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
    """The functional groups of one frame; its own override what all share."""
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
