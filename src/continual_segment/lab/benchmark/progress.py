"""How much of a benchmark is done and how long the rest will take."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from continual_segment.files.atomic import write_json


class Work(Protocol):
    """A piece of work."""

    @property
    def title(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def size(self) -> float: ...
    @property
    def is_done(self) -> Callable[[], bool]: ...


class Progress:
    """Seconds of finished pieces, kept on disk: a run that goes on knows them too."""

    def __init__(self, path: Path, pieces: Sequence[Work]) -> None:
        self.path = path
        self.seconds = self._read()
        self.kinds = {piece.title: piece for piece in pieces}

    def add(self, piece: Work, seconds: float) -> None:
        self.seconds = self._read() | {piece.title: round(seconds, 2)}  # others may be at work beside
        write_json(self.path, self.seconds)

    def _read(self) -> dict[str, float]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def left(self, pieces: Sequence[Work]) -> float | None:
        """Seconds that the rest will take; None until a piece of the same sort was measured."""
        rest = 0.0
        for piece in pieces:
            if piece.is_done() or not piece.size:
                continue
            pace = self._pace(piece.kind)
            if pace is None:
                return None
            rest += pace * piece.size
        return rest

    def _pace(self, kind: str) -> float | None:
        """Seconds per unit of size, by pieces of this kind, else of a like one."""
        for alike in (kind, kind.split()[0]):
            known = [
                (self.seconds[title], piece.size)
                for title, piece in self.kinds.items()
                if title in self.seconds and piece.kind.startswith(alike) and piece.size
            ]
            if known:
                return sum(seconds for seconds, _ in known) / sum(size for _, size in known)
        return 0.0 if kind in ("merge rules", "run time") else None  # short; known when they come

    def sentence(self, pieces: Sequence[Work]) -> str:
        done = sum(piece.is_done() for piece in pieces)
        left = self.left(pieces)
        rest = "" if left is None else f", about {minutes(left)} left"
        return f"{done} of {len(pieces)} pieces done in {minutes(sum(self.seconds.values()))}{rest}"


def minutes(seconds: float) -> str:
    hours, rest = divmod(round(seconds / 60), 60)
    return f"{hours} h {rest} min" if hours else f"{rest} min"
