"""Divide one budget among several packs, so that together they are expected to lose least.

Every pack has plans with sizes and an expected loss. A price per parameter and per multiply-add makes each
pack take the plan whose loss and price are least together; with the lowest prices at which all plans fit into
the budget, it is spent where Dice is cheapest. What is left is then given to the pack that gains most by it.

A loss is minus the logarithm of the share of Dice that is kept. Small ones are nearly the shares that are
lost; but of two plans that both lose nearly everything before training, the smaller one still loses more, so
that no pack is given up for the others.

In:  the expected plans of every pack, a budget
Out: a budget for every pack
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

from continual_segment.errors import ConfigError
from continual_segment.learning.budget import ROUNDING, Budget, shares_of_score
from continual_segment.learning.expected_plans import without_beaten
from continual_segment.learning.selection import PlanScore

RATIOS = [number / 10 for number in range(11)]
"""Of the price of parameters to both prices."""
PRICES = [10 ** (power / 10) for power in range(-60, 61)]
"""In losses per budget, ascending."""
LEAST_KEPT = 1e-4
"""Share of Dice below which all plans count as equal."""


@dataclass(frozen=True)
class Option:
    """What a pack may take: shares of the budget, and what it is expected to lose."""

    parameters: float
    multiply_adds: float
    loss: float


def split_budget(tables: Sequence[Sequence[PlanScore]], budget: Budget) -> list[Budget]:
    """A budget for each pack; `tables` have its expected plans, with that of the trained decoder."""
    options = [options_of(table, budget) for table in tables]
    found = [
        chosen
        for ratio in RATIOS
        if (chosen := next((c for p in PRICES if fits(c := at_price(options, p, ratio))), None))
    ]
    if not found:
        raise ConfigError(
            f"A budget of {budget.parameters:g} of the parameters and {budget.multiply_adds:g} of the "
            f"multiply-adds of one decoder is too small for {len(tables)} packs. Give a larger --budget, or "
            "smaller widths in [shrink]."
        )
    best = min((spend_rest(options, chosen) for chosen in found), key=total_loss)
    return with_rest(best, budget)


def options_of(table: Sequence[PlanScore], budget: Budget) -> list[Option]:
    """A pack's plans that none beats, in units of the budget."""
    whole = max(table, key=lambda score: (score.paper_parameters, score.multiply_adds))
    made = []
    for score in without_beaten(table):
        parameters, cost = shares_of_score(score, whole)
        kept = score.dice / whole.dice if whole.dice > 0 else 1.0
        loss = -log(max(kept, LEAST_KEPT))
        made.append(Option(parameters / budget.parameters, cost / budget.multiply_adds, loss))
    return made


def at_price(options: Sequence[Sequence[Option]], price: float, ratio: float) -> list[Option]:
    """What every pack takes at these prices."""

    def total(option: Option) -> float:
        return option.loss + price * (ratio * option.parameters + (1 - ratio) * option.multiply_adds)

    return [min(of_pack, key=total) for of_pack in options]


def fits(chosen: Sequence[Option]) -> bool:
    limit = 1 + ROUNDING
    return (
        sum(option.parameters for option in chosen) <= limit
        and sum(option.multiply_adds for option in chosen) <= limit
    )


def spend_rest(options: Sequence[Sequence[Option]], chosen: Sequence[Option]) -> list[Option]:
    """Take better plans, as long as one fits; the one that gains most first."""
    current = list(chosen)
    while True:
        better = [
            (option.loss - current[pack].loss, pack, option)
            for pack, of_pack in enumerate(options)
            for option in of_pack
            if option.loss < current[pack].loss and fits([*current[:pack], option, *current[pack + 1 :]])
        ]
        if not better:
            return current
        _, pack, option = min(better, key=lambda found: found[:2])
        current[pack] = option


def total_loss(chosen: Sequence[Option]) -> float:
    return sum(option.loss for option in chosen)


def with_rest(chosen: Sequence[Option], budget: Budget) -> list[Budget]:
    """In shares of one decoder; what no pack takes is divided equally."""
    rest = [
        max(0.0, 1 - sum(sizes)) / len(chosen)
        for sizes in zip(*((option.parameters, option.multiply_adds) for option in chosen), strict=True)
    ]
    return [
        Budget(
            (option.parameters + rest[0]) * budget.parameters,
            (option.multiply_adds + rest[1]) * budget.multiply_adds,
        )
        for option in chosen
    ]
