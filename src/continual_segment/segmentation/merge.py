"""Rules that merge the predictions of all packs into one label map.

A decoder predicts background outside its own organs, and its training scans may show only a part of the body.
So packs contradict each other, and a pack may predict its organ where it cannot be. A rule decides each voxel
from the predictions, from how well each pack covers this part of the body, and from the probability of
disease. docs/paper_to_code.md lists the limits of the published equations, which the other rules address.

Names in the formulas: y, probability of the organ that a pack predicts; P, its coverage of the body part (1
where that is unknown); e, probability of disease; M = (1 + P (1 - e)) / 2; x = M y. Ties go to the larger x,
then to the lower organ id, then to the lower fingerprint: the order of the packs has no effect.

A pack has nothing to add about organs that it does not know: its term of every sum is 0, its factor of every
product 1. So only packs that share an organ are asked about each other's, and merging takes time linear in
the number of packs as long as few of them share an organ.

In:  a PackPrediction per pack, and the ScanContext
Out: Decision
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from continual_segment.segmentation.context import ScanContext
from continual_segment.segmentation.decide import (
    LEAST_COVERED,
    MergeRule,
    choose,
    largest_of,
    packs_that_share,
    sum_of,
)
from continual_segment.segmentation.predictions import Decision, PackPrediction
from continual_segment.segmentation.weighted import WeightedVote

RuleName = Literal[
    "probability",
    "ensemble",
    "literal",
    "restated",
    "monotone",
    "threshold",
    "background-aware",
    "consensus",
    "weighted",
]
LEFT_TO_OTHERS = 0.25
"""Share of its vote that a pack without disease in its training keeps where a disease-aware pack votes too,
in the rule `consensus`. With 0, a weak disease-aware pack costs healthy organs; with more than a third,
diseased organs lose: results/comparison.md."""


def highest_probability(predictions: Sequence[PackPrediction], context: ScanContext) -> Decision:
    """The largest y; body part and disease are ignored."""
    return choose(predictions, [prediction.score for prediction in predictions])


def ensemble(predictions: Sequence[PackPrediction], context: ScanContext) -> Decision:
    """The largest mean probability over all packs that know the organ; the paper's control."""
    means = []
    for candidate, sharing in zip(predictions, packs_that_share(predictions), strict=True):
        owners = sum_of([prediction.knows(candidate.organ).float() for prediction in sharing])
        probabilities = [prediction.probability_of(candidate.organ) for prediction in sharing]
        means.append(sum_of(probabilities) / owners)
    return choose(predictions, means, scores=means)


def literal(predictions: Sequence[PackPrediction], context: ScanContext) -> Decision:
    """The least -x log x: the published equations, P in sum 1 over the body and e the same for all packs."""
    confidence = [
        weighted_probability(prediction, context.per_slice(prediction.profile.shares), context.disease())
        for prediction in predictions
    ]
    return choose(predictions, [-entropy(x) for x in confidence], confidence)


def restated(predictions: Sequence[PackPrediction], context: ScanContext) -> Decision:
    """`literal`, but P is 1 in the best covered part, and disease does not lower M of disease-aware packs."""
    confidence = [confidence_of(prediction, context) for prediction in predictions]
    return choose(predictions, [-entropy(x) for x in confidence], confidence)


def monotone(predictions: Sequence[PackPrediction], context: ScanContext) -> Decision:
    """The largest x: the intent of least entropy, but lower confidence never wins."""
    confidence = [confidence_of(prediction, context) for prediction in predictions]
    return choose(predictions, confidence, confidence)


def threshold(predictions: Sequence[PackPrediction], context: ScanContext) -> Decision:
    """`restated` with predictions of (1 + P) y / 2 above a half only: no pack wins out of its region."""
    confidence = [confidence_of(prediction, context) for prediction in predictions]
    kept = [
        prediction.predicts_organ
        & (weighted_probability(prediction, context.coverage(prediction.profile), 0.0) > LEAST_COVERED)
        for prediction in predictions
    ]
    return choose(predictions, [-entropy(x) for x in confidence], confidence, allowed=kept)


def background_aware(predictions: Sequence[PackPrediction], context: ScanContext) -> Decision:
    """Coverage as reliability, and background competes.

    A pack's probability p of organ c counts as r p with r = P (1 - e o). o is 1 if a disease-aware pack knows
    c too, so that no organ is lost because no such pack knows it. Background has the product over packs of
    what remains, an organ 1 - the product of (1 - r p) over the packs that know it; the largest wins.
    """
    shared = aware_organs(predictions)
    background = torch.ones_like(predictions[0].score)
    for prediction in predictions:
        coverage, disease = context.coverage(prediction.profile), context.disease(prediction.profile)
        distrusted = disease * prediction.probability_of_any(shared) if len(shared) else 0.0
        claimed = coverage * (1 - prediction.background - distrusted)
        background = background * (1 - claimed * prediction.has_vote).clamp(0, 1)
    own = [reliable(prediction, prediction.organ, context, shared) for prediction in predictions]
    evidence = []
    for candidate, sharing in zip(predictions, packs_that_share(predictions), strict=True):
        missed = torch.ones_like(background)
        for prediction in sharing:
            missed = missed * (1 - reliable(prediction, candidate.organ, context, shared))
        evidence.append(1 - missed)
    allowed = [each.eligible & (s > background) for each, s in zip(predictions, evidence, strict=True)]
    return choose(predictions, evidence, own, evidence, allowed)


