"""Series of a study as cases: rules in a batch, what is recorded of the one taken, and of files left out."""

from __future__ import annotations

import json

import pytest
from made_scans import AXIAL, CENTRES_MM, ball_labels, write_nifti, write_series

from continual_segment.clinic import segment as batch
from continual_segment.clinic.jobs import Job, list_jobs
from continual_segment.clinic.outputs import OutputConfig, Result
from continual_segment.errors import ConfigError, ScanError
from continual_segment.organs import find_organ

IDS = {name: find_organ(name).id for name in CENTRES_MM}
REQUEST = {"encoder": "one"}


def compute(case):
    """In place of a model."""
    volume = case.source.volume
    return Result(case, ball_labels(volume.voxels, volume.grid, IDS), None, None, False, 0.0)


def write_study(folder, *numbers, **values):
    for count, number in enumerate(numbers):
        made = AXIAL.without(*range(26 - count, 26))
        write_series(
            folder / f"series {count}",
            made,
            SeriesNumber=number,
            SeriesInstanceUID=f"1.2.{count}",
            **values,
        )
    return folder


@pytest.fixture
def archive(tmp_path):
    """Two patients with several series each, one of which shares its number, and a NIfTI file."""
    write_study(tmp_path / "archive" / "anna", 2, 5, StudyInstanceUID="1.1")
    write_study(tmp_path / "archive" / "bert", 3, 3, None, StudyInstanceUID="1.2")
    write_nifti(tmp_path / "archive" / "carl.nii.gz")
    return tmp_path / "archive"


def test_all_series_are_cases_with_names_of_their_own(archive, tmp_path):
    jobs = list_jobs(archive, tmp_path / "out", pick="all")
    assert [job.case for job in jobs] == ["anna_2", "anna_5", "bert_3", "bert_3-2", "bert_x", "carl"]
    assert len({job.title for job in jobs}) == len(jobs)
    slices = {job.case: batch.read_case(job, None, False).source.volume.voxels.shape[0] for job in jobs}
    assert slices == {"anna_2": 26, "anna_5": 25, "bert_3": 26, "bert_3-2": 25, "bert_x": 24, "carl": 26}


def test_a_batch_with_a_rule_has_one_series_of_each_case(archive, tmp_path):
    outputs = OutputConfig(pick="most-slices")
    jobs = list_jobs(archive, tmp_path / "out", pick=outputs.pick)
    assert batch.segment_batch(jobs, compute, outputs, REQUEST) == {}
    numbers = {job.case: manifest_of(job)["input"]["series"] for job in jobs}
    assert {case: series and series["number"] for case, series in numbers.items()} == {
        "anna": 2, "bert": 3, "carl": None
    }  # fmt: skip


def manifest_of(job):
    return json.loads((job.folder / "manifest" / f"{job.case}.json").read_text())


def test_without_a_rule_only_the_case_with_several_series_fails(archive, tmp_path):
    jobs = list_jobs(archive, tmp_path / "out")
    failures = batch.segment_batch(jobs, compute, OutputConfig(), REQUEST)
    assert set(failures) == {str(archive / "anna"), str(archive / "bert")}
    assert all("series could be meant" in sentence for sentence in failures.values())


def test_failures_of_two_series_of_one_scan_are_both_reported(archive, tmp_path):
    jobs = [job for job in list_jobs(archive, tmp_path / "out", pick="all") if job.case.startswith("anna")]

    def refuse(case):
        raise ScanError(f"{case.job.case} is refused")

    failures = batch.segment_batch(jobs, refuse, OutputConfig(pick="all"), REQUEST)
    assert sorted(failures.values()) == ["anna_2 is refused", "anna_5 is refused"]


def test_a_case_whose_series_cannot_be_listed_fails_alone(archive, tmp_path):
    for path in (archive / "anna").rglob("*.dcm"):
        path.write_bytes(path.read_bytes()[:140])
    jobs = list_jobs(archive, tmp_path / "out", pick="all")
    failures = batch.segment_batch(jobs, compute, OutputConfig(pick="all"), REQUEST)
    assert set(failures) == {str(archive / "anna")}
    assert "51 cannot be read" in failures[str(archive / "anna")]


def test_several_series_do_not_go_into_one_file(tmp_path):
    study = write_study(tmp_path / "study", 2, 5)
    with pytest.raises(ScanError, match="several scans cannot go into one file"):
        list_jobs(study, tmp_path / "x.nii.gz", as_file=True, pick="all")
    one = write_study(tmp_path / "one", 7)
    (job,) = list_jobs(one, tmp_path / "x.nii.gz", as_file=True, pick="all")
    assert (job.case, job.file) == ("x", "x.nii.gz")


def test_a_rule_and_a_series_exclude_each_other():
    with pytest.raises(ConfigError, match="--series 2"):
        OutputConfig(series="2", pick="thinnest")
    with pytest.raises(ConfigError, match="thickest"):
        OutputConfig(pick="thickest")


def test_a_uid_that_was_asked_for_is_not_in_the_manifest():
    assert "1.2.840" not in str(OutputConfig(series="1.2.840.5").for_manifest())
    assert OutputConfig(series="1.2.840.5").for_manifest() != OutputConfig(series="1.2.840.6").for_manifest()
    assert OutputConfig(series="3").for_manifest()["series"] == "3"


def test_the_series_taken_is_shown_on_screen_and_hashed_in_the_manifest(
    shared_model_folder, tmp_path, caplog
):
    study = write_study(tmp_path / "study", 4, 9, SeriesDescription="Thorax Doe")
    with caplog.at_level("INFO"):
        assert (
            batch.segment(study, shared_model_folder, tmp_path / "out", outputs=OutputConfig(series="9"))
            == {}
        )
    assert 'segmenting series 9 "Thorax Doe" (CT, 25 slices' in caplog.text
    text = (tmp_path / "out" / "manifest" / "study.json").read_text()
    assert json.loads(text)["input"]["series"]["number"] == 9
    assert "Thorax" not in text
    assert "Doe" not in text


def test_files_left_out_by_force_are_in_the_manifest(tmp_path):
    paths = write_series(tmp_path / "study")
    for path in (*paths[:4], *paths[-4:]):
        path.write_bytes(path.read_bytes()[:140])
    job = Job("study", tmp_path / "study", tmp_path / "out")
    with pytest.raises(ScanError, match="8 files"):
        batch.read_case(job, None, False)
    batch.write_result(compute(batch.read_case(job, None, True)), OutputConfig(force=True), REQUEST)
    (changed,) = manifest_of(job)["input"]["changed"]
    assert changed.startswith("8 files of the series cannot be read")
