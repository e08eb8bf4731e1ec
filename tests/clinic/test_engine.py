"""A batch on a cluster of real processes: some die, hang or cannot write, and the results are the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("distributed", reason="the extra [dask] is not installed")
from long_tests import long_test
from made_cluster import SOURCE, MadeCluster, addresses, beside, has_begun, kill, spawned, wait_for

from continual_segment.cli.main import main
from continual_segment.clinic.on_engine import Batch, opened
from continual_segment.clinic.outputs import OutputConfig
from continual_segment.clinic.segment import segment
from continual_segment.engine import Dispatcher, EngineConfig
from continual_segment.errors import UnfitWorkerError
from continual_segment.files import read_scan, write_scan
from continual_segment.segmentation import SegmentConfig
from continual_segment.volume import Volume

CASES = tuple("abcdef")
LARGEST_FILE = 256
"""Bytes; results are larger."""


@pytest.fixture(scope="module")
def archive(scan_path, tmp_path_factory):
    """Six different scans."""
    folder = tmp_path_factory.mktemp("archive")
    scan = read_scan(scan_path)
    for number, case in enumerate(CASES):
        voxels = np.asarray(scan.voxels).copy()
        voxels[number] += 10
        write_scan(folder / f"{case}.nii.gz", Volume(voxels, scan.grid))
    return folder


@pytest.fixture(scope="module")
def local_run(archive, shared_model_folder, tmp_path_factory, contents):
    """What a command on this machine writes, and its seconds."""
    folder = tmp_path_factory.mktemp("expected")
    command = [sys.executable, "-m", "continual_segment.cli.main", "segment", archive, "-s", "-q"]
    settings = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    started = time.monotonic()
    subprocess.run([*command, "-m", shared_model_folder, "-o", folder], env=settings, check=True)
    return comparable(contents(folder)), time.monotonic() - started


@pytest.fixture(scope="module")
def expected(local_run):
    return local_run[0]


@pytest.fixture(scope="module")
def limit(local_run):
    """Seconds that one scan takes on no worker, also where other tests run beside this one."""
    return 5 + 2 * local_run[1]


@pytest.fixture(scope="module")
def small_cluster(tmp_path_factory):
    """A scheduler with one worker."""
    with MadeCluster(tmp_path_factory.mktemp("cluster")) as made:
        made.only = made.worker("only")
        made.wait_for_workers(1)
        yield made


@pytest.fixture
def dispatchers(monkeypatch):
    """The dispatchers of all runs that this process starts."""
    made = []

    class Noted(Dispatcher):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr("continual_segment.engine.Dispatcher", Noted)
    return made


def comparable(files):
    """Everything but the seconds in manifests, and hidden folders that a kill left behind."""

    def without_seconds(name, data):
        if not name.startswith("manifest"):
            return data
        manifest = json.loads(data)
        assert set(manifest.pop("seconds")) == {"reading", "segmenting", "writing"}
        return manifest

    return {name: without_seconds(name, data) for name, data in files.items() if name[0] != "."}


@long_test
def test_workers_that_are_killed_hang_or_have_a_full_disk_cost_time_alone(
    archive, expected, limit, shared_model_folder, dispatchers, tmp_path, contents, caplog
):
    with MadeCluster(tmp_path / "cluster") as cluster:
        killed = cluster.worker("killed", nanny=True)
        hangs = cluster.worker("hangs")
        full = cluster.worker("full", largest_file=LARGEST_FILE)
        cluster.wait_for_workers(3)

        def disturb():
            """In the middle of a scan, the first of the worker: it loads the software and the model, too."""
            (dispatcher,) = wait_for(lambda: dispatchers)
            found = {name: addresses(dispatcher, name) for name in ("killed", "hangs")}
            wait_for(lambda: has_begun(dispatcher, *found["killed"]))
            (worker,) = spawned(killed.pid)
            kill(worker)
            wait_for(lambda: has_begun(dispatcher, *found["hangs"]))
            (process,) = spawned(hangs.pid)
            process.send_signal(signal.SIGSTOP)

        outputs = OutputConfig(statistics=True, engine=EngineConfig(cluster.address, 6, limit))
        with caplog.at_level("INFO"), beside(disturb):
            failures = segment(archive, shared_model_folder, tmp_path / "out", outputs=outputs)
        assert full.poll() is None
    assert failures == {}
    assert "too large" in caplog.text
    assert caplog.text.count("Its worker died or lost its connection") == 1
    assert "It took longer than" in caplog.text
    assert sorted(line.split("] ")[1][0] for line in caplog.messages if line.startswith("[")) == list(CASES)
    assert comparable(contents(tmp_path / "out")) == expected


@long_test
def test_a_run_is_stopped_by_ctrl_c_and_resumed(
    archive, expected, shared_model_folder, small_cluster, tmp_path, contents, python, caplog
):
    worker, out = small_cluster.only, tmp_path / "out"
    scans = shutil.copytree(archive, tmp_path / "scans")
    more = [shutil.copy(archive / "a.nii.gz", scans / f"z{number}.nii.gz") for number in range(100)]
    options = ["segment", scans, "-m", shared_model_folder, "-o", out, "-s"]
    options += ["--engine", small_cluster.address]
    run = python("-m", "continual_segment.cli.main", *options)
    wait_for(lambda: len(list((out / "manifest").glob("*.json"))) >= 1)
    run.send_signal(signal.SIGINT)
    _, messages = run.communicate(timeout=600)
    assert run.returncode == 130, messages
    assert "Traceback" not in messages
    wait_for(lambda: not spawned(worker.pid))
    before = {name: data for name, data in contents(out).items() if Path(name).name[0] in CASES}
    assert 1 <= sum(name.startswith("manifest") for name in before) <= len(CASES)
    for path in more:  # they kept the run from ending before it was stopped
        path.unlink()
    with caplog.at_level("INFO"):
        assert main([*map(str, options), "--attempts", "2"]) == 0
    found = {name: data for name, data in contents(out).items() if Path(name).name[0] != "z"}
    assert comparable(found) == expected
    assert all(found[name] == before[name] for name in before)  # nothing was done again
    assert "of 6 cases are done" in caplog.text


def test_a_worker_with_another_model_is_not_used(shared_model_folder, base_model_folder):
    """Its labels would differ from those of the others."""
    other = Batch.of([base_model_folder], None, None, SegmentConfig(), OutputConfig(), {"packs": {"x": "y"}})
    with pytest.raises(UnfitWorkerError, match="another model"):
        opened(other)
    absent = Batch.of([shared_model_folder.parent / "none"], None, None, SegmentConfig(), OutputConfig(), {})
    with pytest.raises(UnfitWorkerError, match="none"):
        opened(absent)


@long_test
def test_a_damaged_scan_fails_once(archive, shared_model_folder, small_cluster, tmp_path, caplog):
    scans = tmp_path / "scans"
    scans.mkdir()
    shutil.copy(archive / "a.nii.gz", scans / "a.nii.gz")
    (scans / "b.nii.gz").write_bytes((archive / "b.nii.gz").read_bytes()[:300])
    outputs = OutputConfig(engine=EngineConfig(small_cluster.address))
    failures = segment(scans, shared_model_folder, tmp_path / "out", outputs=outputs)
    assert set(failures) == {str(scans / "b.nii.gz")}
    assert "truncated or damaged" in failures[str(scans / "b.nii.gz")]
    assert "is repeated" not in caplog.text
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["a.nii.gz", "manifest"]
