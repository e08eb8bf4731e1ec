"""Many jobs in several processes: order, failures, bugs, and above all that nothing hangs or stays behind.

The jobs are Python expressions and the function is `eval`, which every process has.
"""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from continual_segment.errors import ContinualSegmentError
from continual_segment.processes import Outcome, WorkerProcess, beside, for_each, usable_cores, workers_for

HERE_AND_THERE = pytest.mark.parametrize("workers", [1, 2])
LONG, FOREVER = 120, 3600  # seconds; waited for only when something is wrong, however slow the machine
SLEEP = "__import__('time').sleep({})"
PID = "__import__('os').getpid()"
SOURCE = Path(__file__).parents[1] / "src"


def run(expressions, workers, **options):
    jobs = {name: (expression,) for name, expression in expressions.items()}
    return for_each(eval, jobs, workers=workers, progress=False, **options)


@HERE_AND_THERE
def test_results_come_in_the_order_of_the_jobs(workers):
    outcome = run({"slow": SLEEP.format(0.3) + " or 1", "quick": "2", "last": "3"}, workers)
    assert list(outcome.results.items()) == [("slow", 1), ("quick", 2), ("last", 3)]
    assert outcome.failures == {}


@HERE_AND_THERE
def test_what_a_user_can_cause_ends_only_its_own_job(workers):
    error = "__import__('continual_segment.errors').errors.ScanError('a.nii.gz: no scan.')"
    jobs = {
        "absent": "open('/nowhere/a')",
        "fine": "1",
        "refused": f"(_ for _ in ()).throw({error})",
        "large": "(_ for _ in ()).throw(MemoryError())",
        "fine too": "2",
    }
    outcome = run(jobs, workers)
    assert outcome.results == {"fine": 1, "fine too": 2}
    assert list(outcome.failures) == ["absent", "refused", "large"]
    assert "/nowhere/a" in outcome.failures["absent"]
    assert outcome.failures["refused"] == "a.nii.gz: no scan."
    assert outcome.failures["large"] == "MemoryError"


def test_a_bug_is_raised_here():
    with pytest.raises(ZeroDivisionError):
        run({"bug": "1 / 0", "fine": "1"}, workers=1)


def test_a_bug_in_a_worker_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError) as caught:
        run({"bug": "1 / 0", "fine": "1"}, workers=2)
    assert "in _attempt" in caught.value.__notes__[0]


def test_a_bug_in_a_worker_is_raised_without_waiting_for_the_others():
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        run({"long": SLEEP.format(FOREVER), "bug": "1 / 0"}, workers=2)
    assert time.monotonic() - began < LONG


def test_a_killed_worker_is_one_clear_error_and_no_hang():
    began = time.monotonic()
    with pytest.raises(ContinualSegmentError, match=r"killed at killed.*fewer workers"):
        run({"killed": f"__import__('os').kill({PID}, 9)", "long": SLEEP.format(FOREVER)}, workers=2)
    assert time.monotonic() - began < LONG


@HERE_AND_THERE
def test_shared_arguments_follow_those_of_the_job(workers):
    outcome = for_each(divmod, {"a": (17,), "b": (20,)}, (5,), workers, progress=False)
    assert outcome == Outcome({"a": (3, 2), "b": (4, 0)}, {})


def test_one_worker_is_this_process_and_two_are_others():
    assert set(run({"a": PID, "b": PID}, workers=1).results.values()) == {os.getpid()}
    assert os.getpid() not in run({"a": PID, "b": PID}, workers=2).results.values()


def test_every_new_process_is_started_as_asked_and_this_one_is_not():
    folders = dict.fromkeys("ab", "__import__('os').getcwd()")
    to_the_root = partial(os.chdir, "/")
    assert set(run(folders, workers=2, start=to_the_root).results.values()) == {"/"}
    assert set(run(folders, workers=1, start=to_the_root).results.values()) == {str(Path.cwd())}


def test_no_jobs_are_no_work():
    assert run({}, workers=4) == Outcome({}, {})


def test_small_files_are_not_worth_a_process(tmp_path, monkeypatch):
    file = tmp_path / "scan.nii.gz"
    file.write_bytes(b"1234")
    assert workers_for([file, tmp_path / "absent"]) == 1
    assert workers_for([file], wanted=7) == 7
    monkeypatch.setattr("continual_segment.processes.BYTES_PER_WORKER", 1)
    assert workers_for([file] * 1000) == usable_cores()


# Whole programs

SCRIPT = """
from continual_segment.processes import for_each

print("script", flush=True)
note = "open('{folder}/' + str(__import__('os').getpid()), 'w') and __import__('time').sleep({seconds})"
for_each(eval, {{"a": (note,), "b": (note,)}}, workers=2, progress=False)
print("done")
"""


def started(tmp_path, seconds):
    """A script without `if __name__ == "__main__":`, in a session of its own."""
    script, folder = tmp_path / "script.py", tmp_path / "pids"
    folder.mkdir()
    script.write_text(SCRIPT.format(folder=folder, seconds=seconds))
    return subprocess.Popen(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a runner in the background ignores Ctrl-C, and its children would inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ), folder


def workers_at_work(folder):
    end = time.monotonic() + LONG
    while len(list(folder.iterdir())) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    pids = [int(path.name) for path in folder.iterdir()]
    assert len(pids) == 2
    return pids


def all_gone(pids):
    end = time.monotonic() + LONG
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


needs_proc = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks processes up in /proc")


def test_a_script_needs_no_guard_and_runs_once(tmp_path):
    process, _ = started(tmp_path, seconds=0)
    assert process.communicate(timeout=LONG) == ("script\ndone\n", "")


@needs_proc
@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["to the parent alone", "at a terminal"])
def test_ctrl_c_stops_everything_at_once(tmp_path, send):
    process, folder = started(tmp_path, seconds=FOREVER)
    pids = workers_at_work(folder)
    send(process.pid, signal.SIGINT)
    shown = process.communicate(timeout=LONG)
    assert process.returncode == -signal.SIGINT
    assert shown[1].count("Traceback") == 1  # the script's own
    assert all_gone(pids)


@needs_proc
def test_no_worker_outlives_a_killed_parent(tmp_path):
    process, folder = started(tmp_path, seconds=FOREVER)
    pids = workers_at_work(folder)
    process.kill()
    process.wait()
    assert all_gone(pids)


def test_a_worker_that_is_killed_is_not_waited_for_and_the_next_job_gets_a_new_one():
    worker = WorkerProcess(eval)
    try:
        worker.start(PID)
        first = worker.finish()
        worker.start(SLEEP.format(FOREVER))
        os.kill(first, signal.SIGKILL)
        with pytest.raises(ContinualSegmentError, match="worker process was killed"):
            worker.finish()
        worker.start(PID)
        second = worker.finish()
        assert second not in (first, os.getpid())
        os.kill(second, signal.SIGKILL)  # while it has nothing to do
        worker.start("1 / 0")
        with pytest.raises((ZeroDivisionError, ContinualSegmentError)):  # it may die only after it was asked
            worker.finish()
    finally:
        worker.close()
    assert worker.process_id is None


def test_a_job_beside_the_body_is_done_when_the_body_ends(tmp_path):
    with beside(Path.write_text, tmp_path / "note", "done"):
        pass
    assert (tmp_path / "note").read_text() == "done"


def test_the_error_of_a_job_beside_is_raised(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"), beside(Path.read_text, tmp_path / "missing"):
        pass


def test_a_job_beside_that_was_killed_is_not_waited_for():
    with pytest.raises(ContinualSegmentError, match="worker process was killed"), beside(os._exit, 1):
        pass
