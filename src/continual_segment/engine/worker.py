"""A call on a worker: in a process of its own, which can be killed without harm to the worker.

A thread cannot be stopped, and a decoder that crashes or memory that runs out ends a whole process. So a
worker keeps one further process per slot. It loads a model once and runs one call after the other; where a
call takes too long or is no longer wanted, the process is killed and the next call starts another one.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from continual_segment import __version__
from continual_segment.engine.call import Answer, Call
from continual_segment.errors import UnfitWorkerError, WorkerError, sentence_of
from continual_segment.malloc import TUNABLES, keep_freed_memory, with_malloc_settings
from continual_segment.processes import WorkerProcess

SECONDS_BETWEEN_LOOKS = 0.5
"""How often a call that runs is compared with its limits."""
START_SECONDS = 600.0
"""That a new process has to start."""
IDLE_SECONDS = 120.0
"""A process without calls ends after so long and releases its memory: its run has ended or was killed."""
MOST_MESSAGES = 200
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"

_starting = threading.Lock()
"""Processes start one at a time: starting replaces the main module of this process for a moment."""
_slots: dict[tuple[int, int, bool], Slot] = {}


class Slot:
    """Place for one call at a time on this worker."""

    def __init__(self, number: int, threads: int, gpu: bool) -> None:
        self.start = partial(set_up, threads, number if gpu else None)
        self.lock = threading.Lock()
        self.run = ""
        self.process: WorkerProcess[Answer] = WorkerProcess(attempt, self.start)
        self.timer: threading.Timer | None = None

    def answer(self, call: Call, is_wanted: Callable[[], bool], begun: Callable[[], None]) -> Answer:
        """Run the call in the slot's process, at most as long as it may take and is wanted."""
        with self.lock:
            if self.timer:
                self.timer.cancel()
            if self.run != call.run:
                self.process.close()
                self.run = call.run
            try:
                if self.process.process_id is None:  # its start does not count as time of the task
                    self._start(bool)
                    self._wait(START_SECONDS, is_wanted)
                begun()
                self._start(call.function, *call.arguments)
                return self._wait(call.seconds, is_wanted)
            except (WorkerError, OSError) as error:
                return Answer("worker", problem=sentence_of(error))
            finally:
                self.timer = threading.Timer(IDLE_SECONDS, self._end_if_idle)
                self.timer.daemon = True
                self.timer.start()

    def _start(self, function: Callable[..., Any], *arguments: Any) -> None:
        with _starting, as_parent():
            keep_malloc_settings()
            self.process.start(function, arguments)

    def _wait(self, seconds: float | None, is_wanted: Callable[[], bool]) -> Answer:
        started = time.monotonic()
        while not self.process.wait(SECONDS_BETWEEN_LOOKS):
            if not is_wanted():
                self.process.kill()
                raise WorkerError("It was no longer wanted and was stopped.")
            if seconds is not None and time.monotonic() - started > seconds:
                self.process.kill()
                raise WorkerError(f"It took longer than {seconds:g} s and was stopped.")
        return self.process.finish()

    def _end_if_idle(self) -> None:
        if self.lock.acquire(blocking=False):
            try:
                self.process.close()
            finally:
                self.lock.release()


def answer(
    call: Call,
    slot: int,
    threads: int = 1,
    gpu: bool = False,
    is_wanted: Callable[[], bool] = lambda: True,
    begun: Callable[[], None] = lambda: None,
) -> Answer:
    """Run a call in a slot of this worker; never raises because of the task.

    `begun` is called when the time of the task begins to count.
    """
    if problem := problem_here(call):
        return Answer("unfit", problem=problem)
    place = slot, threads, gpu
    return _slots.setdefault(place, Slot(*place)).answer(call, is_wanted, begun)


def problem_here(call: Call) -> str:
    """Why this worker can do nothing of a run; empty where it can."""
    if call.version != __version__:
        return f"It has continual-segment {__version__}, not {call.version}. Install the same version."
    if not call.token.is_file():
        return (
            f"It does not see {call.token.parent} as the machine that started the run does. "
            "Results must be on storage that all machines share, under the same path."
        )
    return ""


@contextmanager
def as_parent() -> Iterator[None]:
    """Let this process start another one, although Dask's nanny forbids it to its workers.

    The reason for that rule is that children of a killed worker stay behind; ours end with their parent.
    """
    process = multiprocessing.current_process()
    daemon = process.daemon
    if daemon:
        process.daemon = False
    try:
        yield
    finally:
        if daemon:
            process.daemon = True


def set_up(threads: int, gpu: int | None) -> None:
    """In a new process, before libraries that compute are loaded: its cores, its GPU, its memory.

    Training may load its patches in further processes (`workers`), which Python forbids to daemons. They end
    by themselves when this one is killed.
    """
    multiprocessing.current_process().daemon = False
    for name in THREADS:
        os.environ[name] = str(threads)
    if gpu is not None:
        os.environ[VISIBLE_GPUS] = gpu_of(gpu, os.environ.get(VISIBLE_GPUS))
    keep_freed_memory()


def gpu_of(slot: int, visible: str | None) -> str:
    """The GPU of a slot, of those that the worker was given."""
    named = [name for name in (visible or "").split(",") if name.strip()]
    return named[slot % len(named)].strip() if named else str(slot)


def attempt(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Answer:
    """Call a function in the slot's process; sort what it raises by who is at fault."""
    started = time.monotonic()
    messages: deque[tuple[int, str]] = deque(maxlen=MOST_MESSAGES)
    with kept_messages(messages):
        try:
            found = Answer("done", function(*arguments))
        except UnfitWorkerError as error:
            found = Answer("unfit", problem=sentence_of(error))
        except (WorkerError, OSError, MemoryError) as error:  # a full disk, a lost mount, too little memory
            found = Answer("worker", problem=sentence_of(error))
        except Exception as error:
            found = Answer("failed", problem=sentence_of(error))
    return replace(found, seconds=time.monotonic() - started, messages=tuple(messages))


@contextmanager
def kept_messages(messages: deque[tuple[int, str]]) -> Iterator[None]:
    """Keep what our package logs, instead of showing it on the worker."""
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: messages.append((record.levelno, record.getMessage()))  # type: ignore[method-assign]
    ours = logging.getLogger("continual_segment")
    before = ours.level, ours.propagate
    ours.setLevel(logging.INFO)
    ours.propagate = False
    ours.addHandler(handler)
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.setLevel(before[0])
        ours.propagate = before[1]


def keep_malloc_settings() -> None:
    """For processes that are started later: glibc reads some settings only at the start."""
    os.environ[TUNABLES] = with_malloc_settings(os.environ.get(TUNABLES, ""))
