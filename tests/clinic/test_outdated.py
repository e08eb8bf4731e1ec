"""A new result leaves nothing of an earlier one beside its manifest, and touches nothing else."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ended_at import Killed, end_at, stop
from made_scans import CENTRES_MM, ball_labels, write_nifti

from continual_segment.clinic import formats
from continual_segment.clinic.jobs import Job
from continual_segment.clinic.manifest import is_done
from continual_segment.clinic.outputs import OutputConfig, Result, write_result
from continual_segment.clinic.read import read_case
from continual_segment.files import write_json
from continual_segment.organs import find_organ
from continual_segment.segmentation.explanation import Explanation
from continual_segment.volume import LabelMap, Volume

IDS = {name: find_organ(name).id for name in CENTRES_MM}
EXPLAINED = OutputConfig(explain=True, statistics=True, preview=True)


@pytest.fixture
def job(tmp_path):
    return Job("scan", write_nifti(tmp_path / "scan.nii.gz"), tmp_path / "out", alone=False)


def write(job, outputs, model="old", empty=False):
    """Write a result as a model does that finds three balls, or nothing."""
    case = read_case(job, None, False)
    volume = case.source.volume
    labels = ball_labels(np.zeros_like(volume.voxels) if empty else volume.voxels, volume.grid, IDS)
    packs = LabelMap((labels.voxels > 0).astype(np.uint8), labels.grid, {1: model})
    scores = Volume(np.ones(volume.voxels.shape, np.float32), volume.grid)
    explanation = Explanation(packs, (), "weighted") if outputs.explain else None
    write_result(Result(case, labels, scores, explanation, False, 0.0), outputs, {"encoder": model})


def files_in(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def files_of(job):
    """The manifest and what it lists."""
    manifest = f"manifest/{job.case}.json"
    return {manifest, *json.loads((job.folder / manifest).read_text())["files"]}


def test_reasons_and_numbers_of_an_earlier_model_do_not_stay(job):
    write(job, EXPLAINED)
    assert {"packs/scan.nii.gz", "quality/scan.json", "statistics/scan.csv"} < files_in(job.folder)
    write(job, OutputConfig(), "new")
    assert files_in(job.folder) == {"scan.nii.gz", "manifest/scan.json"}


def test_other_formats_of_an_earlier_model_do_not_stay(job):
    write(job, OutputConfig(("nifti", "organs", "rtstruct")))
    (job.folder / "scan_ct" / "by_hand.txt").touch()
    write(job, OutputConfig(("seg.nrrd",)), "new")
    assert files_in(job.folder) == {"scan.seg.nrrd", "manifest/scan.json", "scan_ct/by_hand.txt"}
    assert not (job.folder / "scan").exists()


def test_slices_of_a_longer_scan_do_not_stay(job):
    write(job, OutputConfig(("rtstruct",)))
    manifest = job.folder / "manifest" / "scan.json"
    found = json.loads(manifest.read_text())
    more = job.folder / "scan_ct" / "9999.dcm"
    more.touch()
    write_json(manifest, found | {"files": [*found["files"], "scan_ct/9999.dcm"]})
    write(job, OutputConfig(("rtstruct",)), "new")
    assert files_in(job.folder) == files_of(job)
    assert not more.exists()


def test_a_format_that_fails_keeps_the_old_result_whole(job, monkeypatch):
    outputs = OutputConfig(("dicom_seg", "nifti"))
    write(job, outputs)
    before = files_in(job.folder)

    def fail(path, labelled):
        raise OSError("disk full")

    monkeypatch.setitem(formats.FORMATS, "nifti", formats.Format(".nii.gz", fail))
    with pytest.raises(OSError, match="disk full"):
        write(job, outputs, "new", empty=True)
    assert files_in(job.folder) == before
    assert is_done(job, {"encoder": "old"})


def test_without_a_manifest_a_requested_format_without_a_file_goes_and_all_else_stays(job):
    """The node and DICOMweb send what has the name of a result."""
    outputs = OutputConfig(("dicom_seg", "nifti"))
    write(job, outputs)
    (job.folder / "manifest" / "scan.json").unlink()
    (job.folder / "scan.seg.nrrd").touch()
    write(job, outputs, "new", empty=True)
    assert not (job.folder / "scan.seg.dcm").exists()
    assert (job.folder / "scan.seg.nrrd").exists()


def test_organs_that_another_scan_has_written_since_stay(tmp_path, job):
    """Masks of a single scan are named after organs: two scans share them."""
    first, second = (replace(job, case=name, alone=True) for name in ("first", "second"))
    write(first, OutputConfig(("organs",)))
    write(second, OutputConfig(("organs",)))
    write(first, OutputConfig(("nifti",)))
    organs = {f"{name}.nii.gz" for name in CENTRES_MM}
    assert files_in(job.folder) == {*organs, "first.nii.gz", "manifest/first.json", "manifest/second.json"}
    write(second, OutputConfig(("nifti",)))
    assert not organs & files_in(job.folder)


def test_a_manifest_of_a_stranger_removes_nothing_elsewhere(job, tmp_path):
    outside = tmp_path / "elsewhere" / "mine.txt"
    outside.parent.mkdir()
    outside.write_text("mine")
    job.folder.mkdir()
    (job.folder / "link").symlink_to(outside.parent)
    (job.folder / "folder").mkdir()
    job = replace(job, source=Path(shutil.copy(job.source, job.folder / "ct.nii.gz")))
    write_json(job.folder / "manifest" / "other.json", {})
    names = [
        str(outside),
        "../elsewhere/mine.txt",
        "link/mine.txt",
        "folder",
        "ct.nii.gz",
        "a\0b",
        "x" * 5000,
    ]
    names += ["folder/../../elsewhere/mine.txt", "manifest/other.json", 7, None, ".", ""]
    for content in ({"files": names}, {"files": 3}, {"files": None}, [], "text"):
        write_json(job.folder / "manifest" / "scan.json", content)
        write_json(job.folder / "manifest" / ".unfinished-scan", names)
        write(job, OutputConfig())
        assert outside.read_text() == "mine"
        assert files_in(job.folder) == {
            "ct.nii.gz", "scan.nii.gz", "manifest/other.json", "manifest/scan.json"
        } | {"link/mine.txt"} & files_in(job.folder)  # fmt: skip
        assert (job.folder / "folder").is_dir()


@pytest.mark.parametrize("step", range(14))
def test_after_a_kill_at_any_step_the_next_result_is_alone(job, monkeypatch, step):
    """Also where the next run writes other formats than the one that was killed."""
    write(job, EXPLAINED)
    with monkeypatch.context() as patched:
        end_at(step, stop, patched.setattr)
        with suppress(Killed):
            write(job, OutputConfig(("organs", "seg.nrrd")), "killed")
    write(job, OutputConfig(), "new")
    assert files_in(job.folder) == {"scan.nii.gz", "manifest/scan.json"}
    assert is_done(job, {"encoder": "new"})
