"""How much of a benchmark is done and how long the rest will take."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from continual_segment.files.atomic import write_json


class Work(Protocol):
    """A task, as far as its time matters."""

    @property
    def title(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def size(self) -> float: ...
    @property
    def is_done(self) -> Callable[[], bool]: ...


class Progress:
    """Seconds of finished tasks, stored on disk for a run that resumes."""

    def __init__(self, path: Path, tasks: Sequence[Work]) -> None:
        self.path = path
        self.seconds = self._read()
        self.kinds = {task.title: task for task in tasks}

    def add(self, task: Work, seconds: float) -> None:
        self.seconds = self._read() | {task.title: round(seconds, 2)}  # another process may run tasks, too
        write_json(self.path, self.seconds)

    def _read(self) -> dict[str, float]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def left(self, tasks: Sequence[Work]) -> float | None:
        """Seconds that the rest will take; None until a task of the same kind was measured."""
        rest = 0.0
        for task in tasks:
            if task.is_done() or not task.size:
                continue
            pace = self._pace(task.kind)
            if pace is None:
                return None
            rest += pace * task.size
        return rest

    def _pace(self, kind: str) -> float | None:
        """Seconds per unit of size, by tasks of this kind, else of a similar one."""
        for alike in (kind, kind.split()[0]):
            known = [
                (self.seconds[title], task.size)
                for title, task in self.kinds.items()
                if title in self.seconds and task.kind.startswith(alike) and task.size
            ]
            if known:
                return sum(seconds for seconds, _ in known) / sum(size for _, size in known)
        return 0.0 if kind in ("merge rules", "run time") else None  # short

    def sentence(self, tasks: Sequence[Work]) -> str:
        done = sum(task.is_done() for task in tasks)
        left = self.left(tasks)
        rest = "" if left is None else f", about {minutes(left)} left"
        return f"{done} of {len(tasks)} tasks done in {minutes(sum(self.seconds.values()))}{rest}"


def minutes(seconds: float) -> str:
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest} min" if hours else f"{rest} min"
