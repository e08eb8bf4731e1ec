"""Paths through a decoder as plain data, and the rules that choose one.

The smallest path that loses at most tau Dice points is chosen. Small may mean parameters, as in the paper,
multiply-adds, or seconds on this device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from continual_segment.networks import Mask

Selection = Literal["params", "cost", "time"]
TAUS = (1.0, 3.0, 5.0)  # Dice points; the paper's Table 3


@dataclass(frozen=True)
class PathScore:
    """One way through a decoder."""

    mask: Mask
    """Blocks that are students, deepest first."""
    plan: tuple[str, ...]
    dice: float
    """Mean over organs on the validation windows."""
    paper_parameters: int
    true_parameters: int
    multiply_adds: int
    """On one window."""
    seconds: float | None = None
    """On one window, on the device of the training; None where not measured."""
    fine_tuned: bool = False
    """Was it given time to recover before this score?"""

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> PathScore:
        """Lists back to tuples."""
        return cls(**data | {"mask": tuple(data["mask"]), "plan": tuple(data["plan"])})

    def size(self, by: Selection) -> float:
        if by == "params":
            return self.paper_parameters
        if by == "cost":
            return self.multiply_adds
        assert self.seconds is not None
        return self.seconds


def select(scores: Sequence[PathScore], tau: float, by: Selection) -> PathScore:
    """The smallest path that loses at most tau Dice points; between equals the one with more Dice.

    The first of the scores is the path without students, which is always good enough.
    """
    reference = scores[0]
    good = [score for score in scores if score is reference or score.dice >= reference.dice - tau / 100]
    return min(good, key=lambda score: (score.size(by), -score.dice))


def pareto_front(scores: Iterable[PathScore], by: Selection) -> list[PathScore]:
    """Paths that none of the same size or smaller beats, smallest first."""
    front: list[PathScore] = []
    for score in sorted(scores, key=lambda score: (score.size(by), -score.dice)):
        if not front or score.dice > front[-1].dice:
            front.append(score)
    return front
