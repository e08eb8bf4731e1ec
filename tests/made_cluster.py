"""A scheduler of Dask and its workers, each in a process of its own on this machine."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from distributed import Client

from continual_segment.engine import Dispatcher

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src"
SECONDS = 600
"""That a test waits for something; other tests may run beside it."""


class MadeCluster:
    """Started by `with`; no process outlives it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.processes: list[subprocess.Popen] = []

    def __enter__(self):
        options = ["--host", "127.0.0.1", "--port", self.port, "--no-dashboard"]
        options += ["--idle-timeout", "1 hour"]  # for a test that is killed
        scheduler = self._start("scheduler", *options)
        try:
            wait_for(lambda: scheduler.poll() is not None or answers(self.port))
            assert scheduler.poll() is None, "the scheduler has ended"
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        everything = [each for process in self.processes for each in family(process.pid)]
        for process in everything:
            process.kill()
        for started in self.processes:
            started.wait()

    @property
    def address(self) -> str:
        return f"dask://127.0.0.1:{self.port}"

    def worker(self, name: str, nanny: bool = False, largest_file: int | None = None) -> subprocess.Popen:
        """Start a worker; `largest_file`: every write beyond so many bytes fails, as on a full disk."""

        def limit():
            if largest_file is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

        return self._start(
            "worker", f"tcp://127.0.0.1:{self.port}", "--nthreads", 1, "--no-dashboard", "--name", name,
            "--memory-limit", 0, "--death-timeout", 300, "--local-directory", self.folder / name,
            *([] if nanny else ["--no-nanny"]), preexec_fn=limit,
        )  # fmt: skip

    def wait_for_workers(self, count: int) -> None:
        """Until the scheduler knows so many: a run that starts then gives a task to each."""
        with Client(f"tcp://127.0.0.1:{self.port}", timeout=SECONDS, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=SECONDS)

    def _start(self, what, *options, **more) -> subprocess.Popen:
        settings = {
            "PYTHONPATH": f"{SOURCE}:{TESTS}",
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{what}", *map(str, options)],
            env=os.environ | settings,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **more,
        )
        self.processes.append(process)
        return process


def family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def spawned(pid: int) -> list[psutil.Process]:
    """What a process started with multiprocessing: a nanny's worker, a worker's process of a run."""
    try:
        return [each for each in psutil.Process(pid).children() if "spawn_main" in " ".join(each.cmdline())]
    except psutil.NoSuchProcess:
        return []


def addresses(dispatcher: Dispatcher, name: str) -> list[str]:
    """Of the workers of this name that can be used."""
    workers = dispatcher.cluster._client.scheduler_info(n_workers=-1)["workers"]
    return [each for each in dispatcher.cluster.slots() if workers.get(each, {}).get("name") == name]


def has_begun(dispatcher: Dispatcher, worker: str) -> bool:
    """Whether a worker at this address is known to run a task."""
    return any(each.worker == worker and each.started for each in list(dispatcher.running.values()))


def wait_for(condition, seconds: float = SECONDS):
    """What the condition gives as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
    return found


@contextmanager
def beside(disturb: Callable[[], None]) -> Iterator[None]:
    """Call a function in a thread while the body runs; what it raises ends the body and is raised here."""
    errors: list[BaseException] = []

    def attempt():
        try:
            disturb()
        except BaseException as error:
            errors.append(error)
            press_ctrl_c()

    thread = threading.Thread(target=attempt, daemon=True)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a job in the background
    thread.start()
    try:
        yield
        thread.join(SECONDS)
        assert not thread.is_alive(), "what should have happened beside the test did not"
    except KeyboardInterrupt:
        if errors:
            raise errors[0] from None
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def press_ctrl_c() -> None:
    """From any thread. A signal that a thread sends to itself does not wake the main one while that waits."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def kill(process: psutil.Process) -> None:
    process.send_signal(signal.SIGKILL)


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
