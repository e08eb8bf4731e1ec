"""Standard output and error that are closed or full: the work is done, and the exit code is right."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from continual_segment import streams

SOURCE = Path(__file__).parents[2] / "src"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}

pytestmark = pytest.mark.skipif(os.name == "nt", reason="pipes and descriptors as on Linux and macOS")


def conseg(*arguments):
    return [sys.executable, "-m", "continual_segment.cli.main", *map(str, arguments)]


def run_and_leave(command):
    """Run it with both streams in a pipe whose reader leaves before anything is written."""
    reading, writing = os.pipe()
    process = subprocess.Popen(command, stdout=writing, stderr=writing, env=ENVIRONMENT)
    os.close(writing)
    os.close(reading)
    return process.wait(timeout=300)


def test_a_reader_that_leaves_costs_no_result_and_hides_no_failure(scan_path, shared_model_folder, tmp_path):
    """The first case fails in a process beside, messages and bars have no reader, yet the batch is done."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.nii.gz").write_bytes(b"no scan")
    shutil.copy(scan_path, tmp_path / "in" / "b.nii.gz")
    command = conseg("segment", tmp_path / "in", "-m", shared_model_folder, "-o", tmp_path / "out")
    assert run_and_leave(command) == 1
    assert {path.name for path in (tmp_path / "out").glob("*.nii.gz")} == {"b.nii.gz"}


def test_one_scan_without_a_reader_is_a_success_with_a_result(scan_path, shared_model_folder, tmp_path):
    target = tmp_path / "out.nii.gz"
    assert run_and_leave(conseg("segment", scan_path, "-m", shared_model_folder, "-o", target)) == 0
    assert target.is_file()


@pytest.mark.parametrize("closed", ["2>&-", "2>/dev/full"])
def test_streams_that_are_closed_or_full_from_the_start_do_not_matter(
    closed, scan_path, shared_model_folder, tmp_path
):
    command = conseg("segment", scan_path, "-m", shared_model_folder, "-o", tmp_path / "out.nii.gz")
    assert subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *command], env=ENVIRONMENT).returncode == 0
    assert (tmp_path / "out.nii.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert {path.name for path in tmp_path.iterdir()} == {"out.nii.gz", "manifest"}


@pytest.mark.parametrize("arguments", [("--help",), ("pack", "list", "-m", "{model}"), ("segment", "--help")])
def test_a_command_that_only_prints_ends_without_a_word(arguments, shared_model_folder):
    command = conseg(*(word.format(model=shared_model_folder) for word in arguments))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_an_error_keeps_its_exit_code_without_a_reader(tmp_path):
    assert run_and_leave(conseg("verify", tmp_path / "gone")) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is a device of Linux")
def test_output_that_is_lost_is_no_success(shared_model_folder):
    with Path("/dev/full").open("w") as full:
        command = conseg("pack", "info", "chest", "-m", shared_model_folder)
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, text=True)
    assert ended.returncode == 2
    assert "No space left" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_quiet_prints_nothing_of_a_success_and_why_a_scan_failed(scan_path, shared_model_folder, tmp_path):
    (tmp_path / "broken.nii.gz").write_bytes(b"no scan")
    options = "-m", shared_model_folder, "-o", tmp_path / "out", "--quiet"
    ended = [
        subprocess.run(conseg("segment", scan, *options), capture_output=True, env=ENVIRONMENT, text=True)
        for scan in (scan_path, tmp_path / "broken.nii.gz")
    ]
    assert (ended[0].returncode, ended[0].stdout, ended[0].stderr) == (0, "", "")
    assert (ended[1].returncode, ended[1].stdout) == (1, "")
    assert "broken.nii.gz" in ended[1].stderr


def test_one_scan_ends_with_a_table_of_its_organs(scan_path, shared_model_folder, tmp_path):
    command = conseg(
        "segment", scan_path, "-m", shared_model_folder, "-o", tmp_path / "out", "--packs", "chest"
    )
    ended = subprocess.run(command, capture_output=True, env=ENVIRONMENT, text=True)
    assert ended.returncode == 0
    assert ended.stdout == f"Results are in {tmp_path / 'out'}.\n"
    assert (
        re.search(r"^organ +ml$(.|\n)*^\w+ +\d+\.\d", ended.stderr, re.MULTILINE)
        or "Not found: " in ended.stderr
    )


def test_streams_of_the_caller_are_given_back(capsys):
    before = sys.stdout, sys.stderr
    with streams.lasting_streams():
        print("shown")
        print("shown too", file=sys.stderr)
        assert (sys.stdout, sys.stderr) != before
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr() == ("shown\n", "shown too\n")
