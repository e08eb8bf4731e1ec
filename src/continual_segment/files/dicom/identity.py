"""What results take over from the slices they refer to.

Headers of archives have values that are empty, misspelt or too long, and a result that copies them is refused
by the next archive. Results take over who the patient is, which study it was, which images are meant and
where they are; each in the form that DICOM demands, and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime

import numpy as np
from pydicom import Dataset
from pydicom.multival import MultiValue
from pydicom.valuerep import format_number_as_ds

from continual_segment.files.dicom.headers import BROKEN, number, text
from continual_segment.files.dicom.series import Frame, Series, normal_of

ALWAYS = [
    "PatientName",
    "PatientID",
    "PatientBirthDate",
    "PatientSex",
    "StudyDate",
    "StudyTime",
    "StudyID",
    "AccessionNumber",
    "ReferringPhysicianName",
]
"""Of patient and study, in every result, if only empty: type 2."""
IF_ANY = ["IssuerOfPatientID", "StudyDescription"]
"""Of patient and study, where there is a value: type 3."""
EQUIPMENT = ["Manufacturer", "ManufacturerModelName", "DeviceSerialNumber", "InstitutionName", "StationName"]
"""Of the scanner, where there is a value."""
MANUFACTURER = "Continual Segment"
"""Of everything this package makes; what it receives with this mark is its own result."""
TIME = re.compile(r"([01]\d|2[0-3])([0-5]\d([0-5]\d(\.\d{1,6})?)?)?")
SEXES = ("M", "F", "O")


def identity(header: Dataset) -> Dataset:
    """Patient and study of a result, in UTF-8."""
    data = Dataset()
    data.SpecificCharacterSet = "ISO_IR 192"
    data.StudyInstanceUID = header.StudyInstanceUID
    for keyword in ALWAYS:
        setattr(data, keyword, sound_text(header, keyword))
    _take_over(data, header, IF_ANY)
    return data


def _take_over(data: Dataset, header: Dataset, keywords: Sequence[str]) -> None:
    for keyword in keywords:
        if value := sound_text(header, keyword):
            setattr(data, keyword, value)


def sound_text(header: Dataset, keyword: str) -> str:
    """A value as text; empty where it is missing, or is no date, time or sex but should be.

    Names and ids stay as they are, whatever their form: with others, the result would be another patient's.
    """
    try:
        value = header.get(keyword)
    except BROKEN:
        return ""
    found = "\\".join(map(str, value)) if isinstance(value, MultiValue) else text(header, keyword)
    return found if _is_sound(keyword, found) else ""


def _is_sound(keyword: str, value: str) -> bool:
    if keyword.endswith("Date"):
        return _is_date(value)
    if keyword.endswith("Time"):
        return TIME.fullmatch(value) is not None
    return keyword != "PatientSex" or value in SEXES


def _is_date(value: str) -> bool:
    try:
        return len(value) == 8 and bool(datetime.strptime(value, "%Y%m%d"))
    except ValueError:
        return False


def source_images(series: Series) -> list[Dataset]:
    """Headers for results that refer to the frames of a series; a file of several frames has one."""
    if "PerFrameFunctionalGroupsSequence" in series.frames[0].header:
        headers = {id(frame.header): frame for frame in series.frames}
        return [_multi_frame(frame, series) for frame in headers.values()]
    return [_single_frame(frame, series) for frame in series.frames]


def number_frames(result: Dataset, series: Series) -> None:
    """Let references to a file of several frames count all of its frames, not only those of the series."""
    for group in result.PerFrameFunctionalGroupsSequence:
        for derivation in group.get("DerivationImageSequence", []):
            for image in derivation.SourceImageSequence:
                if "ReferencedFrameNumber" in image:
                    image.ReferencedFrameNumber = series.frames[image.ReferencedFrameNumber - 1].index + 1


def _single_frame(frame: Frame, series: Series) -> Dataset:
    data = _image(frame)
    for part in (_measures(series), _orientation(series), _position(frame)):
        data.update(part)
    return data


def _multi_frame(first: Frame, series: Series) -> Dataset:
    """Of the series' frames alone, counted from the first of them: see `number_frames`."""
    data, shared = _image(first), Dataset()
    frames = [frame for frame in series.frames if frame.header is first.header]
    shared.PixelMeasuresSequence, shared.PlaneOrientationSequence = (
        [_measures(series)],
        [_orientation(series)],
    )
    data.NumberOfFrames, data.SharedFunctionalGroupsSequence = len(frames), [shared]
    data.PerFrameFunctionalGroupsSequence = [Dataset() for _ in frames]
    for group, frame in zip(data.PerFrameFunctionalGroupsSequence, frames, strict=True):
        group.PlanePositionSequence = [_position(frame)]
    return data


def _image(frame: Frame) -> Dataset:
    """What is not the place of a frame."""
    header, data = frame.header, identity(frame.header)
    for keyword in ("SOPClassUID", "SOPInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID"):
        setattr(data, keyword, header[keyword].value)
    data.PositionReferenceIndicator = sound_text(header, "PositionReferenceIndicator")
    data.Rows, data.Columns, data.Modality = int(header.Rows), int(header.Columns), "CT"
    if text(header, "LossyImageCompression") == "01":
        data.LossyImageCompression = "01"
        _take_over(data, header, ["LossyImageCompressionRatio", "LossyImageCompressionMethod"])
    _take_over(data, header, EQUIPMENT)
    return data


def _measures(series: Series) -> Dataset:
    first, data = series.frames[0], Dataset()
    heights = np.sort([frame.position_mm @ normal_of(first) for frame in series.frames])
    thickness = thickness_mm(first.header)
    data.PixelSpacing = as_decimals(first.pixel_mm)
    (data.SliceThickness,) = as_decimals([thickness if thickness > 0 else np.median(np.diff(heights))])
    return data


def thickness_mm(header: Dataset) -> float:
    """Of slices; 0 where the header does not state it."""
    shared = header.get("SharedFunctionalGroupsSequence") or [Dataset()]
    measures = shared[0].get("PixelMeasuresSequence") or [header]
    return number(measures[0], "SliceThickness", 0.0)


def _orientation(series: Series) -> Dataset:
    """The same for all frames, which headers state with different rounding."""
    data = Dataset()
    data.ImageOrientationPatient = as_decimals(series.frames[0].orientation)
    return data


def _position(frame: Frame) -> Dataset:
    data = Dataset()
    data.ImagePositionPatient = as_decimals(frame.position_mm)
    return data


def as_decimals(values: Sequence[float] | np.ndarray) -> list[str]:
    """Numbers in at most 16 characters, as DICOM demands."""
    return [format_number_as_ds(float(value)) for value in values]
