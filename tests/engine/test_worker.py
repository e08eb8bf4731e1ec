"""A call on a worker runs in a process of its own, and the worker survives whatever happens there."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time

import made_tasks
import pytest

from continual_segment import __version__
from continual_segment.engine import worker
from continual_segment.engine.call import Call
from continual_segment.engine.worker import answer, gpu_of


@pytest.fixture
def call(tmp_path):
    """A call of a run of its own."""
    token = tmp_path / "token"
    token.touch()

    def make(function, *arguments, run=str(tmp_path), version=__version__, seconds=60.0):
        return Call(function, arguments, run, version, token, seconds)

    yield make
    for slot in worker._slots.values():
        slot.process.close()
    worker._slots.clear()


def test_calls_of_a_run_share_one_process_which_is_not_the_workers(call):
    first, second = (answer(call(made_tasks.process_id), 0).result for _ in range(2))
    assert first == second != os.getpid()
    assert answer(call(made_tasks.process_id, run="another"), 0).result != first


@pytest.mark.parametrize(
    ("kind", "expected"), [("scan", "failed"), ("bug", "failed"), ("disk", "worker"), ("memory", "worker")]
)
def test_errors_are_sorted_by_who_is_at_fault(call, kind, expected):
    found = answer(call(made_tasks.raise_error, kind), 0)
    assert found.kind == expected
    assert "why" in found.problem
    assert ("ZeroDivisionError" in found.problem) == (kind == "bug")
    assert found.messages == ((30, f"a warning before {kind}"),)


def test_a_call_can_start_processes_of_its_own(call):
    assert answer(call(made_tasks.start_another_process, seconds=600.0), 0).result == 0


@pytest.mark.parametrize("slow", [made_tasks.stop_here, made_tasks.sleep])
def test_a_call_that_takes_too_long_is_killed_and_the_next_one_runs(call, slow):
    answer(call(made_tasks.double, 1), 0)  # the process is there
    arguments = [600] if slow is made_tasks.sleep else []
    started = time.monotonic()
    found = answer(call(slow, *arguments, seconds=1.0), 0)
    assert (found.kind, "longer than 1 s" in found.problem) == ("worker", True)
    assert time.monotonic() - started < 60
    assert answer(call(made_tasks.double, 4), 0).result == 8


def test_a_call_that_is_no_longer_wanted_is_killed(call):
    wanted = threading.Event()
    wanted.set()
    threading.Timer(1.0, wanted.clear).start()
    found = answer(call(made_tasks.sleep, 600), 0, is_wanted=wanted.is_set)
    assert (found.kind, "no longer wanted" in found.problem) == ("worker", True)


def test_a_call_whose_process_dies_is_one_for_another_worker(call):
    found = answer(call(made_tasks.die), 0)
    assert (found.kind, "was killed" in found.problem) == ("worker", True)
    assert answer(call(made_tasks.double, 4), 0).result == 8


def test_another_version_and_storage_that_is_not_shared_are_found_before_anything_runs(call):
    found = answer(call(made_tasks.die, version="0.0.1"), 0)
    assert (found.kind, "0.0.1" in found.problem) == ("unfit", True)
    unshared = call(made_tasks.die)
    unshared.token.unlink()
    found = answer(unshared, 0)
    assert (found.kind, str(unshared.token.parent) in found.problem) == ("unfit", True)
    assert not worker._slots


def test_a_process_has_the_cores_and_the_gpu_of_its_slot(call, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-7")
    names = ["OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"]
    assert answer(call(made_tasks.variables, names), 1, threads=3, gpu=True).result == {
        "OMP_NUM_THREADS": "3",
        "CUDA_VISIBLE_DEVICES": "GPU-7",
    }
    assert gpu_of(0, "4,GPU-7") == "4"
    assert gpu_of(2, None) == gpu_of(2, "") == "2"


def test_a_process_without_calls_ends_and_the_next_call_starts_another(call, monkeypatch):
    monkeypatch.setattr(worker, "IDLE_SECONDS", 0.1)
    first = answer(call(made_tasks.process_id), 0).result
    (slot,) = worker._slots.values()
    deadline = time.monotonic() + 60
    while slot.process.process_id is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert slot.process.process_id is None
    assert answer(call(made_tasks.process_id), 0).result != first


def test_a_worker_whose_nanny_forbids_children_starts_its_process_all_the_same(call):
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:  # its processes are daemons, too
        found = pool.apply(answer, (call(made_tasks.double, 4), 0))
    assert found.result == 8
