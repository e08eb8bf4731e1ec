"""Budget: how many parameters and multiply-adds the decoders of a model may have together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from continual_segment.errors import ConfigError
from continual_segment.learning.selection import PlanScore
from continual_segment.model import OrganPack
from continual_segment.networks import DecoderPlan, NetworkConfig, multiply_adds, paper_count

ROUNDING = 1e-9
"""Shares are quotients: what has exactly the allowed size is within them."""


@dataclass(frozen=True)
class Budget:
    """Parameters and multiply-adds, as shares of one nnU-Net decoder's."""

    parameters: float
    multiply_adds: float
    packs: int = 1
    """So many packs are to fit into it: what the model's packs leave is divided among those to come."""

    def __post_init__(self) -> None:
        if not (self.parameters > 0 and self.multiply_adds > 0):  # also where one is no number
            raise ValueError(
                "The shares of parameters and multiply-adds in a budget are above 0, not "
                f"{self.parameters:g} and {self.multiply_adds:g}."
            )
        if type(self.packs) is not int or self.packs < 1:
            raise ValueError(f"A budget is for a number of packs, 1 or more, not {self.packs}.")

    def split(self, packs: int) -> Budget:
        """The same for each of several packs that are learned at once."""
        return Budget(self.parameters / packs, self.multiply_adds / packs)

    def allows(self, score: PlanScore, whole: PlanScore) -> bool:
        parameters, cost = shares_of_score(score, whole)
        return parameters <= self.parameters * (1 + ROUNDING) and cost <= self.multiply_adds * (1 + ROUNDING)

    def left_by(self, packs: Iterable[OrganPack], window: Sequence[int]) -> Budget:
        """What the packs of a model leave for one more; nothing of a budget may be below 0."""
        left, missing = [self.parameters, self.multiply_adds], self.packs
        for pack in packs:
            used = shares_of(pack.plan, pack.network, window, len(pack.organs))
            left, missing = [share - taken for share, taken in zip(left, used, strict=True)], missing - 1
        if min(left) <= 0:
            raise ConfigError(
                f"The model's packs leave {left[0]:.3f} of the parameters and {left[1]:.3f} of the multiply-"
                "adds of one decoder, which is nothing. Give a larger --budget, or make other packs smaller "
                "first."
            )
        return Budget(left[0], left[1]).split(max(1, missing))

    def check(self, least: DecoderPlan, network: NetworkConfig, window: Sequence[int], organs: int) -> None:
        """Raise where not even the smallest decoder would fit."""
        needed = shares_of(least, network, window, organs)
        if self.parameters < needed[0] or self.multiply_adds < needed[1]:
            raise ConfigError(
                f"There are {self.parameters:.3f} of the parameters and {self.multiply_adds:.3f} of the "
                f"multiply-adds of one decoder left for this pack; the smallest one needs {needed[0]:.3f} "
                f"and {needed[1]:.3f}. Give a larger --budget, or make other packs smaller first."
            )


def shares_of(
    plan: DecoderPlan, network: NetworkConfig, window: Sequence[int], organs: int
) -> tuple[float, float]:
    """Parameters and multiply-adds of a decoder, per those of nnU-Net's."""
    nnunet = DecoderPlan.nnunet(network)
    return (
        paper_count(plan, network) / paper_count(nnunet, network),
        multiply_adds(plan, network, window, organs) / multiply_adds(nnunet, network, window, organs),
    )


def shares_of_score(score: PlanScore, whole: PlanScore) -> tuple[float, float]:
    """The same of a score and that of the whole decoder."""
    return (
        score.paper_parameters / whole.paper_parameters,
        score.multiply_adds / whole.multiply_adds,
    )
