"""What merging knows of a slab: what every pack says, what a pack says of itself, and where the slab lies.

A rule never gets a volume of all organs. It reads the slab a pack has just filled through a few arrays: the
surest organ, its probability, that of background, and on request the probability of the organ another pack
names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from continual_segment.organs import BODY_PARTS, LAST_HASHED_ID


@dataclass(frozen=True)
class Voice:
    """What a pack says of itself: where in the body, and in which patients, to believe it."""

    name: str = ""
    fingerprint: str = ""
    coverage: Mapping[str, float] = field(default_factory=dict)
    """Body part -> how well its training scans covered it, on any scale. Empty: restricts nothing."""
    anomaly_aware: bool = False
    """Whether its training scans held the disease that the anomaly map shows."""
    distribution: Mapping[str, float] = field(default_factory=dict)
    """Body part -> share of the labelled height of its training scans: the paper's P. Empty: as coverage."""

    @property
    def rank(self) -> tuple[str, str]:
        """An order of packs that lies in the packs: two models with the same packs agree on it."""
        return self.fingerprint, self.name

    @property
    def shares(self) -> tuple[float, ...]:
        """What the training scans showed of each body part, in sum 1: the paper's table."""
        return divided_by(sum, self.distribution or self.coverage)

    @property
    def reach(self) -> tuple[float, ...]:
        """Coverage of each body part, 1 for the best covered."""
        return divided_by(max, self.coverage)


def divided_by(measure: Callable[[Sequence[float]], float], parts: Mapping[str, float]) -> tuple[float, ...]:
    """The values of all body parts over their sum or maximum; all 1 where nothing is known."""
    values = [max(0.0, parts.get(part, 0.0)) for part in BODY_PARTS]
    whole = measure(values)
    return tuple(value / whole for value in values) if whole > 0 else (1.0,) * len(values)


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What is known of some slices besides the packs' answers."""

    body_part: Tensor | None = None
    """(z,): index in BODY_PARTS, or UNKNOWN_PART. None: all unknown."""
    anomaly: Tensor | None = None
    """(z, y, x): probability of diseased tissue. None: nowhere."""

    def __getitem__(self, slices: slice) -> Surroundings:
        return self.at(slices, slice(None))

    def at(self, slices: slice, lines: slice) -> Surroundings:
        """The same for some lines of some slices."""
        return Surroundings(
            None if self.body_part is None else self.body_part[slices],
            None if self.anomaly is None else self.anomaly[slices, lines],
        )

    def per_slice(self, values: Sequence[float]) -> Tensor | float:
        """One value per body part laid out along the slices (z, 1, 1); 1 where the part is unknown."""
        if self.body_part is None:
            return 1.0
        table = torch.tensor([*values, 1.0], device=self.body_part.device)  # -1 finds the last
        return table[self.body_part.long()].reshape(-1, 1, 1)

    def disease(self, voice: Voice | None = None) -> Tensor | float:
        """Probability of a disease this pack has not seen; without a pack, of any."""
        aware = voice is not None and voice.anomaly_aware
        return 0.0 if self.anomaly is None or aware else self.anomaly


@dataclass(frozen=True, eq=False)
class Answer:
    """What one pack says about a slab."""

    voice: Voice
    organ_ids: Tensor
    """(channel,) int32: the organ of each channel, the first one background, 0."""
    sums: Tensor
    """(channel, z, y, x): probabilities times `weight`."""
    weight: Tensor
    """(z, y, x)"""
    by_parts: Tensor | None = None
    """Ids of organs that it knows by some of their parts alone: not seeing such an organ says little."""
    whole: Tensor | None = None
    """(z, y, x): the organ whose parts are asked for, 0 where nothing is. None: organs are."""
    wholes: Tensor | None = None
    """(channel,) int32: of what each channel's organ is part, -1 where of nothing."""

    @cached_property
    def _best(self) -> tuple[Tensor, Tensor]:
        best, channel = self.sums[1:].max(dim=0)
        return best, channel + 1

    @cached_property
    def organ(self) -> Tensor:
        """Id of the surest organ, also where background is surer still."""
        return self.organ_ids[self._best[1]]

    @cached_property
    def score(self) -> Tensor:
        """Probability of that organ."""
        return self._best[0] / self.weight

    @cached_property
    def background(self) -> Tensor:
        """Probability of no organ; where parts are asked for, the whole alone is no part."""
        background = self.sums[0] / self.weight
        return background if self.whole is None else background + self.probability_of(self.whole)

    @cached_property
    def heard(self) -> Tensor:
        """Where the pack has a say: everywhere, or where it knows a part of what is asked for."""
        if self.whole is None or self.wholes is None:
            return torch.ones_like(self.weight, dtype=torch.bool)
        return torch.isin(self.whole, self.wholes)

    @cached_property
    def eligible(self) -> Tensor:
        """Where its surest organ is among those asked for."""
        if self.whole is None or self.wholes is None:
            return self.heard
        return self.wholes[self._best[1]] == self.whole

    @cached_property
    def names_organ(self) -> Tensor:
        """Where the organ is eligible and surer than background."""
        return (self._best[0] > self.sums[0]) & self.eligible

    @cached_property
    def _channels(self) -> Tensor:
        """Organ id -> channel, 0 for organs of others."""
        table = torch.zeros(LAST_HASHED_ID + 1, dtype=torch.int64, device=self.organ_ids.device)
        table[self.organ_ids.long()] = torch.arange(len(self.organ_ids), device=table.device)
        return table

    def knows(self, organ: Tensor) -> Tensor:
        """Whether the organ of each voxel is one of this pack's."""
        return self._channels[organ.long()] > 0

    def votes_on(self, organ: Tensor) -> Tensor:
        """Whether it has a say on the organ of each voxel: it knows it, and not by unseen parts alone."""
        knows = self.knows(organ)
        if self.by_parts is None:
            return knows
        return knows & (~torch.isin(organ, self.by_parts) | (self.names_organ & (self.organ == organ)))

    def probability_of(self, organ: Tensor) -> Tensor:
        """Its probability of the organ of each voxel; 0 for organs it does not know."""
        channel = self._channels[organ.long()]
        own = self.sums.gather(0, channel[None])[0] / self.weight
        return torch.where(channel > 0, own, 0.0)

    def mass_of(self, organ_ids: Tensor) -> Tensor:
        """Sum of its probabilities of these organs."""
        channels = self._channels[organ_ids.long()]
        return self.sums[channels[channels > 0]].sum(dim=0) / self.weight


class Decision(NamedTuple):
    """What the packs together say about a slab."""

    organ: Tensor
    """Organ ids, int32; 0 is background."""
    score: Tensor
    """How sure: the winner's probability, or what the rule makes of several; 0 on background."""
    pack: Tensor
    """int16: whose answer it is, as a position among the answers; -1 on background."""

    @classmethod
    def background(cls, shape: Sequence[int], device: torch.device) -> Decision:
        """Nothing anywhere, to be filled part by part."""
        return cls(
            torch.zeros(*shape, dtype=torch.int32, device=device),
            torch.zeros(*shape, device=device),
            torch.full((*shape,), -1, dtype=torch.int16, device=device),
        )
