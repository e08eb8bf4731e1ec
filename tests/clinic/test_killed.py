"""A kill while results of another model replace old ones: the case is never taken for done by mistake."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))  # where this file runs as a program of its own
from ended_at import Killed, end_at, stop
from made_scans import CENTRES_MM, ball_labels, write_nifti

from continual_segment.clinic.jobs import Job
from continual_segment.clinic.manifest import is_done
from continual_segment.clinic.outputs import OutputConfig, Result, write_result
from continual_segment.clinic.read import read_case
from continual_segment.files import read_labels
from continual_segment.organs import find_organ

IDS = {name: find_organ(name).id for name in CENTRES_MM}
OUTPUTS = OutputConfig(("nifti", "organs", "seg.nrrd"))
MODELS = {"old": {"encoder": "old"}, "new": {"encoder": "new"}}
"""Requests by model; the old model finds every organ, the new one none."""
CHANGES = 7
"""The old manifest is removed; three masks, a label map, a seg.nrrd and the manifest move."""


def job_in(folder: Path) -> Job:
    return Job("scan", folder / "scan.nii.gz", folder / "out", alone=False)


def write(job: Job, model: str) -> None:
    case = read_case(job, None, False)
    volume = case.source.volume
    voxels = volume.voxels if model == "old" else np.zeros_like(volume.voxels)
    write_result(
        Result(case, ball_labels(voxels, volume.grid, IDS), None, None, False, 0.0), OUTPUTS, MODELS[model]
    )


def model_of(path: Path) -> str:
    return "old" if read_labels(path).voxels.any() else "new"


@pytest.fixture
def job(tmp_path):
    """A case with results of the old model."""
    write_nifti(tmp_path / "scan.nii.gz")
    write(job_in(tmp_path), "old")
    assert is_done(job_in(tmp_path), MODELS["old"])
    return job_in(tmp_path)


def check(job: Job, step: int) -> None:
    """Whatever was written of the new results, a mixture is not taken for done, and a rerun replaces it."""
    files = [path for path in job.folder.rglob("*.nii.gz") if ".unfinished" not in str(path)]
    found = {model_of(path) for path in files}
    assert len(files) == 4
    assert all(found == {model} for model, request in MODELS.items() if is_done(job, request))
    assert is_done(job, MODELS["old"]) == (step == 0)
    assert is_done(job, MODELS["new"]) == (step >= CHANGES)
    write(job, "new")
    assert is_done(job, MODELS["new"])
    assert {model_of(path) for path in files} == {"new"}
    assert not list(job.folder.rglob("*.unfinished*"))


@pytest.mark.parametrize("step", range(CHANGES + 1))
def test_a_rerun_with_another_model_that_ends_between_two_files_is_not_done(step, job, monkeypatch):
    with monkeypatch.context() as patched:
        end_at(step, stop, patched.setattr)
        with suppress(Killed):
            write(job, "new")
    check(job, step)


def test_nor_is_one_that_is_killed(job, python):
    step = 3
    process = python(__file__, job.source.parent, step, cwd=Path(__file__).parent)
    _, problems = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, problems
    check(job, step)


if __name__ == "__main__":
    end_at(int(sys.argv[2]), lambda: os.kill(os.getpid(), signal.SIGKILL), setattr)
    write(job_in(Path(sys.argv[1])), "new")
