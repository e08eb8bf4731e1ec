"""Predictions of single packs, and the decision that a merge rule makes from them.

A merge rule never gets a volume of all organs. It reads a few arrays per pack: the most probable organ, its
probability, the probability of background and, on request, the probability of an organ that another pack
predicts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from continual_segment.model.assessment import Assessment, Domain
from continual_segment.organs import BODY_PARTS, LAST_HASHED_ID, Organ


@dataclass(frozen=True)
class PackProfile:
    """What merging knows about a pack: its identity, and the scans that it was trained on."""

    name: str = ""
    fingerprint: str = ""
    coverage: Mapping[str, float] = field(default_factory=dict)
    """Body part -> how well training scans cover it, on any scale. Empty: not measured; no restriction."""
    anomaly_aware: bool = False
    """Whether the training scans contain the disease that the anomaly map shows."""
    distribution: Mapping[str, float] = field(default_factory=dict)
    """Body part -> share of the labelled height of the training scans: the paper's P. Empty: as coverage."""
    dice: Mapping[int, float] = field(default_factory=dict)
    """Organ id -> Dice on the pack's own validation windows. Empty: not measured."""
    temperature: Mapping[int, float] = field(default_factory=dict)
    """Organ id -> by what the log-odds of its probabilities are divided. Empty: not measured; 1."""
    domain: Domain | None = None
    """What its training scans look like. None: not measured."""

    def with_assessment(self, known: Assessment | None, organs: Sequence[Organ]) -> PackProfile:
        """The profile with what the pack knows of itself; `organs` have their ids in the model."""
        if known is None:
            return self
        measured = {organ.id: known.organs[organ.name] for organ in organs if organ.name in known.organs}
        return replace(
            self,
            dice={organ: each.dice for organ, each in measured.items()},
            temperature={organ: each.temperature for organ, each in measured.items()},
            domain=known.domain,
        )

    @property
    def rank(self) -> tuple[str, str]:
        """Sort key of packs; it depends on the packs alone, so models with the same packs agree on it."""
        return self.fingerprint, self.name

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of each body part in the training scans, summing to 1: the paper's table."""
        return normalised_by(sum, self.distribution or self.coverage)

    @property
    def relative_coverage(self) -> tuple[float, ...]:
        """Coverage of each body part, 1 for the best covered."""
        return normalised_by(max, self.coverage)


def normalised_by(
    measure: Callable[[Sequence[float]], float], coverage: Mapping[str, float]
) -> tuple[float, ...]:
    """Values of all body parts divided by their sum or maximum; all 1 if nothing was measured."""
    values = [max(0.0, coverage.get(part, 0.0)) for part in BODY_PARTS]
    divisor = measure(values)
    return tuple(value / divisor for value in values) if divisor > 0 else (1.0,) * len(values)


