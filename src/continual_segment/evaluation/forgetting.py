"""What later steps took from earlier ones, and one number over all organs learned.

Forgetting of a dataset at a step is its best mean Dice at any earlier step minus its mean Dice now
(Chaudhry et al., 2018); the paper divides by that best and calls it the forgetting rate. Both are averaged
over the previous datasets with equal weight, whatever their number of organs. Below zero means that a later
step helped.

"All organs" hides a choice when datasets share organs, so three means are given: `all_organs` counts every
organ once, with its value on the newest dataset that labels it; `all_pairs` counts every organ of every
dataset; `all_macro` every dataset once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan

import numpy as np

from continual_segment.organs import canonical_name


@dataclass(frozen=True)
class StepForgetting:
    """What one learning step left of the datasets learned before it."""

    step: int
    """1 is the first step; it has nothing to forget and no entry."""
    absolute: dict[str, float]
    """Per previous dataset, best earlier mean Dice minus the mean Dice now, in the unit of the table."""
    relative: dict[str, float]
    """The same as a share of that best: the paper's forgetting rate, divided by 100."""

    @property
    def mean_absolute(self) -> float:
        return float(np.mean(list(self.absolute.values())))

    @property
    def mean_relative(self) -> float:
        return float(np.mean(list(self.relative.values())))


def forgetting(dice: Sequence[Mapping[str, float]]) -> list[StepForgetting]:
    """Forgetting at every step after the first.

    `dice[step]` holds the mean Dice, after that step, of every dataset learned so far; a dataset that no
    earlier step names is the one the step learned.
    """
    steps = []
    for index in range(1, len(dice)):
        previous = list(dict.fromkeys(name for earlier in dice[:index] for name in earlier))
        lost = [name for name in previous if name not in dice[index]]
        if lost:
            raise ValueError(f"Step {index + 1} has no Dice of {', '.join(lost)}, learned before it.")
        best = {name: _best(step[name] for step in dice[:index] if name in step) for name in previous}
        absolute = {name: best[name] - dice[index][name] for name in previous}
        relative = {name: _share(absolute[name], best[name]) for name in previous}
        steps.append(StepForgetting(index + 1, absolute, relative))
    return steps


def _best(values: Iterable[float]) -> float:
    return float(np.max(list(values)))  # unlike the built-in max, hides no nan


def _share(loss: float, best: float) -> float:
    return 0.0 if best == 0 else loss / best  # never learned: nothing to forget


@dataclass(frozen=True)
class AllScores:
    """One metric over all organs learned, in three weightings; undefined values (nan) are left out."""

    all_organs: float
    """Unique organs, each with its value on the newest dataset that labels it."""
    all_pairs: float
    """Every organ of every dataset."""
    all_macro: float
    """Mean of the datasets' means."""
    organs: int
    """Unique organs, those left out included."""
    pairs: int
    """Organs summed over datasets, those left out included."""
    organs_excluded: int
    """Unique organs without a value."""
    pairs_excluded: int
    """Organs of datasets without a value."""


def all_scores(organ_means: Mapping[str, Mapping[str, float]]) -> AllScores:
    """Combine per-organ means of several datasets, which are given oldest first."""
    newest: dict[str, float] = {}
    for means in organ_means.values():
        newest.update({canonical_name(organ): value for organ, value in means.items()})
    pairs = [value for means in organ_means.values() for value in means.values()]
    return AllScores(
        all_organs=nan_mean(newest.values()),
        all_pairs=nan_mean(pairs),
        all_macro=nan_mean(nan_mean(means.values()) for means in organ_means.values()),
        organs=len(newest),
        pairs=len(pairs),
        organs_excluded=sum(map(isnan, newest.values())),
        pairs_excluded=sum(map(isnan, pairs)),
    )


def nan_mean(values: Iterable[float]) -> float:
    """The mean of what is defined; nan, without a warning, when nothing is."""
    defined = [value for value in values if not isnan(value)]
    return float(np.mean(defined)) if defined else nan
