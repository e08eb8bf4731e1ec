"""RT Structure Set: organs as closed contours on the slices they were found in.

Contours run halfway between voxels inside and outside, so filling them gives back every voxel. Each encloses
an area; there are no points or lines, which planning systems refuse. A hole is joined to its outline by a
channel of no width, as DICOM requires.

In:  label maps that share a grid, the series they belong to
Out: one .dcm file
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
from contourpy import FillType, contour_generator
from pydicom import Dataset
from pydicom.dataset import FileMetaDataset
from pydicom.uid import ImplicitVRLittleEndian, RTStructureSetStorage
from scipy import ndimage
from scipy.spatial import cKDTree

from continual_segment.errors import ScanError
from continual_segment.files.atomic import atomic_path
from continual_segment.files.dicom.headers import BROKEN
from continual_segment.files.dicom.identity import MANUFACTURER, identity, sound_text
from continual_segment.files.dicom.made_uids import digest_of, made_uid
from continual_segment.files.dicom.planes import planes, point_mm
from continual_segment.files.dicom.series import Frame, Series
from continual_segment.files.organ_colours import label_colour
from continual_segment.files.terms import terms_of
from continual_segment.volume import LabelMap

SERIES_NUMBER = 301


def write_contours(path: Path, layers: Sequence[LabelMap], series: Series, version: str) -> bool:
    """Write the organs that were found; False, and no file, where there are none."""
    contours = _contours(layers, series)
    if not contours:
        return False
    names = {label: name for layer in layers for label, name in layer.names.items()}
    try:
        data = _structure_set(series, version, _digest(contours, names, series, version))
        numbered = enumerate(sorted(contours.items()), start=1)
        for number, (label, loops) in numbered:
            _add_organ(data, number, label, names[label], loops)
    except BROKEN as error:
        reason = " ".join(str(error).split())
        raise ScanError(f"{path.name}: the series cannot carry an RT structure set ({reason}).") from error
    with atomic_path(path) as unfinished:
        data.save_as(unfinished, enforce_file_format=True)
    return True


def _digest(
    contours: Mapping[int, list[tuple[Frame, np.ndarray]]],
    names: Mapping[int, str],
    series: Series,
    version: str,
) -> str:
    content: list[str | bytes] = [version, "rtstruct"]
    for label, loops in sorted(contours.items()):
        content += [f"{label} {names[label]}", *(points.tobytes() for _, points in loops)]
    return digest_of(series, content)


def _contours(layers: Sequence[LabelMap], series: Series) -> dict[int, list[tuple[Frame, np.ndarray]]]:
    """Loops (point, 3) in the patient, with their frames, by label."""
    found: dict[int, list[tuple[Frame, np.ndarray]]] = {}
    for layer in layers:
        for frame, plane in zip(series.frames, planes(layer, series), strict=True):
            for label, place in enumerate(ndimage.find_objects(plane), start=1):
                if place is not None:
                    corner = np.array([place[1].start, place[0].start])
                    loops = (loop + corner for loop in outlines(plane[place] == label))
                    found.setdefault(label, []).extend((frame, point_mm(frame, loop)) for loop in loops)
    return found


def outlines(mask: np.ndarray) -> Iterator[np.ndarray]:
    """Every connected part of a mask as a loop of points (column, row), holes joined to it."""
    generator = contour_generator(z=np.pad(mask, 1).astype(float), fill_type=FillType.OuterOffset)
    parts, offsets = cast(tuple[list[np.ndarray], list[np.ndarray]], generator.filled(0.5, 2.0))
    for part, ends in zip(parts, offsets, strict=True):
        outline, *holes = [part[start : end - 1] - 1 for start, end in pairwise(ends)]  # the end is the start
        while holes:
            outline = _joined(outline, holes)
        yield corners_of(outline)


def _joined(outline: np.ndarray, holes: list[np.ndarray]) -> np.ndarray:
    """One loop along the outline, into the nearest hole where they are nearest, around it and back.

    The nearest first: no other hole can then be in the way. The hole is taken off the list.
    """
    trees = [cKDTree(outline).query(hole) for hole in holes]
    nearest = min(range(len(holes)), key=lambda index: trees[index][0].min())
    hole = holes.pop(nearest)
    distances, partners = trees[nearest]
    inner = int(distances.argmin())
    out = int(partners[inner])
    around = np.roll(hole, -inner, axis=0)
    return np.concatenate([outline[: out + 1], around, around[:1], outline[out:]])


def corners_of(loop: np.ndarray) -> np.ndarray:
    """The loop without points in the middle of a straight line."""
    before, after = loop - np.roll(loop, 1, axis=0), np.roll(loop, -1, axis=0) - loop
    turns = before[:, 0] * after[:, 1] - before[:, 1] * after[:, 0]
    goes_on = (np.abs(turns) < 1e-9) & ((before * after).sum(axis=1) > 0)
    return loop[~goes_on]


def _structure_set(series: Series, version: str, digest: str) -> Dataset:
    """All but the organs."""
    header = series.frames[0].header
    data, now = identity(header), datetime.now()
    data.file_meta = FileMetaDataset()
    data.file_meta.TransferSyntaxUID = ImplicitVRLittleEndian  # explicit: contours above 64 KB become UN
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID = RTStructureSetStorage
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID = made_uid(digest, "instance")
    data.Modality, data.SeriesInstanceUID = "RTSTRUCT", made_uid(digest, "series")
    data.SeriesNumber, data.InstanceNumber = SERIES_NUMBER, 1
    data.Manufacturer, data.ManufacturerModelName = MANUFACTURER, "conseg"
    data.SoftwareVersions, data.OperatorsName = version, ""
    data.SeriesDescription, data.StructureSetLabel = "Organs by Continual Segment", "ORGANS"
    data.StructureSetDate = data.InstanceCreationDate = f"{now:%Y%m%d}"
    data.StructureSetTime = data.InstanceCreationTime = f"{now:%H%M%S}"
    data.FrameOfReferenceUID = header.FrameOfReferenceUID
    data.PositionReferenceIndicator = sound_text(header, "PositionReferenceIndicator")
    data.ReferencedFrameOfReferenceSequence = [_referenced(series, header)]
    data.StructureSetROISequence, data.ROIContourSequence, data.RTROIObservationsSequence = [], [], []
    return data


def _referenced(series: Series, header: Dataset) -> Dataset:
    """Study, series and every image the contours may refer to."""
    images, study, place = Dataset(), Dataset(), Dataset()
    images.SeriesInstanceUID = header.SeriesInstanceUID
    images.ContourImageSequence = [_image(frame) for frame in series.frames]
    study.ReferencedSOPClassUID = "1.2.840.10008.3.1.2.3.1"  # a study; retired, but required here
    study.ReferencedSOPInstanceUID = header.StudyInstanceUID
    study.RTReferencedSeriesSequence = [images]
    place.FrameOfReferenceUID = header.FrameOfReferenceUID
    place.RTReferencedStudySequence = [study]
    return place


def _image(frame: Frame) -> Dataset:
    image = Dataset()
    image.ReferencedSOPClassUID = frame.header.SOPClassUID
    image.ReferencedSOPInstanceUID = frame.header.SOPInstanceUID
    if "NumberOfFrames" in frame.header:
        image.ReferencedFrameNumber = frame.index + 1
    return image


def _add_organ(
    data: Dataset, number: int, label: int, name: str, loops: list[tuple[Frame, np.ndarray]]
) -> None:
    region, contour, observation = Dataset(), Dataset(), Dataset()
    region.ROINumber, region.ROIName, region.ROIGenerationAlgorithm = number, name[:64], "AUTOMATIC"
    region.ReferencedFrameOfReferenceUID = data.FrameOfReferenceUID
    contour.ReferencedROINumber = number
    contour.ROIDisplayColor = [round(255 * part) for part in label_colour(label)]
    contour.ContourSequence = [_contour(frame, points) for frame, points in loops]
    observation.ObservationNumber = observation.ReferencedROINumber = number
    observation.RTROIInterpretedType, observation.ROIInterpreter = "ORGAN", ""
    kind, code = terms_of(name).kind, Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = kind.value, kind.scheme, kind.meaning
    observation.RTROIIdentificationCodeSequence = [code]
    data.StructureSetROISequence.append(region)
    data.ROIContourSequence.append(contour)
    data.RTROIObservationsSequence.append(observation)


def _contour(frame: Frame, points: np.ndarray) -> Dataset:
    contour = Dataset()
    contour.ContourImageSequence = [_image(frame)]
    contour.ContourGeometricType = "CLOSED_PLANAR"
    contour.NumberOfContourPoints = len(points)
    contour.ContourData = [f"{value:.3f}" for value in points.ravel()]
    return contour
