"""CT scans made for tests: balls at known places of a patient, written by other libraries than ours.

Millimetres count as in DICOM: left, posterior, superior.
"""

from __future__ import annotations

import os
import signal
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import gdcm
import nibabel as nib
import numpy as np
import pydicom
import SimpleITK as sitk
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.uid import CTImageStorage, EnhancedCTImageStorage, ExplicitVRLittleEndian, generate_uid

from continual_segment.clinic.read import Case, read_case
from continual_segment.volume import Grid, LabelMap

AIR, BODY, BALL = -1000, 40, 440
LEVEL = (BODY + BALL) / 2
CENTRES_MM = {  # organ -> centre; no two are mirror images of each other
    "liver": (-22.3, -8.4, 12.7),
    "spleen": (19.6, 11.2, 15.3),
    "urinary_bladder": (4.1, 3.7, -19.9),
}
RADIUS_MM = 11.0
LPS = np.diag([-1.0, -1.0, 1.0, 1.0])


@dataclass(frozen=True, eq=False)
class Made:
    """Slices of the test patient."""

    row: np.ndarray
    """Unit vector in which the column index grows."""
    column: np.ndarray
    step: np.ndarray
    """From slice to slice, millimetres."""
    pixel_mm: tuple[float, float] = (2.1, 1.9)
    """Between rows, between columns."""
    shape: tuple[int, int, int] = (26, 46, 50)
    """Slices, rows, columns."""
    keep: tuple[int, ...] | None = None
    """Which slices there are; all unless told."""
    positions: np.ndarray = field(init=False)
    voxels: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        slices, rows, columns = self.shape
        middle = (
            self.row * self.pixel_mm[1] * (columns - 1) / 2
            + self.column * self.pixel_mm[0] * (rows - 1) / 2
            + self.step * (slices - 1) / 2
        )
        indices = np.arange(slices) if self.keep is None else np.array(self.keep)
        object.__setattr__(self, "positions", indices[:, None] * self.step - middle)
        object.__setattr__(self, "voxels", np.stack([self.slice_at(place) for place in self.positions]))

    def slice_at(self, place: np.ndarray) -> np.ndarray:
        _, rows, columns = self.shape
        points = (
            place
            + np.arange(rows)[:, None, None] * self.pixel_mm[0] * self.column
            + np.arange(columns)[None, :, None] * self.pixel_mm[1] * self.row
        )
        inside = (points / np.array([44.0, 40.0, 38.0])) ** 2
        values = np.where(inside.sum(-1) < 1, BODY, AIR).astype(float)
        for centre in CENTRES_MM.values():
            distance = np.linalg.norm(points - centre, axis=-1)
            values += (BALL - BODY) * np.clip((RADIUS_MM - distance) / 2 + 0.5, 0, 1)
        return np.rint(values).astype(np.int16)

    @property
    def affine(self) -> np.ndarray:
        """Index (column, row, slice) -> millimetres left, posterior, superior."""
        affine = np.eye(4)
        affine[:3, 0] = self.row * self.pixel_mm[1]
        affine[:3, 1] = self.column * self.pixel_mm[0]
        affine[:3, 2] = self.step
        affine[:3, 3] = self.positions[0]
        return affine

    def without(self, *missing: int) -> Made:
        return replace(self, keep=tuple(k for k in range(self.shape[0]) if k not in missing))


def turned(row, column, step, **options) -> Made:
    return Made(np.array(row, float), np.array(column, float), np.array(step, float), **options)


def tilted(degrees: float, **options) -> Made:
    angle = np.radians(degrees)
    return turned([1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, 0, 3.1], **options)


AXIAL = turned([1, 0, 0], [0, 1, 0], [0, 0, 3.1])
GEOMETRIES = {
    "axial": AXIAL,
    "reversed": turned([1, 0, 0], [0, 1, 0], [0, 0, -3.1]),
    "sagittal": turned([0, 1, 0], [0, 0, -1], [3.1, 0, 0]),
    "coronal": turned([1, 0, 0], [0, 0, -1], [0, -3.1, 0]),
    "negated-cosines": turned([-1, 0, 0], [0, -1, 0], [0, 0, 3.1]),
    "one-cosine-negated": turned([-1, 0, 0], [0, 1, 0], [0, 0, 3.1]),
    "oblique": turned([0.96, 0.28, 0], [-0.28, 0.96, 0], [0, 0, 3.1]),
    "tilted": tilted(18.0),
    "tilted-back": tilted(-5.0),
}


