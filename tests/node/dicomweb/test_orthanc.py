"""Orthanc with its DICOMweb plug-in: series are pulled from it, results stored in it and read back."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import gdcm
import highdicom as hd
import pydicom
import pytest
import SimpleITK as sitk
from made_archive import PASSWORD, USER, needs_dcmtk, needs_orthanc, orthanc, run_dcmtk
from made_node import SHORT, config_for, running, segment_balls, send, states, until
from made_scans import CENTRES_MM, compress, read_header, write_phantom_series, write_series

from continual_segment.cli.main import main
from continual_segment.clinic.jobs import Job
from continual_segment.node.config import Destination, Rule
from continual_segment.node.dicomweb.address import SeriesQuery
from continual_segment.node.dicomweb.http import WebError
from continual_segment.node.dicomweb.open import open_pull
from continual_segment.node.dicomweb.services import (
    RetrieveLimits,
    retrieve_series,
    search_series,
    store_file,
)

pytestmark = needs_orthanc


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    with orthanc(tmp_path_factory.mktemp("orthanc") / "here") as found:
        yield found


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    monkeypatch.setenv("CONSEG_DICOMWEB_USER", USER)
    monkeypatch.setenv("CONSEG_DICOMWEB_PASSWORD", PASSWORD)


def credentials_file(folder, archive):
    path = folder / "credentials.toml"
    path.write_text(f'["127.0.0.1:{archive.web_port}"]\nuser = "{USER}"\npassword = "{PASSWORD}"\n')
    path.chmod(0o600)
    return path


def service_of(archive):
    return open_pull(f"dicomweb+http://{archive.root}", None, None).archive


def upload(archive, folder, made=SHORT, syntax=None, **values):
    """Store a series by STOW-RS, one file after the other."""
    paths = write_series(folder, made, **values)
    for path in paths:
        if syntax is not None:
            compress(path, syntax)
        store_file(service_of(archive), path)
    return paths


def test_series_that_were_stored_are_found_by_their_attributes_and_retrieved_bit_by_bit(archive, tmp_path):
    kinds = {"1.2.31": None, "1.2.32": gdcm.TransferSyntax.JPEG2000Lossless}
    sent = {
        uid: upload(
            archive,
            tmp_path / uid,
            syntax=syntax,
            SeriesInstanceUID=uid,
            PatientID="ONE",
            StudyInstanceUID="1.2.3",
        )
        for uid, syntax in kinds.items()
    }
    upload(
        archive, tmp_path / "other", SeriesInstanceUID="1.2.41", PatientID="OTHER", StudyInstanceUID="1.2.4"
    )
    service = service_of(archive)
    found = search_series(service, SeriesQuery(filters=(("PatientID", "ONE"),)))
    assert [(each.study, each.uid, each.instances) for each in found] == [
        ("1.2.3", uid, SHORT.shape[0]) for uid in kinds
    ]
    assert search_series(service, SeriesQuery(study="1.2.4"))[0].uid == "1.2.41"
    assert search_series(service, SeriesQuery("1.2.3", "1.2.32"))[0].uid == "1.2.32"
    assert search_series(service, SeriesQuery(filters=(("PatientID", "NOBODY"),))) == []
    for series in found:
        retrieve_series(service, series, tmp_path / f"got{series.uid}", RetrieveLimits(free_disk_mb=1))
        got = {
            read_header(path).SOPInstanceUID: read_header(path)
            for path in (tmp_path / f"got{series.uid}").iterdir()
        }
        for path in sent[series.uid]:
            original = read_header(path)
            assert got[original.SOPInstanceUID].PixelData == original.PixelData
            assert (
                got[original.SOPInstanceUID].file_meta.TransferSyntaxUID
                == original.file_meta.TransferSyntaxUID
            )


def test_a_search_reads_page_after_page(archive, tmp_path, monkeypatch):
    monkeypatch.setattr("continual_segment.node.dicomweb.services.PAGE", 2)
    first = SHORT.without(*range(1, 9))
    for number in range(5):
        upload(archive, tmp_path / f"{number}", first, SeriesInstanceUID=f"1.2.5.{number}", PatientID="PAGES")
    found = search_series(service_of(archive), SeriesQuery(filters=(("PatientID", "PAGES"),)))
    assert [each.uid for each in found] == [f"1.2.5.{number}" for number in range(5)]


def test_wrong_credentials_are_refused_and_named(archive, monkeypatch):
    monkeypatch.setenv("CONSEG_DICOMWEB_PASSWORD", "wrong")
    with pytest.raises(WebError, match="401") as found:
        search_series(service_of(archive), SeriesQuery())
    assert "wrong" not in str(found.value)


@pytest.fixture
def results(tmp_path):
    """SEG and RTSTRUCT of a series that is on the disk."""
    paths = write_series(tmp_path / "series", SHORT, SeriesInstanceUID="1.2.6.1", PatientID="RESULTS")
    job = Job("case", tmp_path / "series", tmp_path / "results")
    segment_balls(job, Rule((tmp_path,)), ("dicom_seg", "dicom_labelmap", "rtstruct"))
    return paths, tmp_path / "results"


def test_results_are_read_back_from_the_archive_by_highdicom_and_simpleitk(archive, results, tmp_path):
    paths, folder = results
    for path in (*paths, folder / "case.seg.dcm", folder / "case.rtstruct.dcm"):
        store_file(service_of(archive), path)
        store_file(service_of(archive), path)  # the same object, so it is there once
    (stored,) = of_patient(archive, "SEG", "RESULTS")
    segments = hd.seg.Segmentation.from_dataset(stored).SegmentSequence
    assert {each.SegmentLabel for each in segments} == set(CENTRES_MM)
    stored.save_as(tmp_path / "read_back.dcm")
    image, original = (
        sitk.GetArrayFromImage(sitk.ReadImage(str(path))) == 255  # it leaves a last half byte uninitialised
        for path in (tmp_path / "read_back.dcm", folder / "case.seg.dcm")
    )
    assert image.shape[1:] == SHORT.shape[1:]
    assert (image == original).all()
    assert image.sum() == stored.pixel_array.sum() > 100
    (contours,) = of_patient(archive, "RTSTRUCT", "RESULTS")
    assert {each.ROIName for each in contours.StructureSetROISequence} == set(CENTRES_MM)


def of_patient(archive, modality, patient):
    found = [pydicom.dcmread(io.BytesIO(each)) for each in archive.files(modality)]
    return [each for each in found if each.PatientID == patient]


@needs_dcmtk
def test_dcmtk_sends_results_to_the_archive_finds_and_parses_them(archive, results):
    _, folder = results
    where = ("-aec", "ARCHIVE", "127.0.0.1", archive.dicom_port)
    run("echoscu", *where)
    run("storescu", "-R", *where, folder / "case.seg.dcm", folder / "case.rtstruct.dcm")
    keys = ["-k", "QueryRetrieveLevel=SERIES", "-k", "PatientID=RESULTS", "-k", "Modality"]
    found = run("findscu", "-S", *keys, *where)
    assert "SEG" in found
    assert "RTSTRUCT" in found
    for name in ("seg", "labelmap", "rtstruct"):
        assert "SOPInstanceUID" in run("dcmdump", "+L", folder / f"case.{name}.dcm")
        assert "<file-format" in run("dcm2xml", folder / f"case.{name}.dcm")


def run(*command):
    done = run_dcmtk(*command)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_node_stores_its_results_by_dicomweb(archive, tmp_path):
    sent = [read_header(path) for path in write_series(tmp_path / "sent", SHORT, PatientID="NODE")]
    web = Destination(
        "web",
        url=f"http://{archive.root}",
        credentials=credentials_file(tmp_path, archive),
        formats=("dicom_seg", "rtstruct"),
    )
    with running(replace(config_for(tmp_path, 1), destinations=(web,))) as node:
        assert set(send(node.address[1], sent)) == {0}
        until(node, lambda: states(node) == ["done"])
    for modality in ("SEG", "RTSTRUCT"):
        (found,) = of_patient(archive, modality, "NODE")
        assert found.StudyInstanceUID == sent[0].StudyInstanceUID


def test_conseg_segment_pulls_series_stores_results_and_resumes(
    archive, tmp_path, shared_model_folder, scan_path, caplog
):
    for number in range(2):
        for image in write_phantom_series(
            tmp_path / f"sent{number}", scan_path, SeriesInstanceUID=f"1.2.7.{number}", PatientID="PULL"
        ):
            store_file(service_of(archive), image)
    upload(
        archive,
        tmp_path / "scout",
        SHORT.without(*range(2, 9)),
        SeriesInstanceUID="1.2.7.9",
        PatientID="PULL",
    )
    address = f"dicomweb+http://{archive.root}?PatientID=PULL"
    command = ["segment", address, "-m", str(shared_model_folder), "-o", str(tmp_path / "out")]
    command += ["-ot", "nifti,dicom_seg", "--overlap", "0.25", "--stow"]
    assert main(command) == 0
    out = tmp_path / "out"
    assert sorted(path.name for path in out.glob("*.nii.gz")) == ["1.2.7.0.nii.gz", "1.2.7.1.nii.gz"]
    assert not list(out.glob(".*"))
    assert len(of_patient(archive, "SEG", "PULL")) == 2
    (out / "stored" / "1.2.7.0.json").unlink()  # as if the archive had been away: stored again, not segmented
    before = (out / "1.2.7.0.nii.gz").stat().st_mtime_ns
    caplog.set_level("INFO")
    assert main(command) == 0
    assert "1.2.7.0: stored" in caplog.text
    assert json.loads((out / "stored" / "1.2.7.0.json").read_text())["archive"].endswith("/dicom-web")
    assert (out / "1.2.7.0.nii.gz").stat().st_mtime_ns == before