def consensus(predictions: Sequence[PackPrediction], context: ScanContext) -> Decision:
    """All packs that know an organ vote on it, weighted by their coverage of the body part.

    The organ has the mean of p over its voters, weighted by P. It may win where this mean is above the
    voters' mean probability of background and the coverage of at least one voter is a half. A pack that knows
    only parts of the organ votes only where it predicts one of them.

    Disease-aware packs are trained on healthy and on diseased organs; other packs fail far beyond a tumour,
    also where the anomaly map shows nothing. So where a disease-aware pack votes, the votes of the others
    count a quarter. Where it predicts its organ with p, other organs of the others count 1 - p.
    """
    means, allowed = [], []
    for candidate, sharing in zip(predictions, packs_that_share(predictions), strict=True):
        votes = voting_weights(sharing, candidate.organ, context)
        weighted = list(zip(votes, sharing, strict=True))
        organ = sum(weight * prediction.probability_of(candidate.organ) for weight, prediction in weighted)
        background = sum(weight * prediction.background for weight, prediction in weighted)
        total, best = sum_of(votes), largest_of(votes)
        means.append(organ / total.clamp_min(1e-6))
        allowed.append(candidate.eligible & (organ > background) & (best >= LEAST_COVERED))
    factors = suppression(predictions, means, allowed)
    keys = [mean * factor for mean, factor in zip(means, factors, strict=True)]
    return choose(predictions, keys, scores=means, allowed=allowed)


def voting_weights(
    predictions: Sequence[PackPrediction], organ: Tensor, context: ScanContext
) -> list[Tensor]:
    """Weight of each pack's vote on the organ of a voxel: its coverage, less beside a disease-aware pack."""
    weights = [
        context.coverage(prediction.profile) * prediction.votes_on(organ).float()
        for prediction in predictions
    ]
    led = torch.zeros_like(weights[0])
    for prediction, weight in zip(predictions, weights, strict=True):
        if prediction.profile.anomaly_aware:
            led = torch.maximum(led, weight)
    return [
        weight if prediction.profile.anomaly_aware else weight * (1 - (1 - LEFT_TO_OTHERS) * led)
        for prediction, weight in zip(predictions, weights, strict=True)
    ]


def suppression(
    predictions: Sequence[PackPrediction], means: Sequence[Tensor], allowed: Sequence[Tensor]
) -> list[Tensor]:
    """Factor of each prediction: 1, or 1 - p where a disease-aware pack predicts another organ with p."""
    least, second = torch.ones_like(means[0]), torch.ones_like(means[0])  # the second is of another organ
    organ = torch.zeros_like(predictions[0].organ)
    for prediction, mean, may in zip(predictions, means, allowed, strict=True):
        if prediction.profile.anomaly_aware:
            factor, same = 1 - mean * may, prediction.organ == organ
            lower = factor < least
            second = torch.where(same, second, torch.minimum(second, torch.where(lower, least, factor)))
            least = torch.where(lower, factor, least)
            organ = torch.where(lower, prediction.organ, organ)
    return [
        torch.ones_like(least)
        if prediction.profile.anomaly_aware
        else torch.where(prediction.organ == organ, second, least)
        for prediction in predictions
    ]


RULES: dict[RuleName, MergeRule] = {
    "probability": highest_probability,
    "ensemble": ensemble,
    "literal": literal,
    "restated": restated,
    "monotone": monotone,
    "threshold": threshold,
    "background-aware": background_aware,
    "consensus": consensus,
    "weighted": WeightedVote(),
}
READ_DISEASE: frozenset[RuleName] = frozenset(
    {"literal", "restated", "monotone", "threshold", "background-aware", "weighted"}
)
"""Rules that the anomaly map changes; all but `literal` only where packs differ in what disease they know."""
READ_FAMILIARITY: frozenset[RuleName] = frozenset({"weighted"})
"""Rules that ask which pack's training scans a scan looks like."""


def only(name: str, rule: MergeRule) -> MergeRule:
    """The rule applied to the pack of that name alone, as if there were no other."""

    def alone(predictions: Sequence[PackPrediction], context: ScanContext) -> Decision:
        index = next(i for i, prediction in enumerate(predictions) if prediction.profile.name == name)
        decision = rule(predictions[index : index + 1], context)
        return decision._replace(pack=torch.where(decision.pack < 0, decision.pack, index))

    return alone


def confidence_of(prediction: PackPrediction, context: ScanContext) -> Tensor:
    """x with P relative to the pack's best covered part, and e = 0 for disease-aware packs."""
    return weighted_probability(
        prediction, context.coverage(prediction.profile), context.disease(prediction.profile)
    )


def weighted_probability(
    prediction: PackPrediction, coverage: Tensor | float, disease: Tensor | float
) -> Tensor:
    """x = M y, kept away from 0 and 1."""
    return (0.5 * (1 + coverage * (1 - disease)) * prediction.score).clamp(1e-6, 1 - 1e-6)


def entropy(x: Tensor) -> Tensor:
    """-x log x, which is largest at 1/e."""
    return -x * x.log()


def aware_organs(predictions: Sequence[PackPrediction]) -> Tensor:
    """Ids of the organs that any disease-aware pack knows."""
    ids = [prediction.organ_ids[1:] for prediction in predictions if prediction.profile.anomaly_aware]
    return torch.cat(ids).unique() if ids else predictions[0].organ_ids[:0]


def reliable(prediction: PackPrediction, organ: Tensor, context: ScanContext, shared: Tensor) -> Tensor:
    """r p of one pack for the organ of each voxel."""
    distrust = context.disease(prediction.profile) * torch.isin(organ, shared).float()
    return context.coverage(prediction.profile) * (1 - distrust) * prediction.probability_of(organ)