def header(number: int = 0, modality: str = "CT", **values) -> Dataset:
    """What every slice of the patient says."""
    data = Dataset()
    data.SOPClassUID = CTImageStorage
    data.SOPInstanceUID = generate_uid(entropy_srcs=[repr(sorted(values.items())), str(number), modality])
    data.StudyInstanceUID = generate_uid(entropy_srcs=["study"])
    data.SeriesInstanceUID = generate_uid(entropy_srcs=["series"])
    data.FrameOfReferenceUID = generate_uid(entropy_srcs=["frame"])
    data.PatientName, data.PatientID = "Doe^Jane", "SECRET-4711"
    data.PatientBirthDate, data.PatientSex = "19500101", "F"
    data.StudyDate, data.StudyTime, data.StudyID = "20240102", "101112", "1"
    data.AccessionNumber, data.ReferringPhysicianName = "", ""
    data.Manufacturer, data.SeriesDescription = "Test", "Body 3.1"
    data.Modality, data.ImageType = modality, ["ORIGINAL", "PRIMARY", "AXIAL"]
    data.SeriesNumber, data.InstanceNumber, data.AcquisitionNumber = 2, number + 1, 1
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 16, 16, 15, 1
    data.RescaleSlope, data.RescaleIntercept, data.RescaleType = 1, 0, "HU"
    for keyword, value in values.items():
        if value is None:
            delattr(data, keyword)
        else:
            setattr(data, keyword, value)
    return data


def save(path: Path, data: Dataset) -> Path:
    data.file_meta = FileMetaDataset()
    data.file_meta.MediaStorageSOPClassUID = data.SOPClassUID
    data.file_meta.MediaStorageSOPInstanceUID = data.SOPInstanceUID
    data.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    path.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(path, enforce_file_format=True)
    return path


def write_series(folder: Path, made: Made = AXIAL, name: str = "slice", **values) -> list[Path]:
    """One file per slice, file names in no order of place; `values` overrule header fields."""
    paths = []
    for number, (place, piece) in enumerate(zip(made.positions, made.voxels, strict=True)):
        data = header(number, **values)
        data.ImagePositionPatient = [round(float(part), 6) for part in place]
        data.ImageOrientationPatient = [round(float(part), 8) for part in (*made.row, *made.column)]
        data.PixelSpacing = list(made.pixel_mm)
        data.SliceThickness = float(np.linalg.norm(made.step))
        data.Rows, data.Columns = piece.shape
        stored = (piece.astype(np.int32) - int(data.RescaleIntercept)).astype(np.int16)
        data.PixelData = stored.tobytes()
        paths.append(save(folder / f"{name}_{number * 7 % 97 + number // 97 * 97:03}.dcm", data))
    return paths


def write_phantom_series(folder: Path, scan_path: Path, **values) -> list[Path]:
    """A phantom's NIfTI file as DICOM slices."""
    image = nib.as_closest_canonical(nib.load(scan_path))
    voxels = np.asarray(image.dataobj).transpose(2, 1, 0)[:, ::-1, ::-1]  # from left to right, front to back
    x, y, z = image.header.get_zooms()
    made = turned([1, 0, 0], [0, 1, 0], [0, 0, z], pixel_mm=(float(y), float(x)), shape=voxels.shape)
    object.__setattr__(made, "voxels", np.rint(voxels).astype(np.int16))
    return write_series(folder, made, **values)


def write_enhanced(path: Path, made: Made = AXIAL) -> Path:
    """All slices as frames of one file."""
    data = header(0, SOPClassUID=EnhancedCTImageStorage)
    del data.RescaleSlope, data.RescaleIntercept, data.RescaleType
    shared, measures, plane, values = Dataset(), Dataset(), Dataset(), Dataset()
    measures.PixelSpacing, measures.SliceThickness = list(made.pixel_mm), float(np.linalg.norm(made.step))
    plane.ImageOrientationPatient = [float(part) for part in (*made.row, *made.column)]
    values.RescaleSlope, values.RescaleIntercept, values.RescaleType = 1, -1024, "HU"
    shared.PixelMeasuresSequence = Sequence([measures])
    shared.PlaneOrientationSequence = Sequence([plane])
    shared.PixelValueTransformationSequence = Sequence([values])
    data.SharedFunctionalGroupsSequence = Sequence([shared])
    frames = []
    for place in made.positions:
        frame, position = Dataset(), Dataset()
        position.ImagePositionPatient = [float(part) for part in place]
        frame.PlanePositionSequence = Sequence([position])
        frames.append(frame)
    data.PerFrameFunctionalGroupsSequence = Sequence(frames)
    data.NumberOfFrames = len(frames)
    data.Rows, data.Columns = made.voxels.shape[1:]
    data.PixelData = (made.voxels + 1024).astype(np.int16).tobytes()
    return save(path, data)


