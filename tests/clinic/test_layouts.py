"""Which scans of a folder are read, what their cases are called, and what is listed as left out."""

from __future__ import annotations

import shutil

import pytest
from made_scans import AXIAL, write_nifti, write_series

from continual_segment.clinic.jobs import list_jobs
from continual_segment.errors import ScanError

SMALL = AXIAL.without(*range(3, 26))


@pytest.fixture(scope="module")
def scan(tmp_path_factory):
    return write_nifti(tmp_path_factory.mktemp("scan") / "scan.nii.gz", SMALL)


@pytest.fixture
def put(scan, tmp_path):
    """Copy a scan to places in the folder `in`, which is given back."""

    def copy(*places):
        for place in places:
            target = tmp_path / "in" / place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(scan, target)
        return tmp_path / "in"

    return copy


def cases(folder, out):
    return {job.case: str(job.source.relative_to(folder)) for job in list_jobs(folder, out)}


def test_a_totalsegmentator_dataset_is_a_batch_named_by_its_folders(put, tmp_path, caplog):
    folder = put("s0001/ct.nii.gz", "s0001/segmentations/liver.nii.gz", "s0002/ct.nii.gz")
    (folder / "meta.csv").touch()
    assert cases(folder, tmp_path) == {"s0001": "s0001/ct.nii.gz", "s0002": "s0002/ct.nii.gz"}
    assert caplog.text == ""
    (tmp_path / "list.txt").write_text("in/s0001/ct.nii.gz\nin/s0002/ct.nii.gz\n")
    assert [job.case for job in list_jobs(tmp_path / "list.txt", tmp_path)] == ["s0001", "s0002"]


def test_a_bids_dataset_is_a_batch_named_by_its_files(put, tmp_path, caplog):
    folder = put(
        "sub-01/ct/sub-01_ct.nii.gz",
        "sub-02/ses-a/ct/sub-02_ses-a_ct.nii.gz",
        "sub-02/ses-b/ct/sub-02_ses-b_ct.nii.gz",
        "sub-02/ses-b/pet/sub-02_ses-b_pet.nii.gz",
        "derivatives/totalseg/sub-01/ct/sub-01_ct.nii.gz",
    )
    (folder / "dataset_description.json").touch()
    assert list(cases(folder, tmp_path)) == ["sub-01_ct", "sub-02_ses-a_ct", "sub-02_ses-b_ct"]
    assert "left out, because not read as scans: 2 (" in caplog.text
    assert "derivatives/totalseg/sub-01/ct/: 1 file, sub-02/ses-b/pet/: 1 file)" in caplog.text
    assert list(cases(folder / "sub-02", tmp_path)) == ["sub-02_ses-a_ct", "sub-02_ses-b_ct"]


def test_layouts_dicom_and_files_side_by_side_are_all_read(put, tmp_path, caplog):
    folder = put("a.nii.gz", "b/ct.nii.gz", ".hidden/ct.nii.gz", "out/a.nii.gz", "out/ct.nii.gz")
    write_series(folder / "c" / "series", SMALL)
    assert list(cases(folder, folder / "out")) == ["a", "b", "c"]
    assert caplog.text == ""


def test_a_sibling_of_the_only_dicom_folder_is_read(put, tmp_path):
    folder = put("b/ct.nii.gz")
    write_series(folder / "a", SMALL)
    assert list(cases(folder, tmp_path)) == ["a", "b"]


def test_what_is_left_out_is_listed_by_number_and_first_names(put, tmp_path, caplog):
    folder = put("a.nii.gz", *(f"p{number}/scan.nii.gz" for number in range(1, 7)))
    (folder / "empty").mkdir()
    (folder / "scan.dcm.gz").write_bytes(b"x")
    assert list(cases(folder, tmp_path)) == ["a"]
    assert "8 (empty/, p1/: 1 file, p2/: 1 file, p3/: 1 file, p4/: 1 file and 3 more)" in caplog.text


def test_scans_beside_the_dicom_files_of_one_study_are_listed(put, tmp_path, caplog):
    folder = put("export/scan.nii.gz")
    write_series(folder / "series", SMALL)
    assert list(cases(folder, tmp_path)) == ["in"]
    assert "1 (export/: 1 file)" in caplog.text


def test_dicom_files_beside_a_named_ct_are_listed(put, tmp_path, caplog):
    folder = put("a/ct.nii.gz", "b/ct.nii.gz")
    write_series(folder / "b" / "dicom", SMALL)
    assert cases(folder, tmp_path)["b"] == "b/ct.nii.gz"
    assert "1 (b/: DICOM)" in caplog.text


def test_a_folder_without_a_scan_names_those_below_that_have_some(put, tmp_path):
    folder = put("imagesTr/a.nii.gz", "labelsTr/a.nii.gz")
    with pytest.raises(ScanError, match="imagesTr/: 1 file, labelsTr/: 1 file"):
        list_jobs(folder, tmp_path)


@pytest.mark.parametrize("name", ["-rf", ".._0000", "con", "a\x1b[31m", "x" * 201])
def test_a_case_that_cannot_be_a_file_name_is_refused(name, put, tmp_path):
    folder = put(f"{name}.nii.gz", "b.nii.gz")
    if name.startswith("."):  # hidden files are not read, hidden names in a list are
        (tmp_path / "list.txt").write_text(f"in/{name}.nii.gz\n")
        folder = tmp_path / "list.txt"
    for source in (folder, tmp_path / "in" / f"{name}.nii.gz"):
        with pytest.raises(ScanError, match="cannot be used as a file name") as refused:
            list_jobs(source, tmp_path / "out")
        assert "\x1b" not in str(refused.value)


def test_names_that_terminals_would_obey_are_shown_without_effect(put, tmp_path, caplog):
    folder = put("a.nii.gz", "\x1b[31mp/scan.nii.gz")
    list_jobs(folder, tmp_path)
    assert "\x1b" not in caplog.text
    assert "[31mp/: 1 file" in caplog.text


@pytest.mark.parametrize(("source", "output"), [("", ""), ("a.nii.gz", ""), ("a.nii.gz", "a.nii.gz")])
def test_results_never_overwrite_their_scan(source, output, put, tmp_path):
    folder = put("a.nii.gz", "b.nii.gz")
    with pytest.raises(ScanError, match=r"a\.nii\.gz: .*overwrite"):
        list_jobs(folder / source, folder / output, as_file=output.endswith(".gz"))


def test_a_scan_of_a_list_that_is_gone_fails_by_itself(put, tmp_path):
    put("a.nii.gz")
    (tmp_path / "list.txt").write_text("in/a.nii.gz\nin/gone.nii.gz\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "gone.nii.gz").touch()  # its result of another night
    assert [job.case for job in list_jobs(tmp_path / "list.txt", tmp_path / "out")] == ["a", "gone"]
