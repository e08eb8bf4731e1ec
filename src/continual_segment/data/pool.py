"""One function over many cases in several processes, with a progress bar.

Hard about it is the end: a failing case must not stop the others, Ctrl-C must stop all of them at once,
and no process may outlive a parent that was killed.

In:  a function, the arguments per case, the arguments that all cases share
Out: case name -> sentence, for the cases that failed
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from typing import Any

from tqdm import tqdm

from continual_segment.errors import ContinualSegmentError, DatasetError

_shared: tuple[Any, ...] = ()  # in a worker: sent once, not with every case


def each_case(
    function: Callable[..., None],
    jobs: Sequence[tuple[Any, ...]],
    shared: tuple[Any, ...],
    workers: int,
    title: str,
    progress: bool,
) -> dict[str, str]:
    """Call function(*job, *shared) for every job; a job's first argument is the case, with a `name`.

    What a user can cause ends only that case. Anything else is our bug: it is raised at once.
    """
    failures = {}
    outcomes = (
        _here(function, jobs, shared) if workers <= 1 else _in_processes(function, jobs, shared, workers)
    )
    hidden = None if progress and jobs else True  # None: hidden where there is no terminal
    with closing(outcomes), tqdm(total=len(jobs), desc=title, unit="case", disable=hidden) as bar:
        for name, error in outcomes:
            if isinstance(error, (ContinualSegmentError, OSError, MemoryError)):
                failures[name] = str(error) or type(error).__name__
            elif error is not None:
                raise error
            bar.update()
    return {job[0].name: failures[job[0].name] for job in jobs if job[0].name in failures}  # in their order


def _here(
    function: Callable[..., None], jobs: Sequence[tuple[Any, ...]], shared: tuple[Any, ...]
) -> Generator[tuple[str, BaseException | None], None, None]:
    for job in jobs:
        try:
            function(*job, *shared)
            yield job[0].name, None
        except Exception as error:  # sorted into failures and bugs by the caller
            yield job[0].name, error


def _in_processes(
    function: Callable[..., None], jobs: Sequence[tuple[Any, ...]], shared: tuple[Any, ...], workers: int
) -> Generator[tuple[str, BaseException | None], None, None]:
    context = multiprocessing.get_context("spawn")  # a forked child of a process with threads may hang
    pool = ProcessPoolExecutor(workers, context, _start_worker, (shared,))
    try:
        waiting = {pool.submit(_call, function, job): job[0].name for job in jobs}
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield waiting.pop(future), _error_of(future)
    finally:
        pool.shutdown(cancel_futures=True)


def _error_of(future: Future[None]) -> BaseException | None:
    error = future.exception()
    if isinstance(error, BrokenProcessPool):
        raise DatasetError(
            "A worker process was ended from outside, most often because memory ran out. "
            "Finished cases are kept: run it again with fewer workers. "
            "(A script that calls this needs its `if __name__ == '__main__':`.)"
        ) from error
    return error


def _call(function: Callable[..., None], job: tuple[Any, ...]) -> None:
    function(*job, *_shared)


def _start_worker(shared: tuple[Any, ...]) -> None:
    import blosc2
    import torch

    global _shared
    _shared = shared
    torch.set_num_threads(1)  # the processes are the parallelism
    blosc2.set_nthreads(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C: end at once and without a traceback
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
