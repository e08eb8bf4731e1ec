"""One function over many named jobs in several processes, with a progress bar; or one job beside others.

Hard about it is the end: a failing job must not stop the others, Ctrl-C and our own bugs must stop all of
them at once, a worker that was killed must not be waited for, and none may outlive a parent that was killed.

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

from continual_segment.errors import ContinualSegmentError
from continual_segment.progress import progress_bar
from continual_segment.streams import lasting_streams

BYTES_PER_WORKER = 32 * 2**20  # of files to read; starting a process takes longer than working on fewer

Result = TypeVar("Result")
Jobs = Mapping[str, tuple[Any, ...]]
Start = Callable[[], None] | None
_Answer = tuple[Any, Exception | None]
_Answers = Generator[tuple[str, _Answer], None, None]


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """What became of the jobs; each name is in one of the two."""

    results: dict[str, Result]
    failures: dict[str, str]
    """Why a job failed, in words for the user."""


def for_each(
    function: Callable[..., Result],
    jobs: Jobs,
    shared: tuple[Any, ...] = (),
    workers: int | None = None,
    title: str = "",
    progress: bool = True,
    start: Start = None,
) -> Outcome[Result]:
    """Call function(*job, *shared) for every job, here or in several processes: one per core unless told.

    What a user can cause ends only that job. Anything else is our bug: it is raised at once. Every new
    process calls `start` first, for instance to keep a library to one thread.
    """
    workers = min(usable_cores() if workers is None else workers, len(jobs))
    answers = (
        _here(function, jobs, shared) if workers <= 1 else _there(function, jobs, shared, workers, start)
    )
    results: dict[str, Result] = {}
    failures: dict[str, str] = {}
    hidden = None if progress and jobs else True  # None: hidden where there is no terminal
    with closing(answers), progress_bar(total=len(jobs), desc=title, unit="case", disable=hidden) as bar:
        for name, (result, error) in answers:
            if error is None:
                results[name] = result
            elif isinstance(error, (ContinualSegmentError, OSError, MemoryError)):
                failures[name] = str(error) or type(error).__name__
            else:
                raise error
            bar.update()
    ordered = {name: results[name] for name in jobs if name in results}
    return Outcome(ordered, {name: failures[name] for name in jobs if name in failures})


class Companion(Generic[Result]):
    """One process beside this one, which does one job at a time; if it dies the next job gets a new one."""

    def __init__(self, function: Callable[..., Result], start: Start = None) -> None:
        self.function, self.first = function, start
        self._worker: tuple[Connection, SpawnProcess] | None = None

    def start(self, *job: Any) -> None:
        """Give it a job, which `finish` must be called for before the next."""
        for _ in range(2):  # an idle process may have died unseen; then a new one is tried
            if self._worker is None:
                self._begin()
            assert self._worker is not None
            try:
                self._worker[0].send(job)
            except OSError:
                self.close()
            else:
                return

    def finish(self) -> Result:
        """Wait for the job's result; what it raised is raised here, and so is the death of its process."""
        try:
            if self._worker is None:
                raise EOFError
            result, error = self._worker[0].recv()
        except (EOFError, OSError) as gone:
            self.close()
            raise ContinualSegmentError(
                "The process that worked on it was ended from outside, most often because memory ran out or "
                "a damaged file broke its decoder. Try it again alone."
            ) from gone
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        if self._worker is not None:
            pipe, process = self._worker
            self._worker = None
            pipe.close()
            process.join(0.5)  # an idle one ends by itself, and cleans up after itself
            process.terminate()
            process.join()

    @property
    def process_id(self) -> int | None:
        return None if self._worker is None else self._worker[1].pid

    def _begin(self) -> None:
        with _without_main(self.function):
            self._worker = _new_worker()
        self._worker[0].send((self.function, (), self.first))


@contextmanager
def beside(function: Callable[..., Any], *job: Any, start: Start = None) -> Iterator[None]:
    """Call function(*job) in a process of its own while the body runs, and wait for it at the end."""
    companion = Companion(function, start)
    companion.start(*job)
    try:
        yield
        companion.finish()
    finally:
        companion.close()


def workers_for(files: Iterable[Path], asked: int | None = None) -> int:
    """As many as asked for; else one per core, and fewer where the files are small."""
    if asked is not None:
        return asked
    size = sum(file.stat().st_size for file in files if file.is_file())
    return max(1, min(usable_cores(), size // BYTES_PER_WORKER))


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _attempt(function: Callable[..., Any], arguments: tuple[Any, ...]) -> _Answer:
    try:
        return function(*arguments), None
    except Exception as error:  # sorted into failures and bugs by for_each
        return None, error


def _here(function: Callable[..., Any], jobs: Jobs, shared: tuple[Any, ...]) -> _Answers:
    for name, job in jobs.items():
        yield name, _attempt(function, (*job, *shared))


def _there(
    function: Callable[..., Any], jobs: Jobs, shared: tuple[Any, ...], workers: int, start: Start
) -> _Answers:
    """One pipe per worker: when it breaks that worker is gone, and the others held no lock with it."""
    crew: dict[Connection, SpawnProcess] = {}
    at_work: dict[Connection, str] = {}
    waiting = iter(jobs.items())
    pipe: Connection | None = None
    try:
        with _without_main(function):
            crew.update(_new_worker() for _ in range(workers))
        for pipe in crew:  # only when all have started, because sending waits until the worker listens
            pipe.send((function, shared, start))
            at_work[pipe], job = next(waiting)
            pipe.send(job)
        while at_work:
            ready = wait(list(at_work))
            for pipe in [pipe for pipe in at_work if pipe in ready]:
                answer, name = pipe.recv(), at_work.pop(pipe)
                for at_work[pipe], job in islice(waiting, 1):  # the next, if there is one
                    pipe.send(job)
                yield name, answer
    except (EOFError, OSError) as error:
        at = f" at {at_work[pipe]}" if pipe in at_work else ""
        raise ContinualSegmentError(
            f"A worker process was ended from outside{at}, most often because memory ran out. "
            "Run it again with fewer workers."
        ) from error
    finally:
        for process in crew.values():  # idle by now, unless this is an error or Ctrl-C
            process.terminate()
        for pipe, process in crew.items():
            process.join()
            pipe.close()


def _new_worker() -> tuple[Connection, SpawnProcess]:
    context = multiprocessing.get_context("spawn")  # a forked child of a process with threads may hang
    pipe, its_end = context.Pipe()
    process = context.Process(target=_work, args=(its_end,), daemon=True)
    process.start()
    its_end.close()  # so that the pipe breaks with the process
    return pipe, process


@contextmanager
def _without_main(function: Callable[..., Any]) -> Iterator[None]:
    """Keep new processes from running the caller's script again, which only functions in it would need."""
    main = sys.modules["__main__"]
    if getattr(function, "__module__", None) != "__main__":
        sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _work(pipe: Connection) -> None:
    """What a worker does until its parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C: end at once and without a traceback
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
