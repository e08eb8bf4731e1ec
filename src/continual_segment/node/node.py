"""Node: receiver, worker, sender and health page around one queue, from start to a clean stop."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType

from continual_segment import __version__
from continual_segment.errors import ConfigError
from continual_segment.model import Model
from continual_segment.node.config import NodeConfig
from continual_segment.node.queue import Queue
from continual_segment.node.reason import reason_of
from continual_segment.node.receive import Receiver, start_server
from continual_segment.node.send import Sender, web_service
from continual_segment.node.status import Health, oldest_waiting_seconds, serve_health
from continual_segment.node.store import Store
from continual_segment.node.tls import server_context
from continual_segment.node.work import Worker
from continual_segment.processes import WorkerProcess
from continual_segment.training.interrupt import StopRequest

log = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS = 1.0
STOP_SECONDS = 30.0
CLEAN_UP_SECONDS = 600.0


def listen(config: NodeConfig) -> None:
    """Run a node until Ctrl-C or SIGTERM."""
    for folder in {folder for rule in config.rules for folder in rule.model}:
        Model.open(folder)  # a wrong path is found now, not with the first series
    for destination in config.destinations:
        if destination.url:
            web_service(destination, config.tls)  # and so are wrong credentials
    with StopRequest() as stop, Node(config) as node:
        while not stop.requested:
            node.wait()


class Node:
    """While entered, it receives, segments and sends."""

    def __init__(self, config: NodeConfig, process: WorkerProcess[None] | None = None) -> None:
        logging.getLogger("pynetdicom").setLevel(logging.CRITICAL)  # it logs what peers send
        self.config, self.store = config, Store(config.folder)
        self._pause = min(LONGEST_PAUSE_SECONDS, config.listen.silence_seconds / 4)
        self._stopping = threading.Event()
        self._process = process
        self._cleaned = 0.0

    def __enter__(self) -> Node:
        self.store.make()
        with ExitStack() as opened:  # what was opened is closed again where the rest fails
            opened.callback(self.store.locked().release)
            self.queue = Queue(self.store.queue)
            opened.callback(self.queue.close)
            self.queue.recover(self.config.retries.segment)
            self.store.sweep(self.queue)
            self._start_threads()
            opened.callback(self._stop_threads)
            self._listen(opened)
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        log.info("The node stops.")
        self._opened.close()

    def _start_threads(self) -> None:
        self.worker = Worker(self.config, self.queue, self.store, self._process)
        sender = Sender(self.config, self.queue, self.store)
        self._threads = [self._start("work", self.worker.step), self._start("send", sender.step)]

    def _stop_threads(self) -> None:
        self._stopping.set()
        end = time.monotonic() + STOP_SECONDS
        while (living := [each for each in self._threads if each.is_alive()]) and time.monotonic() < end:
            self.worker.stop()  # more than once: its process may just have been starting
            living[0].join(0.1)
        if not self._threads[0].is_alive():
            self.worker.close()

    def _dead_threads(self) -> list[threading.Thread]:
        return [each for each in self._threads if not each.is_alive()]

    def _listen(self, opened: ExitStack) -> None:
        settings, tls = self.config.listen, self.config.tls
        receiver = Receiver(self.config.limits, self.queue, self.store)
        context = server_context(tls) if tls else None
        try:
            self.server = start_server(settings, receiver, context)
            opened.callback(self._stop_listening)
            self.page = serve_health(settings.health_port, self.health)
        except OSError as error:
            raise ConfigError(
                f"{settings.host}:{settings.port} or the health page's port {settings.health_port} cannot be "
                f"opened ({error.strerror}). Choose others, or end the program that uses them."
            ) from error
        opened.callback(self.page.server_close)
        opened.callback(self.page.shutdown)
        where = (settings.ae_title, *self.address, self.page.server_port)
        log.info("%s listens on %s:%d; health page: http://127.0.0.1:%d", *where)

    def _stop_listening(self) -> None:
        self.server.shutdown()
        for association in self.server.active_associations:
            association.abort()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, also where any free port was asked for."""
        host, port = self.server.server_address[:2]
        return str(host), int(port)

    def _start(self, name: str, step: Callable[[], bool]) -> threading.Thread:
        def run() -> None:
            try:
                while not self._stopping.is_set():
                    if not attempted(step):
                        self._stopping.wait(self._pause)
            except sqlite3.ProgrammingError:  # the queue was closed: the node did not wait any longer
                if not self._stopping.is_set():
                    raise
                log.warning("The node stopped before `%s` had ended; it is done again after a start.", name)

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def wait(self) -> None:
        """A pause, then what has to be looked after."""
        self._stopping.wait(self._pause)
        attempted(self._look_after)
        for thread in self._dead_threads():  # a bug of ours: to run on would look healthy
            raise RuntimeError(f"The thread that should {thread.name} has ended; see the log.")

    def _look_after(self) -> None:
        self.worker.stop_if_late()
        self.queue.settle(self.config.listen.silence_seconds)
        if time.monotonic() - self._cleaned > CLEAN_UP_SECONDS:
            self._cleaned = time.monotonic()
            self._clean_up()

    def _clean_up(self) -> None:
        for series in self.queue.expire(self.config.limits.keep_hours):
            try:
                self.store.delete(series)
            except OSError as error:  # it stays in the queue, or nobody would know of the patient's data
                why = reason_of(error)
                log.error("series %s: not deleted, next attempt in %g s: %s", series, CLEAN_UP_SECONDS, why)
            else:
                self.queue.forget(series)
                log.info("series %s: its files were deleted.", series)

    def health(self) -> Health:
        free = self.store.free_mb()
        problems = [f"The thread that should {each.name} has ended." for each in self._dead_threads()]
        if free < self.config.limits.free_disk_mb:
            problems.append("The disk is almost full; nothing is accepted.")
        waiting = oldest_waiting_seconds(self.queue.all_series())
        return Health(not problems, __version__, self.queue.counts(), waiting, round(free), problems)


def attempted(step: Callable[[], object]) -> bool:
    """What a step returns; False where the queue cannot be written: a full disk may be emptied again."""
    try:
        return bool(step())
    except sqlite3.OperationalError as error:
        log.error("The queue cannot be read or written (%s); the next attempt follows.", error)
        return False
