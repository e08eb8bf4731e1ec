"""Rules that merge the packs' answers into one label map.

A decoder calls everything outside its own organs background and has never seen the rest of the body. So packs
contradict each other, and one may see its organ where it cannot be. A rule decides each voxel from what the
packs say, how well each covers this part of the body, and whether the tissue is diseased. What the published
equations cannot do, and why there are others, stands in docs/paper_to_code.md.

Names in the formulas: y, probability of the organ a pack names; P, its coverage of the body part (1 where
that is unknown); e, probability of disease; M = (1 + P (1 - e)) / 2; x = M y. Between equals the larger x
wins, then the lower organ id, then the pack's fingerprint, so that the order of the packs decides nothing.

In:  per pack an Answer, and Surroundings
Out: Decision
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from continual_segment.segmentation.answers import Answer, Decision, Surroundings

Merge = Callable[[Sequence[Answer], Surroundings], Decision]
MergeRule = Literal[
    "probability",
    "ensemble",
    "literal",
    "restated",
    "monotone",
    "threshold",
    "background-aware",
    "consensus",
]
LEAST_COVERED = 0.5
"""theta of the rule `threshold`."""
LEFT_TO_OTHERS = 0.25
"""Of a vote by a pack that has seen no disease, where one that has votes too, in the rule `consensus`. With 0
healthy organs lose by a weak disease-aware pack, with more than a third diseased ones: docs/results.md."""


def highest_probability(answers: Sequence[Answer], around: Surroundings) -> Decision:
    """The largest y; neither body part nor disease is asked."""
    return choose(answers, [answer.score for answer in answers])


def ensemble(answers: Sequence[Answer], around: Surroundings) -> Decision:
    """The largest mean probability over all packs that know the organ; the paper's control."""
    means = []
    for candidate in answers:
        owners = torch.stack([answer.knows(candidate.organ) for answer in answers]).sum(dim=0)
        total = torch.stack([answer.probability_of(candidate.organ) for answer in answers]).sum(dim=0)
        means.append(total / owners)
    return choose(answers, means, scores=means)


def literal(answers: Sequence[Answer], around: Surroundings) -> Decision:
    """The least -x log x: the published equations, P in sum 1 over the body and e the same for all packs."""
    sure = [trusted(answer, around.per_slice(answer.voice.shares), around.disease()) for answer in answers]
    return choose(answers, [-entropy(x) for x in sure], sure)


def restated(answers: Sequence[Answer], around: Surroundings) -> Decision:
    """The same, but P is 1 in the best covered part, and a pack that has seen the disease keeps its M."""
    sure = [trust(answer, around) for answer in answers]
    return choose(answers, [-entropy(x) for x in sure], sure)


def monotone(answers: Sequence[Answer], around: Surroundings) -> Decision:
    """The largest x: what less entropy means, but an answer never gains by being less sure."""
    sure = [trust(answer, around) for answer in answers]
    return choose(answers, sure, sure)


def threshold(answers: Sequence[Answer], around: Surroundings) -> Decision:
    """`restated` without answers of (1 + P) y / 2 up to a half, which is all of a pack out of its region."""
    sure = [trust(answer, around) for answer in answers]
    kept = [
        answer.names_organ & (trusted(answer, around.per_slice(answer.voice.reach), 0.0) > LEAST_COVERED)
        for answer in answers
    ]
    return choose(answers, [-entropy(x) for x in sure], sure, allowed=kept)


def background_aware(answers: Sequence[Answer], around: Surroundings) -> Decision:
    """Coverage as reliability, and background competes.

    A pack's probability of organ c counts r p, r = P (1 - e o): o is 1 where another, disease-aware pack
    knows c too, so that no organ is lost for want of one. Background has the product over packs of what
    is left, an organ 1 - the product of (1 - r p) over the packs that know it; the largest wins.
    """
    shared = aware_organs(answers)
    background = torch.ones_like(answers[0].weight)
    for answer in answers:
        reach, disease = around.per_slice(answer.voice.reach), around.disease(answer.voice)
        distrusted = disease * answer.mass_of(shared) if len(shared) else 0.0
        claimed = reach * (1 - answer.background - distrusted)
        background = background * (1 - claimed * answer.heard).clamp(0, 1)
    own = [reliable(answer, answer.organ, around, shared) for answer in answers]
    evidence = []
    for candidate in answers:
        missed = torch.ones_like(background)
        for answer in answers:
            missed = missed * (1 - reliable(answer, candidate.organ, around, shared))
        evidence.append(1 - missed)
    allowed = [answer.eligible & (s > background) for answer, s in zip(answers, evidence, strict=True)]
    return choose(answers, evidence, own, evidence, allowed)


