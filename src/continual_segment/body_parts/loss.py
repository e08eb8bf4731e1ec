"""Losses on scores from the order and distance of slices; no label is needed.

Scores (scan, slice) belong to slices at equal distances, from below. Heights are in mm.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

SCORE_PER_MM = 0.01
"""Sets the scale of scores: a metre of body is ten."""
LINEAR_FROM = 0.3
"""Errors of scores above this, 3 cm, count linearly."""


def order_loss(scores: Tensor) -> Tensor:
    """Higher slices score higher (Yan et al. 2018); log 2 for constant scores, 0 in the limit."""
    return functional.softplus(-scores.diff(dim=1)).mean()


def distance_loss(scores: Tensor) -> Tensor:
    """Equal distances are equal differences (Yan et al. 2018); 0 for any linear ramp."""
    bend = scores.diff(dim=1, n=2)
    return functional.smooth_l1_loss(bend, torch.zeros_like(bend))


def offset_loss(scores: Tensor, heights_mm: Tensor, score_per_mm: float = SCORE_PER_MM) -> Tensor:
    """Order and distance at once, of every pair: scores differ as heights do; 0 for a ramp of that slope.

    The scale is fixed, which order alone lets grow without end. Patients are not equally tall, so far apart
    the loss is linear.
    """
    rise, wanted = pairs(scores), score_per_mm * pairs(heights_mm)
    return functional.smooth_l1_loss(rise, wanted, beta=LINEAR_FROM)


def sigmoid_loss(scores: Tensor, heights_mm: Tensor, score_per_mm: float = SCORE_PER_MM) -> Tensor:
    """The same as DKFZ's regressor has it: as sure of the order as the gap in mm is wide. Bounded."""
    wanted = torch.sigmoid(score_per_mm * pairs(heights_mm))
    return (torch.sigmoid(pairs(scores)) - wanted).square().mean()


def anchor_loss(scores: Tensor, usual_mm: Tensor, score_per_mm: float = SCORE_PER_MM) -> Tensor:
    """Scores are the heights in the usual body, where those are known (not NaN); 0 where none is."""
    known = ~usual_mm.isnan()
    if not known.any():
        return scores.sum() * 0
    return functional.smooth_l1_loss(scores[known], score_per_mm * usual_mm[known], beta=LINEAR_FROM)


def pairs(values: Tensor) -> Tensor:
    """Differences (scan, pair) of every slice and each above it."""
    first, second = torch.triu_indices(values.shape[1], values.shape[1], offset=1)
    return values[:, second] - values[:, first]
