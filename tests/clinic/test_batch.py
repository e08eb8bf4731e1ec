"""Batches: cases in turn with one model, what is done is skipped, what fails or dies costs one case."""

from __future__ import annotations

import json
import shutil
from argparse import Namespace
from collections import Counter
from dataclasses import fields, replace
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest
from made_scans import AXIAL, CENTRES_MM, ball_labels, read_or_die, write_nifti, write_series

from continual_segment.clinic import segment as batch
from continual_segment.clinic.jobs import Job, case_of, list_jobs
from continual_segment.clinic.manifest import NOT_THE_RESULT, is_done, request_of
from continual_segment.clinic.outputs import OutputConfig, Result
from continual_segment.errors import ConfigError, ScanError
from continual_segment.files import read_labels
from continual_segment.organs import find_organ
from continual_segment.segmentation import SegmentConfig
from continual_segment.segmentation.backends import FloatEngine
from continual_segment.segmentation.predictions import PackProfile

IDS = {name: find_organ(name).id for name in CENTRES_MM}
REQUEST = {"encoder": "one"}


def compute(case):
    """In place of a model."""
    volume = case.source.volume
    return Result(case, ball_labels(volume.voxels, volume.grid, IDS), None, None, False, 0.0)


@pytest.fixture(scope="module")
def some_scans(tmp_path_factory):
    """NIfTI files and a DICOM folder; one file is cut short."""
    folder = tmp_path_factory.mktemp("scans")
    for name in ("a", "b", "c deadly", "d"):
        write_nifti(folder / f"{name}.nii.gz")
    write_series(folder / "e")
    broken = (folder / "a.nii.gz").read_bytes()
    (folder / "b.nii.gz").write_bytes(broken[: len(broken) // 2])
    return folder


def run(folder, out, outputs=None):
    outputs = outputs or OutputConfig()
    jobs = batch.still_to_do(list_jobs(folder, out), REQUEST, outputs)
    return batch.segment_batch(jobs, compute, outputs, REQUEST)


def test_a_process_that_dies_and_a_broken_file_cost_their_own_case(some_scans, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(batch, "read_case", read_or_die)
    failures = run(some_scans, tmp_path / "out")
    assert set(failures) == {str(some_scans / "b.nii.gz"), str(some_scans / "c deadly.nii.gz")}
    assert "truncated or damaged" in failures[str(some_scans / "b.nii.gz")]
    assert "worker process was killed" in failures[str(some_scans / "c deadly.nii.gz")]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "a.nii.gz", "d.nii.gz", "e.nii.gz", "manifest"
    }  # fmt: skip
    labels = read_labels(tmp_path / "out" / "e.nii.gz")
    assert set(np.unique(labels.voxels)) == {0, *IDS.values()}

    monkeypatch.undo()  # given again, the batch does what is left
    with caplog.at_level("INFO"):
        failures = run(some_scans, tmp_path / "out")
    assert set(failures) == {str(some_scans / "b.nii.gz")}
    assert "3 of 5 cases are done; --overwrite" in caplog.text
    assert (tmp_path / "out" / "c deadly.nii.gz").is_file()


@pytest.fixture
def done(tmp_path):
    """One case with its results."""
    scan = write_nifti(tmp_path / "scan.nii.gz")
    job = Job("scan", scan, tmp_path / "out", alone=False)
    batch.write_result(compute(batch.read_case(job, None, False)), OutputConfig(), REQUEST)
    assert is_done(job, REQUEST)
    return job


def test_a_case_is_done_anew_when_request_scan_or_results_have_changed(done):
    assert not is_done(done, {"encoder": "another"})
    labels = done.folder / "scan.nii.gz"
    kept = labels.read_bytes()
    labels.unlink()
    assert not is_done(done, REQUEST)
    labels.write_bytes(kept)
    assert is_done(done, REQUEST)
    assert batch.still_to_do([done], REQUEST, OutputConfig(overwrite=True)) == [done]
    assert batch.still_to_do([done], REQUEST, OutputConfig()) == []
    done.source.write_bytes(done.source.read_bytes() + b"0")
    assert not is_done(done, REQUEST)


def test_a_batch_may_be_resumed_with_another_backend_but_not_with_other_settings():
    """A backend rounds in another way; nothing else of the result depends on it."""

    def request(**settings):
        empty = {"packs": [], "heads": [], "organs": [], "regressor": None, "encoder_fingerprint": ""}
        empty |= {"pieces_of_pack": {}, "engine": FloatEngine()}
        return request_of(SimpleNamespace(config=SegmentConfig(**settings), **empty), {})

    assert request() == request(backend="compiled") == request(device="cuda") == request(progress=False)
    assert request() != request(overlap=0.25)
    assert request() != request(merge="ensemble")
    assert request() != request(keep_islands=True)


def test_settings_that_do_not_count_are_settings():
    assert set(NOT_THE_RESULT) <= {setting.name for setting in fields(SegmentConfig)}


def test_a_scan_that_is_gone_is_not_done(done):
    done.source.unlink()
    assert not is_done(done, REQUEST)


def test_a_damaged_manifest_means_not_done(done):
    (done.folder / "manifest" / "scan.json").write_text("{")
    assert not is_done(done, REQUEST)


def test_shards_share_the_cases_among_them(some_scans, tmp_path):
    jobs = list_jobs(some_scans, tmp_path)
    shards = [batch.still_to_do(jobs, REQUEST, OutputConfig(shard=(i, 3))) for i in (1, 2, 3)]
    assert sorted(job.case for shard in shards for job in shard) == [job.case for job in jobs]
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    for wrong in ((0, 3), (4, 3)):
        with pytest.raises(ConfigError, match="from 1 to N"):
            OutputConfig(shard=wrong)


def test_a_bug_on_one_case_does_not_stop_the_others(some_scans, tmp_path):
    scans = tmp_path / "two"
    scans.mkdir()
    for name in ("a", "d"):
        shutil.copy(some_scans / f"{name}.nii.gz", scans)

    def buggy(case):
        if case.job.case == "a":
            raise ZeroDivisionError("oh")
        return compute(case)

    jobs = list_jobs(scans, tmp_path / "out")
    failures = batch.segment_batch(jobs, buggy, OutputConfig(), REQUEST)
    assert failures == {
        str(scans / "a.nii.gz"): "an unexpected ZeroDivisionError (oh), our mistake: please report it"
    }
    assert (tmp_path / "out" / "d.nii.gz").is_file()


def test_what_a_path_means(tmp_path):
    write_series(tmp_path / "study" / "series 1", AXIAL.without(*range(4, 26)))
    write_series(tmp_path / "study" / "series 2", AXIAL.without(*range(5, 26)), SeriesInstanceUID="1.2")
    write_series(tmp_path / "other", AXIAL.without(*range(4, 26)), StudyInstanceUID="1.3")
    out = tmp_path / "out"
    assert [job.case for job in list_jobs(tmp_path / "study", out)] == ["study"]  # one study, one scan
    assert [job.case for job in list_jobs(tmp_path, out)] == ["other", "study"]
    (tmp_path / "list.txt").write_text("# tonight\nother\n\nstudy\n", encoding="utf-8-sig")
    assert [job.case for job in list_jobs(tmp_path / "list.txt", out)] == ["other", "study"]
    (single,) = list_jobs(tmp_path / "other", tmp_path / "x.nii.gz", as_file=True)
    assert (single.case, single.folder, single.file) == ("x", tmp_path, "x.nii.gz")
    with pytest.raises(ScanError, match="several scans cannot go into one file"):
        list_jobs(tmp_path, tmp_path / "x.nii.gz", as_file=True)
    assert case_of(tmp_path / "liver_0000.nii.gz") == "liver"
    assert case_of(tmp_path / "Ärzte scan.zip") == "Ärzte scan"


def test_the_manifest_says_how_and_not_who(tmp_path):
    write_series(tmp_path / "Doe_Jane")
    job = Job("case 7", tmp_path / "Doe_Jane", tmp_path / "out")
    batch.write_result(compute(batch.read_case(job, None, False)), OutputConfig(("nifti", "organs")), REQUEST)
    text = (tmp_path / "out" / "manifest" / "case 7.json").read_text()
    for secret in ("Doe", "Jane", "4711", "1950", "20240102", "1.2.826"):
        assert secret not in text
    manifest = json.loads(text)
    assert manifest["files"] == ["case 7.nii.gz", "liver.nii.gz", "spleen.nii.gz", "urinary_bladder.nii.gz"]
    assert manifest["request"] == REQUEST
    assert len(manifest["input"]["sha256_of_voxels"]) == 64
    assert manifest["input"]["facts"]["air_peak_hu"] == pytest.approx(-1000, abs=15)
    assert {"reading", "segmenting", "writing"} == set(manifest["seconds"])


def test_a_finished_batch_and_an_empty_shard_have_nothing_to_do(done, tmp_path, caplog):
    with caplog.at_level("INFO"):
        assert batch.segment_batch(
            batch.still_to_do([done], REQUEST, OutputConfig()), compute, OutputConfig(), REQUEST
        ) == {}  # fmt: skip
        assert batch.still_to_do([done], REQUEST, OutputConfig(shard=(8, 8))) == []
    assert "Nothing to do: 1 of 1 cases are done; --overwrite" in caplog.text
    assert "Nothing to do: 1 cases in 8 shards leave shard 8 empty" in caplog.text


def test_every_case_of_a_batch_gets_a_line_when_it_is_written(some_scans, tmp_path, caplog):
    with caplog.at_level("INFO"):
        run(some_scans, tmp_path / "out")
    lines = [record.message for record in caplog.records if record.levelname == "INFO"]
    assert [line.split(",")[0] for line in lines] == [
        f"[{number}/5] {case}: 3 of 3 organs"
        for number, case in ((1, "a"), (3, "c deadly"), (4, "d"), (5, "e"))
    ]


def test_other_body_parts_or_anomaly_heads_are_another_request():
    def request(regressor=None, heads=(), **pack):
        profiles = [Namespace(profile=Namespace(name=name, fingerprint=name)) for name in heads]
        empty = {
            "packs": [Namespace(profile=PackProfile("pack", "same", **pack))],
            "organs": [],
            "regressor": None,
            "encoder_fingerprint": "",
            "pieces_of_pack": {},
            "engine": FloatEngine(),
        }
        segmenter = Namespace(config=SegmentConfig(), heads=profiles, **empty)
        return request_of(segmenter, {}, regressor and Namespace(fingerprint=regressor))

    requests = [request(), request("one"), request("two"), request("two", ["head"])]
    requests += [request(coverage={"chest": 1.0}), request(anomaly_aware=True)]
    assert all(one != other for one, other in combinations(requests, 2))


def test_several_models_write_one_label_map_and_are_all_in_the_manifest(
    base_model_folder, shared_model_folder, scan_path, tmp_path
):
    failures = batch.segment(scan_path, [base_model_folder, shared_model_folder], tmp_path / "out")
    assert not failures
    (manifest,) = (json.loads(path.read_text()) for path in (tmp_path / "out" / "manifest").iterdir())
    assert len(manifest["request"]["models"]) == 2
    assert len([*(tmp_path / "out").glob("*.nii.gz")]) == 1


@pytest.mark.parametrize("where", ["read_case", "write_result"])
def test_a_case_that_no_process_starts_for_costs_itself_alone(where, some_scans, tmp_path, monkeypatch):
    start, calls = batch.WorkerProcess.start, Counter()

    def refusing(self, *job):
        calls[self.function.__name__] += 1
        if self.function.__name__ == where and calls[where] == 1:
            raise MemoryError
        start(self, *job)

    monkeypatch.setattr(batch.WorkerProcess, "start", refusing)
    failures = run(some_scans, tmp_path / "out")
    assert set(failures) == {str(some_scans / "a.nii.gz"), str(some_scans / "b.nii.gz")}
    assert (tmp_path / "out" / "d.nii.gz").is_file()


def test_results_within_the_scans_are_no_scans_of_the_next_run(tmp_path):
    (tmp_path / "data").mkdir()
    scan = write_nifti(tmp_path / "data" / "a.nii.gz")
    out = tmp_path / "data" / "out"
    before = list_jobs(tmp_path / "data", out)
    job = Job("a", scan, out, alone=False)
    outputs = OutputConfig(formats=("rtstruct",))
    batch.write_result(compute(batch.read_case(job, None, False)), outputs, REQUEST)
    assert (out / "a_ct").is_dir()
    assert list_jobs(tmp_path / "data", out) == before


def test_where_no_organ_is_found_any_more_no_earlier_result_stays(tmp_path):
    scan = write_nifti(tmp_path / "scan.nii.gz")
    job = Job("scan", scan, tmp_path / "out", alone=False)
    outputs, case = OutputConfig(formats=("dicom_seg", "nifti")), batch.read_case(job, None, False)
    batch.write_result(compute(case), outputs, REQUEST)
    assert (tmp_path / "out" / "scan.seg.dcm").is_file()
    found = compute(case)
    empty = replace(found, labels=replace(found.labels, voxels=np.zeros_like(found.labels.voxels)))
    batch.write_result(empty, outputs, REQUEST | {"organs": ["spleen"]})
    assert not (tmp_path / "out" / "scan.seg.dcm").exists()
    assert (tmp_path / "out" / "scan.nii.gz").is_file()


@pytest.mark.parametrize("name", ["nifti", "seg.nrrd", "organs"])
def test_a_dicom_file_gets_a_dicom_format(name, tmp_path):
    with pytest.raises(ConfigError, match="-ot dicom_seg"):
        batch.names_file(tmp_path / "x.dcm", OutputConfig(formats=(name,)))
    assert batch.names_file(tmp_path / "x.dcm", OutputConfig(formats=("rtstruct",)))
