"""Budget: how many parameters and multiply-adds the decoders of a model may have together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from continual_segment.errors import ConfigError
from continual_segment.learning.selection import PlanScore
from continual_segment.model import OrganPack
from continual_segment.networks import DecoderPlan, NetworkConfig, multiply_adds, paper_count


@dataclass(frozen=True)
class Budget:
    """Parameters and multiply-adds, as shares of one nnU-Net decoder's."""

    parameters: float
    multiply_adds: float

    def __post_init__(self) -> None:
        if not (self.parameters > 0 and self.multiply_adds > 0):  # also where one is no number
            raise ValueError(
                "The shares of parameters and multiply-adds in a budget are above 0, not "
                f"{self.parameters:g} and {self.multiply_adds:g}."
            )

    def split(self, packs: int) -> Budget:
        """The same for each of several packs that are learned at once."""
        return Budget(self.parameters / packs, self.multiply_adds / packs)

    def allows(self, score: PlanScore, whole: PlanScore) -> bool:
        return (
            score.paper_parameters <= self.parameters * whole.paper_parameters
            and score.multiply_adds <= self.multiply_adds * whole.multiply_adds
        )

    def left_by(
        self, packs: Iterable[OrganPack], network: NetworkConfig, window: Sequence[int], organs: int
    ) -> Budget:
        """What the packs of a model leave for one more; raises where not even projections would fit."""
        left = [self.parameters, self.multiply_adds]
        for pack in packs:
            used = shares_of(pack.plan, pack.network, window, len(pack.organs))
            left = [share - taken for share, taken in zip(left, used, strict=True)]
        least = shares_of(DecoderPlan.projections(network), network, window, organs)
        if any(share < needed for share, needed in zip(left, least, strict=True)):
            raise ConfigError(
                f"The model's packs leave {left[0]:.3f} of the parameters and {left[1]:.3f} of the multiply-"
                f"adds of one decoder; the smallest pack needs {least[0]:.3f} and {least[1]:.3f}. Give a "
                "larger --budget, or make other packs smaller first."
            )
        return Budget(*left)


def shares_of(
    plan: DecoderPlan, network: NetworkConfig, window: Sequence[int], organs: int
) -> tuple[float, float]:
    """Parameters and multiply-adds of a decoder, per those of nnU-Net's."""
    nnunet = DecoderPlan.nnunet(network)
    return (
        paper_count(plan, network) / paper_count(nnunet, network),
        multiply_adds(plan, network, window, organs) / multiply_adds(nnunet, network, window, organs),
    )
