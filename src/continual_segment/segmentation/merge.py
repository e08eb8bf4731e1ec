"""Merge the packs' answers into one label map.

A decoder calls everything outside its own organs background, so a voxel is background only where all
packs say so. Where several name an organ, the surest wins; between equals the lower organ id, so that
the order of the packs decides nothing.

In:  per pack, its winning organ id (0: background) and that organ's probability, (z, y, x)
Out: organ ids and scores, (z, y, x)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Answer(NamedTuple):
    """What one pack, or all of them together, say about a slab."""

    organ: Tensor
    """Organ ids, int32; 0 is background."""
    score: Tensor
    """Probability of that organ, 0 on background."""


Merge = Callable[[Sequence[Answer]], Answer]


def highest_probability(answers: Sequence[Answer]) -> Answer:
    """The organ with the highest probability among the packs that see one."""
    organ, score = answers[0]
    for other_organ, other_score in answers[1:]:
        tie = (other_score == score) & (other_organ < organ)
        wins = (other_organ > 0) & ((organ == 0) | (other_score > score) | tie)
        organ = torch.where(wins, other_organ, organ)
        score = torch.where(wins, other_score, score)
    return Answer(organ, score)


def only(pack: int) -> Merge:
    """The rule that hears one pack alone."""
    return lambda answers: answers[pack]
