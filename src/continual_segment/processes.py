"""Run one function over many named jobs in several processes, with a progress bar; or one job in parallel.

The difficult part is how jobs end: a failing job must not stop the others, Ctrl-C and bugs must stop all of
them at once, nothing may wait for a worker that was killed, and no worker may outlive its parent.

In:  a function, the arguments of each job by its name, the arguments that all jobs share
Out: Outcome: results and failures by name, both in the order of the jobs
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from continual_segment.errors import ContinualSegmentError, WorkerError
from continual_segment.progress import progress_bar
from continual_segment.streams import lasting_streams

BYTES_PER_WORKER = 32 * 2**20  # of files to read; starting a process takes longer than working on fewer
SECONDS_TO_END = 5.0  # that a process has between a signal and the next, stronger one

Result = TypeVar("Result")
Jobs = Mapping[str, tuple[Any, ...]]
Start = Callable[[], None] | None
_Returned = tuple[Any, Exception | None]
_AllReturned = Generator[tuple[str, _Returned], None, None]


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """Results and failures of the jobs; each name is in one of the two."""

    results: dict[str, Result]
    failures: dict[str, str]
    """Why a job failed: an error message for the user."""


def for_each(
    function: Callable[..., Result],
    jobs: Jobs,
    shared: tuple[Any, ...] = (),
    workers: int | None = None,
    title: str = "",
    progress: bool = True,
    start: Start = None,
) -> Outcome[Result]:
    """Call function(*job, *shared) for every job, in this process or in several; by default one per core.

    An error that a user can cause ends only that job. Any other is a bug and is raised at once. Every new
    process calls `start` first, for instance to limit a library to one thread.
    """
    workers = min(usable_cores() if workers is None else workers, len(jobs))
    returned = (
        _run_here(function, jobs, shared)
        if workers <= 1
        else _run_in_workers(function, jobs, shared, workers, start)
    )
    results: dict[str, Result] = {}
    failures: dict[str, str] = {}
    hidden = None if progress and jobs else True  # None: hidden where there is no terminal
    with closing(returned), progress_bar(total=len(jobs), desc=title, unit="case", disable=hidden) as bar:
        for name, (result, error) in returned:
            if error is None:
                results[name] = result
            elif isinstance(error, (ContinualSegmentError, OSError, MemoryError)):
                failures[name] = str(error) or type(error).__name__
            else:
                raise error
            bar.update()
    ordered = {name: results[name] for name in jobs if name in results}
    return Outcome(ordered, {name: failures[name] for name in jobs if name in failures})


class WorkerProcess(Generic[Result]):
    """One further process, which runs one job at a time; if it dies, the next job starts a new one."""

    def __init__(self, function: Callable[..., Result], start: Start = None) -> None:
        self.function, self.first = function, start
        self._worker: tuple[Connection, SpawnProcess] | None = None

    def start(self, *job: Any) -> None:
        """Send a job; call `finish` before the next."""
        for _ in range(2):  # an idle process may have died; then a new one is started
            if self._worker is None:
                self._begin()
            assert self._worker is not None
            try:
                self._worker[0].send(job)
            except OSError:
                self.close()
            else:
                return

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the job, at most so long; True where `finish` returns at once."""
        return self._worker is None or self._worker[0].poll(seconds)

    def finish(self) -> Result:
        """Wait for the job's result; raise what it raised, or that its process died."""
        try:
            if self._worker is None:
                raise EOFError
            result, error = self._worker[0].recv()
        except (EOFError, OSError) as gone:
            self.close()
            raise WorkerError(
                "The worker process was killed, most often because memory ran out or a damaged file crashed "
                "its decoder. Run this case again on its own."
            ) from gone
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        if self._worker is not None:
            pipe, process = self._worker
            self._worker = None
            pipe.close()
            process.join(0.5)  # an idle one exits and cleans up by itself
            process.terminate()
            process.join(SECONDS_TO_END)
            process.kill()  # one that hangs or is stopped ignores the first signal
            process.join(SECONDS_TO_END)  # not for ever: one that waits for a disk cannot be killed

    def kill(self) -> None:
        """End the process in the middle of its job."""
        if self._worker is not None:
            self._worker[1].kill()
            self.close()

    @property
    def process_id(self) -> int | None:
        return None if self._worker is None else self._worker[1].pid

    def _begin(self) -> None:
        with _without_main(self.function):
            self._worker = _new_worker()
        self._worker[0].send((self.function, (), self.first))


