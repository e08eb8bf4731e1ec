"""What is sent to a worker and what comes back: plain data that pickles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["done", "failed", "worker", "unfit"]


@dataclass(frozen=True)
class Call:
    """A function to call on a worker, and under which conditions."""

    function: Callable[..., Any]
    """Of a module, because it is sent by its name."""
    arguments: tuple[Any, ...]
    run: str
    """Names the run. A process on a worker serves one run, so what it has loaded belongs to that run."""
    version: str
    """Of this package; a worker with another one could give other results."""
    token: Path
    """A file of the run in the folder of the results: a worker that does not see it writes elsewhere."""
    seconds: float | None
    """How long it may take."""


@dataclass(frozen=True)
class Answer:
    """How a call ended."""

    kind: Kind
    """done; failed: the task itself is at fault, such as a damaged scan; worker: it may succeed on another
    worker; unfit: this worker cannot do any task of the run."""
    result: Any = None
    problem: str = ""
    """Error message for the user."""
    seconds: float = 0.0
    messages: tuple[tuple[int, str], ...] = field(default=())
    """What was logged on the worker: level, text."""
