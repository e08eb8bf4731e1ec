"""Functions that workers of a test's cluster call; light to import."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import time
from pathlib import Path

from continual_segment.errors import ScanError


def double(number, *shared):
    return 2 * number


def process_id(*shared):
    return os.getpid()


def variables(names):
    return {name: os.environ.get(name) for name in names}


def sleep(seconds, *shared):
    time.sleep(seconds)
    return seconds


def stop_here(*shared):
    """Hang so that only SIGKILL helps."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.kill(os.getpid(), signal.SIGSTOP)


def die(*shared):
    os.kill(os.getpid(), signal.SIGKILL)


def start_another_process(*shared):
    """As training does with `workers`; the other process must not outlive this one, so it is a daemon."""
    other = multiprocessing.get_context("fork").Process(target=int, daemon=True)
    other.start()
    other.join()
    return other.exitcode


def raise_error(kind, *shared):
    logging.getLogger("continual_segment.made").warning("a warning before %s", kind)
    raise {"scan": ScanError, "disk": OSError, "memory": MemoryError, "bug": ZeroDivisionError}[kind]("why")


def mark_and_sleep(folder, seconds, *shared):
    """Show which worker runs the task, then take some time."""
    (Path(folder) / str(os.getppid())).touch()
    time.sleep(seconds)


def hang_on(worker, *shared):
    """Take for ever on one worker, and no time on others."""
    if os.getppid() == worker:
        time.sleep(10000)
