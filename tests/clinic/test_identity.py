"""DICOM results belong to the patient and study of the scan, whatever single UIDs that lacks."""

from __future__ import annotations

import numpy as np
import pydicom
import pytest
from made_scans import header, write_enhanced, write_series

from continual_segment.clinic.formats import Labelled, write_format
from continual_segment.clinic.jobs import Job
from continual_segment.files import read_source
from continual_segment.volume import LabelMap

KEPT = ("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyID")
FORMATS = {
    "dicom_seg": "case.seg.dcm",
    "dicom_labelmap": "case.labelmap.dcm",
    "rtstruct": "case.rtstruct.dcm",
}


def results_of(scan, out):
    """The DICOM results of a scan by format."""
    source = read_source(scan)
    labels = LabelMap((source.volume.voxels > 300).astype(np.uint8), source.volume.grid, {1: "liver"})
    case = Labelled(Job("case", scan, out), source, labels, nested=False)
    for name in FORMATS:
        write_format(name, out, case)
    return {name: pydicom.dcmread(out / file) for name, file in FORMATS.items()}


@pytest.fixture
def results(tmp_path):
    """Results of a series without these header fields."""

    def write(*missing):
        scan = tmp_path / "_".join(missing)
        write_series(scan, **dict.fromkeys(missing))
        return results_of(scan, tmp_path / "out" / scan.name)

    return write


def referred(data):
    """UIDs of the slices that a result refers to."""
    if "ReferencedSeriesSequence" in data:
        items = data.ReferencedSeriesSequence[0].ReferencedInstanceSequence
    else:
        study = data.ReferencedFrameOfReferenceSequence[0].RTReferencedStudySequence[0]
        items = study.RTReferencedSeriesSequence[0].ContourImageSequence
    return {item.ReferencedSOPInstanceUID for item in items}


@pytest.mark.parametrize("format_", FORMATS)
def test_a_missing_frame_of_reference_is_made_and_nothing_else_changes(format_, results, tmp_path):
    data = results("FrameOfReferenceUID")[format_]
    for keyword in (*KEPT, "StudyInstanceUID"):
        assert data[keyword].value == header()[keyword].value
    slices = {pydicom.dcmread(path).SOPInstanceUID for path in (tmp_path / "FrameOfReferenceUID").iterdir()}
    assert referred(data) <= slices
    assert not (tmp_path / "out" / "FrameOfReferenceUID" / "case_ct").exists()


def test_the_frame_of_reference_is_the_same_in_all_results_and_every_time(results, tmp_path):
    first = {data.FrameOfReferenceUID for data in results("FrameOfReferenceUID").values()}
    again = results_of(tmp_path / "FrameOfReferenceUID", tmp_path / "again")
    assert first == {data.FrameOfReferenceUID for data in again.values()}
    assert len(first) == 1


def test_slices_that_lack_it_take_the_frame_of_reference_of_the_others(tmp_path):
    for path in write_series(tmp_path / "scan")[3:7]:
        data = pydicom.dcmread(path)
        del data.FrameOfReferenceUID
        data.save_as(path)
    found = results_of(tmp_path / "scan", tmp_path / "out")
    assert {data.FrameOfReferenceUID for data in found.values()} == {header().FrameOfReferenceUID}


def test_a_multi_frame_file_without_a_frame_of_reference_stays_one_file(tmp_path):
    path = write_enhanced(tmp_path / "scan.dcm")
    data = pydicom.dcmread(path)
    uid = data.SOPInstanceUID
    del data.FrameOfReferenceUID
    data.save_as(path)
    for result in results_of(path, tmp_path / "out").values():
        assert referred(result) == {uid}
        assert result.PatientID == "SECRET-4711"


@pytest.mark.parametrize("missing", ["SeriesInstanceUID", "SOPInstanceUID", "StudyInstanceUID"])
def test_a_copy_of_slices_without_uids_is_of_the_same_patient(missing, results, tmp_path):
    if missing == "SOPInstanceUID":
        for path in write_series(tmp_path / missing):
            data = pydicom.dcmread(path)
            data.SOPInstanceUID = ""
            data.save_as(path)
        found = results_of(tmp_path / missing, tmp_path / "out" / missing)
    else:
        found = results(missing)
    copies = [pydicom.dcmread(path) for path in (tmp_path / "out" / missing / "case_ct").iterdir()]
    for data in (*found.values(), *copies):
        for keyword in KEPT:
            assert data[keyword].value == header()[keyword].value
        assert (data.StudyInstanceUID == header().StudyInstanceUID) == (missing != "StudyInstanceUID")
        assert data.FrameOfReferenceUID == header().FrameOfReferenceUID
    for data in found.values():
        assert referred(data) <= {copy.SOPInstanceUID for copy in copies}


def test_a_patient_without_a_name_does_not_get_that_of_the_case(results):
    data = results("PatientName", "SeriesInstanceUID")["dicom_seg"]
    assert (data.PatientID, str(data.PatientName)) == ("SECRET-4711", "")
    data = results("PatientName", "PatientID", "SeriesInstanceUID")["dicom_seg"]
    assert data.PatientID == "case"