def compress(path: Path, syntax: int) -> None:
    """Store a file's pixels in another transfer syntax, by gdcm."""
    reader = gdcm.ImageReader()
    reader.SetFileName(str(path))
    assert reader.Read()
    change = gdcm.ImageChangeTransferSyntax()
    change.SetTransferSyntax(gdcm.TransferSyntax(syntax))
    change.SetInput(reader.GetImage())
    assert change.Change()
    writer = gdcm.ImageWriter()
    writer.SetFileName(str(path))
    writer.SetFile(reader.GetFile())
    writer.SetImage(change.GetOutput())
    assert writer.Write()


def write_zip(path: Path, files: list[Path]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in files:
            archive.write(file, f"some folder/{file.name}")
    return path


def write_nifti(path: Path, made: Made = AXIAL) -> Path:
    nib.save(nib.Nifti1Image(made.voxels.transpose(2, 1, 0), LPS @ made.affine), path)
    return path


def write_by_itk(path: Path, made: Made = AXIAL) -> Path:
    """NRRD or MetaImage, by the name's ending; compressed."""
    image = sitk.GetImageFromArray(made.voxels)
    spacing = (made.pixel_mm[1], made.pixel_mm[0], float(np.linalg.norm(made.step)))
    image.SetSpacing(spacing)
    image.SetOrigin([float(part) for part in made.positions[0]])
    image.SetDirection((made.affine[:3, :3] / np.array(spacing)).ravel().tolist())
    sitk.WriteImage(image, str(path), useCompression=True)
    return path


WRITERS = {
    "dicom": lambda folder, made: (write_series(folder / "series", made), folder / "series")[1],
    "zip": lambda folder, made: write_zip(folder / "series.zip", write_series(folder / "unpacked", made)),
    "enhanced": lambda folder, made: write_enhanced(folder / "enhanced.dcm", made),
    "nifti": lambda folder, made: write_nifti(folder / "scan.nii.gz", made),
    "nrrd": lambda folder, made: write_by_itk(folder / "scan.nrrd", made),
    "mha": lambda folder, made: write_by_itk(folder / "scan.mha", made),
}
"""Kind of input -> what writes it into a folder and gives its path."""


def is_sheared(made: Made) -> bool:
    return abs(np.cross(made.row, made.column) @ made.step) < 0.999 * np.linalg.norm(made.step)


def ball_labels(voxels: np.ndarray, grid: Grid, ids: dict[str, int]) -> LabelMap:
    """What a perfect model would answer: every ball an organ."""
    found = np.zeros(voxels.shape, np.uint16)
    z, y, x = np.nonzero(voxels > LEVEL)
    places = np.stack([x, y, z, np.ones_like(x)]).T @ (LPS @ grid.affine).T
    away = np.stack([np.linalg.norm(places[:, :3] - centre, axis=1) for centre in CENTRES_MM.values()])
    found[z, y, x] = np.array([ids[name] for name in CENTRES_MM])[away.argmin(axis=0)]
    return LabelMap(found, grid, {number: name for name, number in ids.items()})


def balls_on(grid: Grid, ids: dict[str, int]) -> LabelMap:
    """The balls on a grid, whatever a scan shows there."""
    index = np.indices(grid.shape).reshape(3, -1)[::-1]
    places = (LPS @ grid.affine @ np.vstack([index, np.ones(index.shape[1])]))[:3].T
    found = np.zeros(len(places), np.uint16)
    for name, centre in CENTRES_MM.items():
        found[np.linalg.norm(places - centre, axis=1) < RADIUS_MM] = ids[name]
    return LabelMap(found.reshape(grid.shape), grid, {number: name for name, number in ids.items()})


def centroid(mask: np.ndarray, affine: np.ndarray) -> np.ndarray:
    """Of a mask (slice, row, column), through an affine of (column, row, slice)."""
    index = np.argwhere(mask).mean(axis=0)[::-1]
    return affine[:3, :3] @ index + affine[:3, 3]


def read_header(path: Path) -> Dataset:
    return pydicom.dcmread(path)


def read_or_die(job, series, force) -> Case:
    """For a process that reads: killed at a case of that name."""
    if "deadly" in job.case:
        os.kill(os.getpid(), signal.SIGKILL)
    return read_case(job, series, force)
