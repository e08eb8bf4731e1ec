"""Packs ask only those that share an organ: the same decision, bit for bit, as asking all of them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from continual_segment.organs import BODY_PARTS, LAST_HASHED_ID
from continual_segment.segmentation import weighted
from continual_segment.segmentation.context import ScanContext
from continual_segment.segmentation.merge import (
    LEAST_COVERED,
    RULES,
    aware_organs,
    choose,
    packs_that_share,
    reliable,
    voting_weights,
)
from continual_segment.segmentation.nested import Nesting, merge_predictions
from continual_segment.segmentation.predictions import PackPrediction, PackProfile

SHAPE = (4, 3, 8)
ORGANS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 1000, LAST_HASHED_ID)
NESTING = Nesting({2: 1, 3: 1, 4: 3, 6: 5, 1000: LAST_HASHED_ID})
EXACT = (0.0, 0.25, 0.5, 1.0)
"""Coverages whose sums have no rounding, whatever their order."""


def all_voters_consensus(predictions, context):
    means, allowed = [], []
    for candidate in predictions:
        votes = voting_weights(predictions, candidate.organ, context)
        weighted = list(zip(votes, predictions, strict=True))
        organ = sum(weight * prediction.probability_of(candidate.organ) for weight, prediction in weighted)
        background = sum(weight * prediction.background for weight, prediction in weighted)
        total, best = sum(votes), torch.stack(votes).amax(dim=0)
        means.append(organ / total.clamp_min(1e-6))
        allowed.append(candidate.eligible & (organ > background) & (best >= LEAST_COVERED))
    factors = suppression_by_pairs(predictions, means, allowed)
    keys = [mean * factor for mean, factor in zip(means, factors, strict=True)]
    return choose(predictions, keys, scores=means, allowed=allowed)


def suppression_by_pairs(predictions, means, allowed):
    factors = [torch.ones_like(mean) for mean in means]
    for aware, mean, may in zip(predictions, means, allowed, strict=True):
        for index, other in enumerate(predictions):
            if aware.profile.anomaly_aware and not other.profile.anomaly_aware:
                rivals = may & (other.organ != aware.organ)
                factors[index] = torch.minimum(factors[index], 1 - mean * rivals)
    return factors


def all_voters_background_aware(predictions, context):
    shared = aware_organs(predictions)
    background = torch.ones_like(predictions[0].score)
    for prediction in predictions:
        coverage, disease = context.coverage(prediction.profile), context.disease(prediction.profile)
        distrusted = disease * prediction.probability_of_any(shared) if len(shared) else 0.0
        claimed = coverage * (1 - prediction.background - distrusted)
        background = background * (1 - claimed * prediction.has_vote).clamp(0, 1)
    own = [reliable(prediction, prediction.organ, context, shared) for prediction in predictions]
    evidence = []
    for candidate in predictions:
        missed = torch.ones_like(background)
        for prediction in predictions:
            missed = missed * (1 - reliable(prediction, candidate.organ, context, shared))
        evidence.append(1 - missed)
    allowed = [each.eligible & (s > background) for each, s in zip(predictions, evidence, strict=True)]
    return choose(predictions, evidence, own, evidence, allowed)


def all_voters_ensemble(predictions, context):
    means = []
    for candidate in predictions:
        owners = sum(prediction.knows(candidate.organ).float() for prediction in predictions)
        probabilities = [prediction.probability_of(candidate.organ) for prediction in predictions]
        means.append(sum(probabilities) / owners)
    return choose(predictions, means, scores=means)


def all_voters_weighted(predictions, context):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weighted, "packs_that_share", lambda packs: [list(packs)] * len(packs))
        return weighted.WeightedVote()(predictions, context)


ASKING_ALL = {
    "weighted": all_voters_weighted,
    "consensus": all_voters_consensus,
    "background-aware": all_voters_background_aware,
    "ensemble": all_voters_ensemble,
}


def made_up_pack(random, index, organs, coverages=None):
    """Probabilities that are sure of one organ at many voxels; some packs know their coverage and disease."""
    count = random.integers(1, min(3, len(organs)) + 1)
    ids = [0, *random.choice(organs, count, replace=False).tolist()]
    logits = torch.from_numpy(random.normal(0, 3, (len(ids), *SHAPE)).astype(np.float32))
    values = random.choice(coverages, len(BODY_PARTS)) if coverages else random.uniform(0, 1, len(BODY_PARTS))
    coverage = dict(zip(BODY_PARTS, values.tolist(), strict=True)) if random.random() < 0.7 else {}
    profile = PackProfile(f"pack{index}", f"{index:03}", coverage, anomaly_aware=random.random() < 0.4)
    return PackPrediction(profile, torch.tensor(ids, dtype=torch.int32), logits.softmax(dim=0))


def made_up_context(random):
    part = torch.from_numpy(random.integers(-1, len(BODY_PARTS), (SHAPE[0], 1, 1)))
    anomaly = torch.from_numpy(random.uniform(0, 1, SHAPE).astype(np.float32))
    return ScanContext(part if random.random() < 0.8 else None, anomaly if random.random() < 0.8 else None)


def assert_the_same_decision(rule, packs, context, nesting):
    found = merge_predictions(RULES[rule], packs, context, nesting)
    expected = merge_predictions(ASKING_ALL[rule], packs, context, nesting)
    for new, old in zip(found, expected, strict=True):
        assert torch.equal(new, old)


@pytest.mark.parametrize("rule", ASKING_ALL)
@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), packs=st.integers(1, 12), nested=st.booleans())
def test_asking_only_packs_that_share_an_organ_changes_no_bit(rule, seed, packs, nested):
    random = np.random.default_rng(seed)
    predictions = [made_up_pack(random, index, ORGANS) for index in range(packs)]
    assert_the_same_decision(rule, predictions, made_up_context(random), NESTING if nested else None)


@pytest.mark.parametrize("rule", ["consensus", "background-aware"])
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), nested=st.booleans())
def test_of_forty_packs_too(rule, seed, nested):
    """Sums of 16 packs and more are rounded in another order; these coverages have nothing to be rounded."""
    random = np.random.default_rng(seed)
    predictions = [made_up_pack(random, index, ORGANS, EXACT) for index in range(40)]
    assert_the_same_decision(rule, predictions, made_up_context(random), NESTING if nested else None)


def test_packs_without_a_common_organ_are_not_asked():
    random = np.random.default_rng(0)
    packs = [made_up_pack(random, index, [100 + index, 200 + index, 300 + index]) for index in range(20)]
    assert packs_that_share(packs) == [[each] for each in packs]
    twin = made_up_pack(random, 20, packs[3].organ_ids[1:2].tolist())
    assert packs_that_share([*packs, twin])[3] == [packs[3], twin]


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), packs=st.integers(1, 20), nested=st.booleans())
def test_a_voxel_is_decided_alike_whatever_others_are_asked_about(rule, seed, packs, nested):
    random = np.random.default_rng(seed)
    predictions = [made_up_pack(random, index, ORGANS) for index in range(packs)]
    context, nesting = made_up_context(random), NESTING if nested else None
    chosen = np.sort(random.choice(np.prod(SHAPE), 5, replace=False))
    places = [torch.from_numpy(at) for at in np.unravel_index(chosen, SHAPE)]
    whole = merge_predictions(RULES[rule], predictions, context, nesting)
    few = [prediction.at_voxels(*places) for prediction in predictions]
    part = merge_predictions(RULES[rule], few, context.at_voxels(*places), nesting)
    for all_voxels, some in zip(whole, part, strict=True):
        assert torch.equal(all_voxels[*places], some.flatten())