@dataclass(frozen=True, eq=False)
class PackPrediction:
    """Class probabilities of one pack on some voxels.

    On the layers of nested organs (segmentation/nested.py) only the parts of one organ compete per voxel;
    `whole` and `wholes` restrict the prediction to them.
    """

    profile: PackProfile
    organ_ids: Tensor
    """(channel,) int32: organ of each channel; the first is background, 0."""
    probabilities: Tensor
    """(channel, z, y, x)"""
    known_by_parts: Tensor | None = None
    """Ids of organs of which the pack knows only parts: where it sees none, the organ may still be there."""
    whole: Tensor | None = None
    """(z, y, x): the organ whose parts compete, 0 where none do. None: all organs compete."""
    wholes: Tensor | None = None
    """(channel,) int32: the organ that each channel's organ is part of, -1 if none."""

    def at_voxels(self, *places: Tensor) -> PackPrediction:
        """The prediction of some voxels by their z, y and x, each as a slice of its own (voxel, 1, 1)."""
        z, y, x = places
        return replace(self, probabilities=self.probabilities[:, z, y, x][..., None, None])

    @cached_property
    def _best(self) -> tuple[Tensor, Tensor]:
        best, channel = self.probabilities[1:].max(dim=0)
        return best, channel + 1

    @cached_property
    def organ(self) -> Tensor:
        """Id of the most probable organ, also where background is more probable."""
        return self.organ_ids[self._best[1]]

    @property
    def score(self) -> Tensor:
        """Probability of that organ."""
        return self._best[0]

    @cached_property
    def background(self) -> Tensor:
        """Probability of no organ; where parts compete, the undivided whole counts as no part."""
        background = self.probabilities[0]
        return background if self.whole is None else background + self.probability_of(self.whole)

    @cached_property
    def has_vote(self) -> Tensor:
        """Where the pack takes part: everywhere, or where it knows a part of the organ in question."""
        if self.whole is None or self.wholes is None:
            return torch.ones_like(self.score, dtype=torch.bool)
        return torch.isin(self.whole, self.wholes)

    @cached_property
    def eligible(self) -> Tensor:
        """Where its most probable organ is among those that compete."""
        if self.whole is None or self.wholes is None:
            return self.has_vote
        return self.wholes[self._best[1]] == self.whole

    @cached_property
    def predicts_organ(self) -> Tensor:
        """Where the organ is eligible and more probable than background."""
        return (self.score > self.probabilities[0]) & self.eligible

    @cached_property
    def _channels(self) -> Tensor:
        """Organ id -> channel, 0 for organs of other packs."""
        return channel_table(tuple(self.organ_ids.tolist()), self.organ_ids.device)

    @cached_property
    def _asked(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Identity of an organ tensor -> it and its channels: rules ask about the same one several times."""
        return {id(self.organ): (self.organ, self._best[1])}

    def _channel_of(self, organ: Tensor) -> Tensor:
        """Channel of the organ of each voxel, 0 for organs of other packs."""
        if id(organ) not in self._asked:
            self._asked[id(organ)] = organ, self._channels[organ.long()].long()
        return self._asked[id(organ)][1]

    def knows(self, organ: Tensor) -> Tensor:
        """Whether the organ of each voxel is one of this pack's."""
        return self._channel_of(organ) > 0

    def votes_on(self, organ: Tensor) -> Tensor:
        """Whether it votes on the organ of each voxel: it knows it, and not only by parts it does not see."""
        knows = self.knows(organ)
        if self.known_by_parts is None:
            return knows
        sees = self.predicts_organ & (self.organ == organ)
        return knows & (~torch.isin(organ, self.known_by_parts) | sees)

    def probability_of(self, organ: Tensor) -> Tensor:
        """Probability of the organ of each voxel; 0 for organs that the pack does not know."""
        if organ is self.organ:
            return self.score
        channel = self._channel_of(organ)
        return torch.where(channel > 0, self.probabilities.gather(0, channel[None])[0], 0.0)

    def value_of(self, values: Mapping[int, float], organ: Tensor, unknown: float) -> Tensor | float:
        """A number of the pack for the organ of each voxel; of a whole that it knows by parts, their mean."""
        if not values:
            return unknown
        mean = sum(values.values()) / len(values)
        known = [unknown, *(values.get(each, mean) for each in self.organ_ids[1:].tolist())]
        return torch.tensor(known, device=organ.device)[self._channel_of(organ)]

    def probability_of_any(self, organ_ids: Tensor) -> Tensor:
        """Sum of the probabilities of these organs."""
        channels = self._channels[organ_ids.long()].long()
        return self.probabilities[channels[channels > 0]].sum(dim=0)


@lru_cache(maxsize=512)  # of 128 KB each
def channel_table(organ_ids: tuple[int, ...], device: torch.device) -> Tensor:
    """int16: organ id -> its place among these organs, 0 for others."""
    table = torch.zeros(LAST_HASHED_ID + 1, dtype=torch.int16, device=device)
    table[list(organ_ids)] = torch.arange(len(organ_ids), dtype=torch.int16, device=device)
    return table


class Decision(NamedTuple):
    """The merged prediction of all packs."""

    organ: Tensor
    """Organ ids, int32; 0 is background."""
    score: Tensor
    """Probability of the winner, or what the rule computes from several; 0 on background."""
    pack: Tensor
    """int16: index of the winning pack among the predictions; -1 on background."""

    @classmethod
    def background(cls, shape: Sequence[int], device: torch.device) -> Decision:
        """Background everywhere, to be filled part by part."""
        return cls(
            torch.zeros(*shape, dtype=torch.int32, device=device),
            torch.zeros(*shape, device=device),
            torch.full((*shape,), -1, dtype=torch.int16, device=device),
        )
