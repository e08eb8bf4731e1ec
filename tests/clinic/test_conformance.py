"""DICOM results conform to the standard, whatever the headers of the series hold."""

from __future__ import annotations

import shutil
import subprocess
from datetime import datetime, timedelta
from pathlib import Path

import pydicom
import pytest
from made_scans import (
    AXIAL,
    CENTRES_MM,
    GEOMETRIES,
    ball_labels,
    balls_on,
    read_header,
    write_enhanced,
    write_nifti,
    write_series,
)
from pydicom.uid import SegmentationStorage

from continual_segment.clinic.formats import Labelled, write_format
from continual_segment.clinic.jobs import Job
from continual_segment.files import read_source
from continual_segment.organs import find_organ

IDS = {name: find_organ(name).id for name in CENTRES_MM}
IDENTITY = [
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
OTHERS = [
    "SpecificCharacterSet",
    "IssuerOfPatientID",
    "PatientAge",
    "PatientSize",
    "PatientWeight",
    "EthnicGroup",
    "PatientComments",
    "ReferencedPatientSequence",
    "StudyDescription",
    "ProcedureCodeSequence",
    "ReferencedStudySequence",
    "Manufacturer",
    "ManufacturerModelName",
    "DeviceSerialNumber",
    "SoftwareVersions",
    "InstitutionName",
    "SeriesDescription",
    "SeriesNumber",
    "SeriesDate",
    "Laterality",
    "BodyPartExamined",
    "PatientPosition",
    "PositionReferenceIndicator",
    "AcquisitionNumber",
    "ContentDate",
    "SliceThickness",
    "SpacingBetweenSlices",
    "KVP",
    "LossyImageCompression",
    "LossyImageCompressionRatio",
    "LossyImageCompressionMethod",
]
ODD = {
    "PatientBirthDate": "00000000",
    "PatientSex": "W",
    "StudyDate": "2024-01-02",
    "StudyTime": "10:11:12",
    "SliceThickness": "-1",
    "LossyImageCompression": "01",
    "PatientAge": "74 years",
    "PatientWeight": "0.12345678901234567890",
}
NEW_IN_LABEL_MAPS = ("SegmentNumber", "SegmentIdentificationSequence", "LABELMAP")
"""Where label maps differ from binary segmentations, which is all that older versions of dciodvfy know."""


def series(folder, made=AXIAL, change=lambda data: None):
    for path in write_series(folder / "series", made):
        data = read_header(path)
        change(data)
        data.save_as(path)
    return folder / "series"


def emptied(data):
    for keyword in (*IDENTITY, *OTHERS):
        setattr(data, keyword, [] if keyword.endswith("Sequence") else None)


def stripped(data):
    for keyword in (*IDENTITY, *OTHERS):
        if keyword in data:
            delattr(data, keyword)


def odd(data):
    for keyword, value in ODD.items():
        data[keyword] = pydicom.DataElement(
            keyword, pydicom.datadict.dictionary_VR(keyword), value, validation_mode=0
        )


def without_uids(data):
    data.SeriesInstanceUID = ""
    del data.FrameOfReferenceUID


SOURCES = {
    "normal": series,
    "emptied": lambda folder: series(folder, change=emptied),
    "stripped": lambda folder: series(folder, change=stripped),
    "odd": lambda folder: series(folder, change=odd),
    "tilted": lambda folder: series(folder, GEOMETRIES["tilted"]),
    "enhanced": lambda folder: write_enhanced(folder / "enhanced.dcm"),
    "without UIDs": lambda folder: series(folder, change=without_uids),
    "NIfTI": lambda folder: write_nifti(folder / "scan.nii.gz"),
    "sheared NIfTI": lambda folder: write_nifti(folder / "scan.nii.gz", GEOMETRIES["tilted"]),
}


def results_of(path: Path, folder: Path, case: str = "case") -> Path:
    """Everything in DICOM that is written for a scan."""
    source = read_source(path)
    labels = ball_labels(source.on_grid.voxels, source.grid, IDS)
    on_slices = source.slices and balls_on(source.slices, IDS)
    labelled = Labelled(Job(case, path, folder, alone=False), source, labels, False, on_slices)
    folder.mkdir()
    for name in ("dicom_seg", "dicom_labelmap", "rtstruct"):
        write_format(name, folder, labelled)
    return folder


@pytest.fixture(scope="module", params=SOURCES)
def results(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("conformance")
    return results_of(SOURCES[request.param](folder), folder / "out")


def complaints(path: Path) -> list[str]:
    run = subprocess.run(["dciodvfy", "-new", path], capture_output=True, text=True, check=False)
    return sorted({line for line in (run.stdout + run.stderr).splitlines() if line.startswith("Error")})


def label_map_complaints(path: Path) -> list[str]:
    """As a binary segmentation where dciodvfy is older than label maps."""
    found = complaints(path)
    if not any("Information Object Not found" in line for line in found):
        return found
    data = pydicom.dcmread(path)
    data.SOPClassUID = data.file_meta.MediaStorageSOPClassUID = SegmentationStorage
    data.save_as(path.with_suffix(".as_binary"))
    found = complaints(path.with_suffix(".as_binary"))
    return [line for line in found if not any(word in line for word in NEW_IN_LABEL_MAPS)]


@pytest.mark.skipif(shutil.which("dciodvfy") is None, reason="dciodvfy (dicom3tools) is not installed")
def test_dciodvfy_finds_no_error(results):
    assert complaints(results / "case.seg.dcm") == []
    assert label_map_complaints(results / "case.labelmap.dcm") == []
    assert complaints(results / "case.rtstruct.dcm") == []
    for copy in sorted(results.glob("case_ct/*"))[::12]:
        assert complaints(copy) == []


def test_every_result_has_what_the_standard_demands_if_only_empty(results):
    for name in ("seg", "labelmap", "rtstruct"):
        data = read_header(results / f"case.{name}.dcm")
        assert not [each for each in (*IDENTITY, "PositionReferenceIndicator") if each not in data]
    for copy in results.glob("case_ct/*"):
        demanded = ("KVP", "AcquisitionNumber", "PatientPosition", "Laterality")
        assert not [each for each in demanded if each not in read_header(copy)]


def test_values_of_no_meaning_are_left_out_and_those_of_the_patient_kept(tmp_path):
    folder = results_of(series(tmp_path, change=odd), tmp_path / "out")
    for name in ("seg", "labelmap", "rtstruct"):
        data = read_header(folder / f"case.{name}.dcm")
        assert (data.PatientName, data.PatientID, data.StudyID) == ("Doe^Jane", "SECRET-4711", "1")
        assert not any((data.PatientBirthDate, data.PatientSex, data.StudyDate, data.StudyTime))
        assert "PatientAge" not in data


def test_a_structure_set_is_of_today_and_keeps_the_date_of_the_study(tmp_path):
    before = datetime.now() - timedelta(seconds=1)
    data = read_header(results_of(series(tmp_path), tmp_path / "out") / "case.rtstruct.dcm")
    made = datetime.strptime(data.StructureSetDate + data.StructureSetTime, "%Y%m%d%H%M%S")
    assert before <= made <= datetime.now()
    assert (data.StudyDate, data.StudyTime) == ("20240102", "101112")


@pytest.mark.parametrize(
    ("character_set", "name"),
    [("ISO_IR 100", "Müller^Jörg"), ("ISO_IR 192", "Jiří^A"), (["", "ISO 2022 IR 87"], "Yamada=山田^太郎")],
)
def test_names_in_any_script_are_taken_over(character_set, name, tmp_path):
    def change(data):
        data.SpecificCharacterSet, data.PatientName = character_set, name

    folder = results_of(series(tmp_path, change=change), tmp_path / "out")
    for kind in ("seg", "labelmap", "rtstruct"):
        assert str(read_header(folder / f"case.{kind}.dcm").PatientName) == name


def test_a_case_of_any_name_becomes_a_patient(tmp_path):
    folder = results_of(write_nifti(tmp_path / "scan.nii.gz"), tmp_path / "out", "Köln=7^a")
    copy = read_header(next((folder / "Köln=7^a_ct").iterdir()))
    assert (str(copy.PatientName), copy.PatientID) == ("Köln_7_a", "Köln_7_a")


def test_orientations_that_differ_in_their_rounding_are_one(tmp_path):
    slices = iter(range(AXIAL.shape[0]))

    def change(data):
        data.ImageOrientationPatient = [1, 0, 0.000001 * next(slices), 0, 1, 0]

    folder = results_of(series(tmp_path, change=change), tmp_path / "out")
    assert len(read_header(folder / "case.labelmap.dcm").PerFrameFunctionalGroupsSequence) == AXIAL.shape[0]


def test_frames_are_counted_as_in_the_file_also_where_some_are_left_out(tmp_path):
    """The first frame is there twice, so all others are one later in the file than in the volume."""
    data = read_header(write_enhanced(tmp_path / "enhanced.dcm"))
    groups = data.PerFrameFunctionalGroupsSequence
    groups.insert(0, groups[0])
    data.NumberOfFrames += 1
    data.PixelData = data.PixelData[: data.Rows * data.Columns * 2] + data.PixelData
    data.save_as(tmp_path / "enhanced.dcm")
    folder = results_of(tmp_path / "enhanced.dcm", tmp_path / "out")
    result = read_header(folder / "case.labelmap.dcm")
    assert len(result.PerFrameFunctionalGroupsSequence) == AXIAL.shape[0]
    for group in result.PerFrameFunctionalGroupsSequence:
        image = group.DerivationImageSequence[0].SourceImageSequence[0]
        named = groups[image.ReferencedFrameNumber - 1].PlanePositionSequence[0].ImagePositionPatient
        assert group.PlanePositionSequence[0].ImagePositionPatient == pytest.approx(named)
