"""A CT series for a scan that has none, so that DICOM results have slices to refer to.

In:  a volume and the case's name
Out: axial slices as DICOM files, and the Series that results name
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
from pydicom import Dataset
from pydicom.dataset import FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

from continual_segment.files.dicom.frames import Frame
from continual_segment.files.dicom.headers import gone
from continual_segment.files.dicom.identity import MANUFACTURER, as_decimals
from continual_segment.files.dicom.made_uids import made_uid
from continual_segment.files.dicom.missing_uids import keep_identity
from continual_segment.files.dicom.series import Series
from continual_segment.files.grids import LPS_TO_RAS
from continual_segment.volume import Volume


def derived_series(case: str, volume: Volume, source: Dataset | None = None) -> Series:
    """Headers of one slice per z, rows from front to back and columns from right to left of the patient.

    `source` is a slice of the scan, where that was DICOM: patient and study stay the same.
    """
    digest = hashlib.sha256(volume.voxels.tobytes() + volume.grid.affine.tobytes()).hexdigest()
    z, y, x = volume.grid.shape
    affine = LPS_TO_RAS @ volume.grid.affine
    pixel_mm = volume.grid.spacing_mm[1], volume.grid.spacing_mm[2]
    row, column = -affine[:3, 0] / pixel_mm[1], -affine[:3, 1] / pixel_mm[0]
    frames = []
    for index in range(z):
        corner = affine @ [x - 1, y - 1, index, 1]
        header = _header(case, digest, index, (y, x), volume.grid.spacing_mm)
        if source is not None:
            keep_identity(header, source)
        header.ImagePositionPatient = as_decimals(corner[:3])
        header.ImageOrientationPatient = as_decimals((*row, *column))
        orientation = np.concatenate([row, column])
        frames.append(Frame(gone(case), header, 0, corner[:3], orientation, pixel_mm, (1.0, 0.0)))
    first = frames[0].header
    return Series(
        first.SeriesInstanceUID, first.SeriesDescription, "CT", tuple(first.ImageType), tuple(frames)
    )


def write_series(folder: Path, series: Series, volume: Volume) -> None:
    """One file per slice."""
    folder.mkdir(parents=True)
    limits = np.iinfo(np.int16)
    for index, (frame, piece) in enumerate(zip(series.frames, volume.voxels, strict=True), start=1):
        header = frame.header.copy()
        header.PixelData = np.rint(piece[::-1, ::-1]).clip(limits.min, limits.max).astype("<i2").tobytes()
        header.file_meta = FileMetaDataset()
        header.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        header.file_meta.MediaStorageSOPClassUID = header.SOPClassUID
        header.file_meta.MediaStorageSOPInstanceUID = header.SOPInstanceUID
        header.save_as(folder / f"{index:04}.dcm", enforce_file_format=True)


def _header(
    case: str, digest: str, index: int, shape: tuple[int, int], spacing_mm: tuple[float, float, float]
) -> Dataset:
    header = Dataset()
    header.SOPClassUID = CTImageStorage
    header.SOPInstanceUID = made_uid(digest, f"slice {index}")
    header.StudyInstanceUID, header.SeriesInstanceUID = made_uid(digest, "study"), made_uid(digest, "series")
    header.FrameOfReferenceUID = made_uid(digest, "frame")
    header.SpecificCharacterSet = "ISO_IR 192"
    header.PatientName = header.PatientID = re.sub(r"[\\=^]", "_", case)[:64]  # they divide values and names
    header.PatientBirthDate = header.PatientSex = header.StudyDate = header.StudyTime = ""
    header.StudyID = header.AccessionNumber = header.ReferringPhysicianName = ""
    header.Manufacturer, header.PositionReferenceIndicator = MANUFACTURER, ""
    header.KVP = header.AcquisitionNumber = None  # not known, but demanded, if only empty
    header.PatientPosition = header.Laterality = ""
    header.Modality, header.ImageType = "CT", ["DERIVED", "SECONDARY", "AXIAL"]
    header.SeriesNumber, header.InstanceNumber, header.SeriesDescription = 1, index + 1, "Converted scan"
    header.Rows, header.Columns = shape
    header.SliceThickness, *header.PixelSpacing = as_decimals(spacing_mm)
    header.SamplesPerPixel, header.PhotometricInterpretation = 1, "MONOCHROME2"
    header.BitsAllocated, header.BitsStored, header.HighBit, header.PixelRepresentation = 16, 16, 15, 1
    header.RescaleSlope, header.RescaleIntercept, header.RescaleType = 1, 0, "HU"
    return header
