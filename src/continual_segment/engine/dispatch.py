"""Dispatcher: which worker runs which task, and what happens when one fails, dies or hangs.

Tasks are given to single workers, one per free slot, and not to a scheduler's queue: so it is known where and
since when each one runs, a failed one is tried elsewhere, at most so often, and a worker that hangs is left
alone. Nothing here knows Dask; a Cluster is what it needs of one.

In:  tasks, a cluster whose workers come and go
Out: Finished, one per task
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from continual_segment.engine.call import Answer
from continual_segment.engine.config import EngineConfig
from continual_segment.errors import ContinualSegmentError
from continual_segment.names import printable

log = logging.getLogger(__name__)

STEP_SECONDS = 1.0
"""How long a step waits for news at most: a dead worker is noticed within about that time."""
GRACE_SECONDS = 60.0
"""A worker stops a late task by itself; one that has not after so much longer hangs as a whole."""
LONGEST_PAUSE_SECONDS = 300.0
"""Of a worker after failures; the pause doubles with each in a row, and a success ends it."""
FAILED_IN_A_ROW = 10
"""So many tasks without a success between them, each tried as often as allowed: not their fault, and the run
ends. With more slots than this, as many as there are slots."""
SECONDS_BETWEEN_REMINDERS = 60.0


@dataclass(eq=False)
class EngineTask:
    """One task and what became of it so far."""

    name: str
    arguments: tuple[Any, ...]
    failed_on: dict[str, str] = field(default_factory=dict)
    """Worker -> why it failed there."""
    attempts: int = 0


@dataclass(frozen=True)
class Finished:
    """A task that is done or given up."""

    name: str
    answer: Answer
    worker: str


@dataclass(eq=False)
class Running:
    """A task on a worker."""

    task: EngineTask
    worker: str
    slot: int
    started: float | None = None
    """None until the worker has begun."""


Event = tuple[str, Answer | None]
"""Key of a submitted task, and its answer; None: the worker has begun."""


class Cluster(Protocol):
    """Workers that come and go."""

    def slots(self) -> Mapping[str, int]:
        """Workers that are there, and how many tasks each can run at once."""

    def submit(self, worker: str, slot: int, arguments: tuple[Any, ...]) -> str:
        """Give a task to a worker; return its key."""

    def forget(self, key: str) -> None:
        """Stop a task, where it can be reached, and expect no answer."""

    def events(self, seconds: float) -> Sequence[Event]:
        """What happened; waits at most so long for the first event."""


class Dispatcher:
    """Gives tasks to workers until all are finished."""

    def __init__(self, cluster: Cluster, config: EngineConfig) -> None:
        self.cluster, self.config = cluster, config
        self.waiting: deque[EngineTask] = deque()
        self.running: dict[str, Running] = {}
        self.set_aside: dict[str, str] = {}
        """Workers that get no more tasks, and why."""
        self._slots: Mapping[str, int] = {}
        self._failures: dict[str, int] = {}
        self._paused_until: dict[str, float] = {}
        self._failed_in_a_row = 0
        self._reminded = time.monotonic()

    def add(self, name: str, *arguments: Any) -> None:
        self.waiting.append(EngineTask(name, arguments))

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.running

    def run(self) -> Iterator[Finished]:
        """Until every task is finished, those included that are added meanwhile."""
        while not self.is_idle:
            yield from self.step()

    def step(self, seconds: float = STEP_SECONDS) -> list[Finished]:
        """Give out what can be given out, and collect what has ended."""
        self._slots = self.cluster.slots()
        self._assign()
        self._check_workers()
        ended = [each for event in self.cluster.events(seconds) for each in self._received(*event)]
        return [*ended, *self._lost(), *self._late()]

    def _assign(self) -> None:
        now, usable = time.monotonic(), self._usable()
        used = {(each.worker, each.slot) for each in self.running.values()}
        for worker in usable:
            for slot in range(self._slots[worker]):
                if (worker, slot) in used or self._paused_until.get(worker, 0.0) > now:
                    continue
                if task := self._next_for(worker, usable):
                    task.attempts += 1
                    key = self.cluster.submit(worker, slot, task.arguments)
                    self.running[key] = Running(task, worker, slot)

    def _usable(self) -> set[str]:
        return self._slots.keys() - self.set_aside.keys()

    def _next_for(self, worker: str, usable: set[str]) -> EngineTask | None:
        """The first task that did not fail on this worker, unless it has failed on all there are."""
        for position, task in enumerate(self.waiting):
            if worker not in task.failed_on or usable <= task.failed_on.keys():
                del self.waiting[position]
                return task
        return None

    def _received(self, key: str, answer: Answer | None) -> Iterator[Finished]:
        if key not in self.running:  # given up before
            return
        if answer is None:
            self.running[key].started = time.monotonic()
            return
        running = self.running.pop(key)
        if answer.kind in ("worker", "unfit"):
            yield from self._failed(running, answer)
            return
        self._failed_in_a_row = 0
        self._failures.pop(running.worker, None)
        yield Finished(running.task.name, answer, running.worker)

    def _failed(self, running: Running, answer: Answer) -> Iterator[Finished]:
        """An attempt failed for a reason that may be the worker's."""
        task, worker = running.task, running.worker
        task.failed_on[worker] = answer.problem
        if answer.kind == "unfit":
            task.attempts -= 1  # it was not tried
            self._set_aside(worker, answer.problem)
        else:
            self._pause(worker)
        if task.attempts >= self.config.attempts:
            yield self._given_up(running, answer)
        else:
            if answer.kind == "worker":
                log.warning(
                    "%s: attempt %d of %d failed on %s and is repeated: %s",
                    printable(task.name), task.attempts, self.config.attempts, worker,
                    printable(answer.problem, 400),
                )  # fmt: skip
            self.waiting.appendleft(task)

    def _given_up(self, running: Running, answer: Answer) -> Finished:
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= max(FAILED_IN_A_ROW, sum(self._slots.values())):
            raise ContinualSegmentError(
                f"The last {self._failed_in_a_row} tasks failed on every worker that tried them; the last "
                f"reason: {answer.problem} Fix it and run the same command again to resume."
            )
        times = f" ({running.task.attempts} attempts)" if running.task.attempts > 1 else ""
        failed = Answer("failed", problem=f"{answer.problem}{times}", messages=answer.messages)
        return Finished(running.task.name, failed, running.worker)

    def _pause(self, worker: str) -> None:
        self._failures[worker] = self._failures.get(worker, 0) + 1
        pause = min(2.0 ** self._failures[worker], LONGEST_PAUSE_SECONDS)
        self._paused_until[worker] = time.monotonic() + pause

    def _set_aside(self, worker: str, reason: str) -> None:
        if worker not in self.set_aside:
            self.set_aside[worker] = reason
            log.warning("Worker %s gets no more tasks: %s", worker, printable(reason, 400))

    def _lost(self) -> Iterator[Finished]:
        """Tasks of workers that are gone."""
        for key, running in list(self.running.items()):
            if running.worker not in self._slots:
                yield from self._give_up_on(key, "Its worker died or lost its connection.")

    def _late(self) -> Iterator[Finished]:
        """Tasks of workers that should have stopped them, and hang."""
        if self.config.seconds is None:
            return
        limit = time.monotonic() - self.config.seconds - GRACE_SECONDS
        for key, running in list(self.running.items()):
            if running.started is not None and running.started < limit:
                self._set_aside(running.worker, "It does not respond.")
                yield from self._give_up_on(key, "Its worker does not respond.")

    def _give_up_on(self, key: str, problem: str) -> Iterator[Finished]:
        self.cluster.forget(key)
        yield from self._failed(self.running.pop(key), Answer("worker", problem=problem))

    def _check_workers(self) -> None:
        """A message where nothing can be computed, an error where that cannot change."""
        if self._usable() or self.running:
            return
        if self._slots:
            reasons = " ".join(f"{worker}: {self.set_aside[worker]}" for worker in self._slots)
            raise ContinualSegmentError(
                f"{self.config.address}: no worker can be used. {reasons} Fix it and run the same command "
                "again to resume."
            )
        if time.monotonic() - self._reminded > SECONDS_BETWEEN_REMINDERS:
            self._reminded = time.monotonic()
            log.info("%s: no worker yet; waiting. Ctrl-C stops.", self.config.address)