def consensus(answers: Sequence[Answer], around: Surroundings) -> Decision:
    """All packs that know an organ vote on it, as far as they cover this part; against it stands background.

    The organ has the mean of p over its voters, weighted with P. It is seen where that is more than their
    mean of background, and one of them is trusted to a half. A pack that knows parts of the organ alone votes
    only where it sees one.

    A disease-aware pack has seen the healthy organ and the diseased; others go wrong far beyond a tumour,
    where no map of disease warns of it. So where it votes, the others have a quarter of their votes. And
    where it sees its organ, they have seen another there only as surely as it leaves room for.
    """
    means, allowed = [], []
    for candidate in answers:
        votes = voting_weights(answers, candidate.organ, around)
        said = list(zip(answers, votes, strict=True))
        seen = sum(weight * answer.probability_of(candidate.organ) for answer, weight in said)
        unseen = sum(weight * answer.background for answer, weight in said)
        total, best = torch.stack(votes).sum(dim=0), torch.stack(votes).amax(dim=0)
        means.append(seen / total.clamp_min(1e-6))
        allowed.append(candidate.eligible & (seen > unseen) & (best >= LEAST_COVERED))
    keys = [mean * left for mean, left in zip(means, room(answers, means, allowed), strict=True)]
    return choose(answers, keys, scores=means, allowed=allowed)


def voting_weights(answers: Sequence[Answer], organ: Tensor, around: Surroundings) -> list[Tensor]:
    """Of each pack on the organ of every voxel: its coverage; of the others, what the disease-aware leave."""
    weights = [around.per_slice(answer.voice.reach) * answer.votes_on(organ).float() for answer in answers]
    led = torch.zeros_like(weights[0])
    for answer, weight in zip(answers, weights, strict=True):
        if answer.voice.anomaly_aware:
            led = torch.maximum(led, weight)
    return [
        weight if answer.voice.anomaly_aware else weight * (1 - (1 - LEFT_TO_OTHERS) * led)
        for answer, weight in zip(answers, weights, strict=True)
    ]


def room(answers: Sequence[Answer], means: Sequence[Tensor], allowed: Sequence[Tensor]) -> list[Tensor]:
    """What disease-aware packs leave of each answer: all, or 1 - p where they see another organ with p."""
    left = [torch.ones_like(mean) for mean in means]
    for aware, mean, may in zip(answers, means, allowed, strict=True):
        if not aware.voice.anomaly_aware:
            continue
        for index, other in enumerate(answers):
            if not other.voice.anomaly_aware:
                rivals = may & (other.organ != aware.organ)
                left[index] = torch.minimum(left[index], 1 - mean * rivals)
    return left


RULES: dict[MergeRule, Merge] = {
    "probability": highest_probability,
    "ensemble": ensemble,
    "literal": literal,
    "restated": restated,
    "monotone": monotone,
    "threshold": threshold,
    "background-aware": background_aware,
    "consensus": consensus,
}


def only(name: str, rule: Merge) -> Merge:
    """The rule with the pack of that name alone, as if there were no other."""

    def alone(answers: Sequence[Answer], around: Surroundings) -> Decision:
        index = next(i for i, answer in enumerate(answers) if answer.voice.name == name)
        decision = rule(answers[index : index + 1], around)
        return decision._replace(pack=torch.where(decision.pack < 0, decision.pack, index))

    return alone


def choose(
    answers: Sequence[Answer],
    keys: Sequence[Tensor],
    sure: Sequence[Tensor] | None = None,
    scores: Sequence[Tensor] | None = None,
    allowed: Sequence[Tensor] | None = None,
) -> Decision:
    """The answer with the largest key; between equals the surer, then the lower organ id, then the first.

    `allowed` says where each answer may win; unless told, where it names an organ.
    """
    sure = sure or keys
    organ, pack = torch.zeros_like(answers[0].organ), torch.full_like(answers[0].organ, -1, dtype=torch.int16)
    score, key, best = (torch.zeros_like(answers[0].score) for _ in range(3))
    for index, answer in enumerate(answers):
        may = allowed[index] if allowed else answer.names_organ
        new_key, new_sure = keys[index], sure[index]
        surer = (new_sure > best) | ((new_sure == best) & (answer.organ < organ))
        wins = may & ((organ == 0) | (new_key > key) | ((new_key == key) & surer))
        organ = torch.where(wins, answer.organ, organ)
        score = torch.where(wins, scores[index] if scores else answer.score, score)
        key, best = torch.where(wins, new_key, key), torch.where(wins, new_sure, best)
        pack = torch.where(wins, index, pack)
    return Decision(organ, score, pack)


def trust(answer: Answer, around: Surroundings) -> Tensor:
    """x with P relative to the pack's best covered part and e for packs that have not seen the disease."""
    return trusted(answer, around.per_slice(answer.voice.reach), around.disease(answer.voice))


def trusted(answer: Answer, coverage: Tensor | float, disease: Tensor | float) -> Tensor:
    """x = M y, kept off 0 and 1."""
    return (0.5 * (1 + coverage * (1 - disease)) * answer.score).clamp(1e-6, 1 - 1e-6)


def entropy(x: Tensor) -> Tensor:
    """-x log x, which is largest at 1/e."""
    return -x * x.log()


def aware_organs(answers: Sequence[Answer]) -> Tensor:
    """Ids of the organs that some disease-aware pack knows."""
    ids = [answer.organ_ids[1:] for answer in answers if answer.voice.anomaly_aware]
    return torch.cat(ids).unique() if ids else answers[0].organ_ids[:0]


def reliable(answer: Answer, organ: Tensor, around: Surroundings, shared: Tensor) -> Tensor:
    """r p of the organ of each voxel by one pack."""
    distrust = around.disease(answer.voice) * torch.isin(organ, shared).float()
    return around.per_slice(answer.voice.reach) * (1 - distrust) * answer.probability_of(organ)
