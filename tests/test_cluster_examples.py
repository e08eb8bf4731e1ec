"""The files for Slurm and Nextflow in examples/: linters accept them, and they start what they should."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from continual_segment.cli.main import make_parser

EXAMPLES = Path(__file__).parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.sbatch"))
RECORD = """#!/bin/bash
printf '%s %s\\n' "$(basename "$0")" "$*" >> "$RECORD"
for each in "$@"; do case "$0 $last" in *"/dask --scheduler-file") echo {} > "$each";; esac; last=$each; done
"""
WAIT = """#!/bin/bash
until grep -q '^srun ' "$RECORD"; do sleep 0.05; done
"""
"""As `conseg` waits for workers: the script ends its workers when `conseg` is done."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(script):
    if not shutil.which("shellcheck"):
        pytest.skip("shellcheck is not installed")
    found = subprocess.run(["shellcheck", script], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_nextflow_lint_finds_nothing():
    if not shutil.which("nextflow"):
        pytest.skip("nextflow is not installed")
    found = subprocess.run(["nextflow", "lint", EXAMPLES / "archive.nf"], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.fixture
def run(tmp_path):
    """Run a script with programs that record how they were called; give the calls."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("conseg", "dask", "srun"):
        (programs / name).write_text(RECORD)
        (programs / name).chmod(0o755)

    def run_script(name, *, has_workers=False, **variables):
        if has_workers:
            (programs / "conseg").write_text(WAIT + RECORD)
        paths = {"ARCHIVE": "/a b/scans", "MODEL": "/m", "OUT": str(tmp_path / "out")}
        settings = {"RECORD": str(tmp_path / "calls"), "PATH": f"{programs}:{os.environ['PATH']}"}
        environment = os.environ | paths | settings | variables
        subprocess.run(["bash", EXAMPLES / name], env=environment, check=True, timeout=120)
        return (tmp_path / "calls").read_text().splitlines()

    return run_script


def arguments_of(calls):
    (call,) = [call for call in calls if call.startswith("conseg ")]
    return call.removeprefix("conseg ").replace("/a b/scans", "'/a b/scans'")


def test_the_array_gives_every_task_its_share(run):
    calls = run("archive_array.sbatch", SLURM_ARRAY_TASK_ID="3", SLURM_ARRAY_TASK_MAX="8")
    args = make_parser().parse_args(shlex.split(arguments_of(calls)))
    assert (args.shard, str(args.source)) == ("3/8", "/a b/scans")


def test_the_cluster_has_a_scheduler_workers_and_a_command_that_find_each_other(run, tmp_path):
    calls = run("archive_dask.sbatch", has_workers=True, SLURM_JOB_ID="17", SLURM_CPUS_PER_TASK="4")
    file = f"{tmp_path}/out/scheduler-17.json"
    args = make_parser().parse_args(shlex.split(arguments_of(calls)))
    assert (args.engine, args.time_limit) == (f"dask://{file}", 3600)
    assert any(call.startswith(f"dask scheduler --scheduler-file {file}") for call in calls)
    assert any(call.startswith(f"srun dask worker --scheduler-file {file}") for call in calls)
    assert not Path(file).exists()


def test_the_command_in_nextflow_is_one_that_the_parser_accepts():
    text = (EXAMPLES / "archive.nf").read_text().replace("\\\\\n", " ")
    (command,) = re.findall(r"^ *(conseg segment .*)$", text, re.MULTILINE)
    filled = re.sub(r"\$\{[^}]*\}", "1", command)
    assert make_parser().parse_args(shlex.split(filled)[1:]).shard == "1/1"
