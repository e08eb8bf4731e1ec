"""End a run between two changes of files that are seen: moves and removals, but of hidden names."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any


def end_at(step: int, end: Callable[[], None], setattr_: Callable[[type, str, Any], None]) -> None:
    """Call `end` before the step-th change of a visible file."""
    steps = count()

    def watched(change):
        def changed(path, *target, **options):
            if ".unfinished" not in str(target[0] if target else path) and next(steps) == step:
                end()
            return change(path, *target, **options)

        return changed

    for name in ("replace", "unlink"):
        setattr_(Path, name, watched(getattr(Path, name)))


class Killed(BaseException):
    """In place of a kill."""


def stop() -> None:
    raise Killed
