"""What plans are expected to lose, from what each of their blocks loses alone.

Judging every combination of forms would take longer than training: there are thousands. So each smaller block
is judged once, with the trained blocks around it, and the shares of the Dice that a plan's blocks keep are
multiplied. That is an estimate which chooses a few plans to fit and judge; sizes add up exactly.

In:  scores of plans with one smaller block each
Out: all their combinations with expected scores
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod

from continual_segment.learning.selection import PlanScore

SIZES = ("paper_parameters", "true_parameters", "multiply_adds")
"""Fields of a score that differ from the trained decoder's by the sum over blocks."""


def expected_plans(single: Sequence[PlanScore], whole: PlanScore) -> list[PlanScore]:
    """All combinations of the blocks in these plans, each of which differs from the whole one in one block.

    Forms that another one of the same block beats in every respect are left out.
    """
    smaller: list[list[PlanScore]] = [[] for _ in whole.plan]
    for score in single:
        (number,) = (n for n, name in enumerate(score.plan) if name != whole.plan[n])
        smaller[number].append(score)
    choices = [[whole, *without_beaten(scores)] for scores in smaller]
    return [combined(chosen, whole) for chosen in product(*choices)]


def combined(chosen: Sequence[PlanScore], whole: PlanScore) -> PlanScore:
    """The plan that takes block i from the i-th score."""
    sizes = {
        name: getattr(whole, name) + sum(getattr(score, name) - getattr(whole, name) for score in chosen)
        for name in SIZES
    }
    dice = whole.dice * prod(score.dice / whole.dice for score in chosen) if whole.dice > 0 else 0.0
    plan = tuple(score.plan[number] for number, score in enumerate(chosen))
    return replace(whole, plan=plan, dice=dice, **sizes)


def without_beaten(scores: Sequence[PlanScore]) -> list[PlanScore]:
    """Those that no other one beats: none is as small by both measures and as good."""
    kept: list[PlanScore] = []
    for score in sorted(scores, key=lambda each: (-each.dice, each.paper_parameters, each.multiply_adds)):
        if not any(
            other.paper_parameters <= score.paper_parameters and other.multiply_adds <= score.multiply_adds
            for other in kept
        ):
            kept.append(score)
    return kept
