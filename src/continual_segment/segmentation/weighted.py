"""The merge rule `weighted`: packs that know an organ vote on it, weighted by what is known of each.

Weight of a pack's vote on an organ: coverage x reliability x familiarity x health.

- coverage: of the body part, 1 in the pack's best one;
- reliability: odds of the pack's Dice for the organ on its own validation scans, d / (1 - d);
- familiarity: how much the scan looks like the pack's training scans, 1 for the one that it looks most like;
- health: 1 for packs that were trained on disease, 1 - e for others; e is the probability of disease. Without
  an anomaly map, e is 3/4 of how far a voter that knows disease is believed: its coverage x familiarity.

What is not known restricts nothing: it is 1, and the reliability is that of the best voter.

Votes may be calibrated: with the organ's temperature T, organ, background and all else then have
probabilities in proportion to their own to the power 1 / T, and a single pack decides as it does without.
That is off, for on validation scans it lost more than it gained (results/merging).

An organ may win where its weighted mean is above that of background and at least one voter covers the body
part by a half. Between organs of different packs, the mean counts as much as its most trusted voter: coverage
x familiarity x health. So where a scan belongs to one pack's domain, other packs hardly take its organs away,
and organs that it does not know stay.

In:  a PackPrediction per pack, and the ScanContext
Out: Decision
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from continual_segment.segmentation.context import ScanContext
from continual_segment.segmentation.decide import (
    LEAST_COVERED,
    choose,
    largest_of,
    packs_that_share,
    sum_of,
)
from continual_segment.segmentation.predictions import Decision, PackPrediction, PackProfile

LEAST_DICE, MOST_DICE = 0.05, 0.95
"""A few validation scans prove no more."""
UNMEASURED = -1.0
"""In place of a Dice. 0 is a measured one: the pack never finds the organ."""
LEAST_TRUST = 1e-3
"""Of familiarity x health: a pack that alone knows an organ decides about it in every scan."""
MOST_DISEASE = 0.75
"""Probability of disease, at most, where it is concluded from the packs and not from an anomaly map."""


class Vote(NamedTuple):
    """What the voters make of the organ of each voxel."""

    organ: Tensor
    """Weighted mean of its probability."""
    background: Tensor
    trust: Tensor
    """The largest among the voters."""
    coverage: Tensor
    """The largest among the voters."""


@dataclass(frozen=True)
class WeightedVote:
    """The rule, with all of its terms but calibration, or with others."""

    coverage: bool = True
    reliability: bool = True
    calibration: bool = False
    familiarity: bool = True
    health: bool = True

    def __call__(self, predictions: Sequence[PackPrediction], context: ScanContext) -> Decision:
        """The organ with the largest product of mean vote and trust."""
        means, keys, allowed = [], [], []
        for candidate, voters in zip(predictions, packs_that_share(predictions), strict=True):
            vote = (
                self.vote(candidate.organ, voters, context)
                if len(voters) > 1
                else self.only_vote(candidate, context)
            )
            means.append(vote.organ)
            keys.append(vote.organ * vote.trust)
            wins = (vote.organ > vote.background) & (vote.coverage >= LEAST_COVERED)
            allowed.append(candidate.eligible & wins)
        return choose(predictions, keys, scores=means, allowed=allowed)

    def vote(self, organ: Tensor, voters: Sequence[PackPrediction], context: ScanContext) -> Vote:
        """The vote of these packs, all of which know the organ of some voxels."""
        votes = [voter.votes_on(organ).float() for voter in voters]
        covered = [self._coverage(v.profile, context) * vote for v, vote in zip(voters, votes, strict=True)]
        disease = self._disease(voters, covered, context)
        trust = [
            each * self._trust(voter.profile, context, disease)
            for voter, each in zip(voters, covered, strict=True)
        ]
        reliability = self._reliability(organ, voters, votes)
        weights = [one * other for one, other in zip(trust, reliability, strict=True)]
        total = sum_of(weights).clamp_min(1e-12)
        # of a pack that votes alone exactly 1: its means are those of only_vote to the bit
        shares = [weight / total for weight in weights]
        pairs = [self._calibrated(voter, organ) for voter in voters]
        own, background = (
            sum_of([share * pair[which] for share, pair in zip(shares, pairs, strict=True)])
            for which in (0, 1)
        )
        return Vote(own, background, largest_of(trust), largest_of(covered))

    def only_vote(self, candidate: PackPrediction, context: ScanContext) -> Vote:
        """The same about the candidate's own organ, where no other pack shares any of its organs."""
        coverage = torch.as_tensor(self._coverage(candidate.profile, context))
        disease = self._disease([candidate], [coverage], context)
        trust = coverage * self._trust(candidate.profile, context, disease)
        own, background = self._calibrated(candidate, candidate.organ)
        return Vote(own, background, trust, coverage)

    def _coverage(self, profile: PackProfile, context: ScanContext) -> Tensor | float:
        return context.coverage(profile) if self.coverage else 1.0

    def _familiarity(self, profile: PackProfile, context: ScanContext) -> float:
        return context.familiarity(profile) if self.familiarity else 1.0

    def _disease(
        self, voters: Sequence[PackPrediction], covered: Sequence[Tensor], context: ScanContext
    ) -> Tensor | float:
        """Probability of disease: that of the map, or else how far a voter that knows disease is believed."""
        if not self.health or context.anomaly is not None:
            return context.disease() if self.health else 0.0
        believed = [
            coverage * MOST_DISEASE * self._familiarity(voter.profile, context)
            for voter, coverage in zip(voters, covered, strict=True)
            if voter.profile.anomaly_aware
        ]
        return largest_of(believed) if believed else 0.0

    def _trust(self, profile: PackProfile, context: ScanContext, disease: Tensor | float) -> Tensor:
        health = 1.0 if profile.anomaly_aware else 1 - disease
        return torch.as_tensor(self._familiarity(profile, context) * health).clamp_min(LEAST_TRUST)

    def _reliability(
        self, organ: Tensor, voters: Sequence[PackPrediction], votes: Sequence[Tensor]
    ) -> list[Tensor]:
        """Odds of each voter's Dice."""
        known = [
            torch.where(vote > 0, self._dice(voter, organ), UNMEASURED)
            for voter, vote in zip(voters, votes, strict=True)
        ]
        best = largest_of(known)
        dice = [torch.where(each >= 0, each, best).clamp(LEAST_DICE, MOST_DICE) for each in known]
        return [each / (1 - each) for each in dice]

    def _dice(self, voter: PackPrediction, organ: Tensor) -> Tensor | float:
        return voter.value_of(voter.profile.dice if self.reliability else {}, organ, UNMEASURED)

    def _calibrated(self, voter: PackPrediction, organ: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities of the organ and of background."""
        known, background = voter.probability_of(organ), voter.background
        if not (self.calibration and voter.profile.temperature):
            return known, background
        power = 1 / torch.as_tensor(voter.value_of(voter.profile.temperature, organ, 1.0))
        rest = (1 - known - background).clamp_min(0)
        powers = [each**power for each in (known, background, rest)]
        total = sum_of(powers)
        return powers[0] / total, powers[1] / total