@contextmanager
def beside(function: Callable[..., Any], *job: Any, start: Start = None) -> Iterator[None]:
    """Call function(*job) in another process while the body runs, and wait for it at the end."""
    worker = WorkerProcess(function, start)
    worker.start(*job)
    try:
        yield
        worker.finish()
    finally:
        worker.close()


def workers_for(files: Iterable[Path], wanted: int | None = None) -> int:
    """The number wanted; by default one per core, and fewer where the files are small."""
    if wanted is not None:
        return wanted
    size = sum(file.stat().st_size for file in files if file.is_file())
    return max(1, min(usable_cores(), size // BYTES_PER_WORKER))


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _attempt(function: Callable[..., Any], arguments: tuple[Any, ...]) -> _Returned:
    try:
        return function(*arguments), None
    except Exception as error:  # sorted into failures and bugs by for_each
        return None, error


def _run_here(function: Callable[..., Any], jobs: Jobs, shared: tuple[Any, ...]) -> _AllReturned:
    for name, job in jobs.items():
        yield name, _attempt(function, (*job, *shared))


def _run_in_workers(
    function: Callable[..., Any], jobs: Jobs, shared: tuple[Any, ...], workers: int, start: Start
) -> _AllReturned:
    """One pipe per worker: a broken pipe means that its worker died, and no lock is shared with others."""
    workers_by_pipe: dict[Connection, SpawnProcess] = {}
    running: dict[Connection, str] = {}
    waiting = iter(jobs.items())
    pipe: Connection | None = None
    try:
        with _without_main(function):
            workers_by_pipe.update(_new_worker() for _ in range(workers))
        for pipe in workers_by_pipe:  # after all have started, because sending blocks until the worker reads
            pipe.send((function, shared, start))
            running[pipe], job = next(waiting)
            pipe.send(job)
        while running:
            ready = wait(list(running))
            for pipe in [pipe for pipe in running if pipe in ready]:
                result, name = pipe.recv(), running.pop(pipe)
                for running[pipe], job in islice(waiting, 1):  # the next, if there is one
                    pipe.send(job)
                yield name, result
    except (EOFError, OSError) as error:
        at = f" at {running[pipe]}" if pipe in running else ""
        raise ContinualSegmentError(
            f"A worker process was killed{at}, most often because memory ran out. "
            "Run the command again with fewer workers."
        ) from error
    finally:
        for process in workers_by_pipe.values():  # idle by now, unless this is an error or Ctrl-C
            process.terminate()
        for pipe, process in workers_by_pipe.items():
            process.join()
            pipe.close()


def _new_worker() -> tuple[Connection, SpawnProcess]:
    context = multiprocessing.get_context("spawn")  # a forked child of a process with threads may hang
    pipe, worker_end = context.Pipe()
    process = context.Process(target=_work, args=(worker_end,), daemon=True)
    process.start()
    worker_end.close()  # so that the pipe breaks with the process
    return pipe, process


@contextmanager
def _without_main(function: Callable[..., Any]) -> Iterator[None]:
    """Keep new processes from importing the caller's script, which only functions defined in it need."""
    main = sys.modules["__main__"]
    if getattr(function, "__module__", None) != "__main__":
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _work(pipe: Connection) -> None:
    """The loop of a worker, until its parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C: exit at once, without a traceback
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with lasting_streams(), suppress(EOFError, ConnectionError):  # the parent is gone
        function, shared, start = pipe.recv()
        if start:
            start()
        while True:
            result, error = _attempt(function, (*pipe.recv(), *shared))
            if error:
                error.add_note("".join(traceback.format_exception(error)))  # the traceback itself stays here
            pipe.send((result, error))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
