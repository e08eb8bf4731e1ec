"""What merge rules have in common: who is asked about an organ, and how the winner of a voxel is chosen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

from continual_segment.segmentation.context import ScanContext
from continual_segment.segmentation.predictions import Decision, PackPrediction

MergeRule = Callable[[Sequence[PackPrediction], ScanContext], Decision]
LEAST_COVERED = 0.5
"""theta of the rule `threshold`, and the least coverage of a voter in `consensus` and `weighted`."""


def sum_of(values: Sequence[Tensor]) -> Tensor:
    """Added in their order: so rounding does not depend on how many voxels are asked about at once."""
    return reduce(torch.add, values)


def largest_of(values: Sequence[Tensor]) -> Tensor:
    """The maximum at every voxel."""
    return reduce(torch.maximum, values)


def packs_that_share(predictions: Sequence[PackPrediction]) -> list[list[PackPrediction]]:
    """Per prediction, those of the packs that know any of its organs: itself and others, in their order."""
    organs = [prediction.organ_ids[1:].tolist() for prediction in predictions]
    knowing: dict[int, set[int]] = defaultdict(set)
    for index, ids in enumerate(organs):
        for organ in ids:
            knowing[organ].add(index)
    found = [sorted({index for organ in ids for index in knowing[organ]}) for ids in organs]
    return [[predictions[index] for index in indices] for indices in found]


def choose(
    predictions: Sequence[PackPrediction],
    keys: Sequence[Tensor],
    confidence: Sequence[Tensor] | None = None,
    scores: Sequence[Tensor] | None = None,
    allowed: Sequence[Tensor] | None = None,
) -> Decision:
    """The prediction with the largest key; ties go to the larger `confidence`, the lower organ id, the first.

    `confidence` defaults to the keys, `scores` to the predicted probabilities, and `allowed`, where each
    prediction may win, to the voxels where it predicts an organ.
    """
    confidence = confidence or keys
    scores = scores or [prediction.score for prediction in predictions]
    allowed = allowed or [prediction.predicts_organ for prediction in predictions]
    organ = torch.where(allowed[0], predictions[0].organ, 0)
    score = torch.where(allowed[0], scores[0], 0)
    pack = torch.where(allowed[0], 0, -1).to(torch.int16)
    key, best = keys[0], confidence[0]  # without meaning where no organ is allowed
    for index, prediction in enumerate(predictions[1:], start=1):
        may, new_key, new_best = allowed[index], keys[index], confidence[index]
        wins_tie = (new_best > best) | ((new_best == best) & (prediction.organ < organ))
        wins = may & ((organ == 0) | (new_key > key) | ((new_key == key) & wins_tie))
        organ = torch.where(wins, prediction.organ, organ)
        score = torch.where(wins, scores[index], score)
        key, best = torch.where(wins, new_key, key), torch.where(wins, new_best, best)
        pack = torch.where(wins, index, pack)
    return Decision(organ, score, pack)
