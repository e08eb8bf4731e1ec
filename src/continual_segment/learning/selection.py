"""Candidate decoders as plain data, and the rules that choose one.

The smallest that loses at most tau Dice points against the trained decoder is chosen. Small may mean
parameters, as in the paper, multiply-adds, or seconds on this device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar

import torch

from continual_segment.networks import Decoder, DecoderPlan, Mask, multiply_adds, paper_count, true_count

Selection = Literal["params", "cost", "time"]
TAUS = (1.0, 3.0, 5.0)  # Dice points; the paper's Table 3


@dataclass(frozen=True, kw_only=True)
class PlanScore:
    """A decoder of one plan."""

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
    """Was it trained before this score?"""

    @classmethod
    def of(cls, plan: DecoderPlan, at: Decoder, window: Sequence[int], dice: float, **more: Any) -> Self:
        """With the sizes of a decoder of this plan in the place of another."""
        with torch.device("meta"):  # counted without being made
            decoder = Decoder(at.network, plan, at.organs)
        return cls(
            plan=plan.kernels,
            dice=dice,
            paper_parameters=paper_count(plan, at.network),
            true_parameters=true_count(decoder),
            multiply_adds=multiply_adds(plan, at.network, window, at.organs),
            **more,
        )

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Lists back to tuples."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        return cls(**fields)

    def size(self, by: Selection) -> float:
        if by == "params":
            return self.paper_parameters
        if by == "cost":
            return self.multiply_adds
        assert self.seconds is not None
        return self.seconds


@dataclass(frozen=True, kw_only=True)
class PathScore(PlanScore):
    """One way through a decoder with students."""

    mask: Mask
    """Blocks that are students, deepest first."""


Score = TypeVar("Score", bound=PlanScore)


def select(scores: Sequence[Score], reference: Score, tau: float, by: Selection) -> Score:
    """The smallest that loses at most tau Dice points against the reference, which is always good enough.

    Between equals the one with more Dice.
    """
    good = [score for score in scores if loses_at_most(tau, score.dice, reference.dice)]
    return min([*good, reference], key=lambda score: (score.size(by), -score.dice))


def loses_at_most(tau: float, dice: float, reference: float) -> bool:
    """Whether at most tau Dice points are lost; False where nothing was measured."""
    return dice >= reference - tau / 100


def pareto_front(scores: Iterable[Score], by: Selection) -> list[Score]:
    """Decoders that none of the same size or smaller beats, smallest first."""
    front: list[Score] = []
    for score in sorted(scores, key=lambda score: (score.size(by), -score.dice)):
        if not front or score.dice > front[-1].dice:
            front.append(score)
    return front
