"""Pseudo-labels: the teacher replaces background labels by old organs where its entropy is low (PLOP)."""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Literal

import torch
from torch import Tensor

from continual_segment.lab.baselines.classes import StepClasses
from continual_segment.lab.baselines.marginal import joined
from continual_segment.training.loss import (
    DiceClasses,
    class_sums,
    precise,
    weighted_dice_and_cross_entropy,
)

IGNORE = -1
BINS = 100
TINY = 1e-12
EntropyScale = Literal["normalised", "code"]


def teacher_votes(teacher: Tensor, classes: StepClasses) -> tuple[Tensor, Tensor]:
    """Per voxel the teacher's class and its entropy, 0 to 1; labelled organs count as background.

    A dataset labels all of an organ it labels at all, so a vote for one on background is known to be wrong.
    The class is a row of `background_of_labels`: 0 for background, i for the i-th old organ.
    """
    log_probability = joined(teacher, classes.background_of_teacher, classes.old_only).log_softmax(1)
    kinds = log_probability.shape[1]
    entropy = -(log_probability.exp() * log_probability).sum(1)
    doubt = entropy / log(kinds) if kinds > 1 else torch.zeros_like(entropy)
    return log_probability.max(1).indices, doubt.clamp(0, 1)  # several times as fast as argmax on a CPU


class DoubtHistogram:
    """Histogram of the teacher's entropy per class on background voxels, over many patches."""

    def __init__(self, classes: StepClasses, device: str = "cpu") -> None:
        self.classes = classes
        self.counts = torch.zeros(len(classes.background_of_labels), BINS, device=device)

    def add(self, teacher: Tensor, labels: Tensor) -> None:
        votes, doubt = teacher_votes(teacher, self.classes)
        at = labels == 0
        cells = votes[at] * BINS + (doubt[at] * BINS).long().clamp_max(BINS - 1)
        self.counts += torch.bincount(cells, minlength=self.counts.numel()).reshape(self.counts.shape)

    def medians(self) -> Tensor:
        """Per class, linear within a bin; 0 for a class that did not occur."""
        half = self.counts.sum(1, keepdim=True) / 2
        reached = self.counts.cumsum(1)
        place = (reached < half).sum(1, keepdim=True).clamp_max(BINS - 1)
        inside = self.counts.gather(1, place)
        below = reached.gather(1, place) - inside
        share = torch.where(inside > 0, (half - below) / inside.clamp_min(1), 0.0)
        return torch.where(half > 0, (place + share) / BINS, 0.0)[:, 0]


def least_threshold(tau: float, classes: StepClasses, scale: EntropyScale) -> float:
    """tau in units of the normalised entropy.

    The published code divides the entropy once more by the number of classes and by the logarithm of the
    new number, so its 0.001 is half of the whole range with 104 classes.
    """
    kinds = len(classes.background_of_labels)
    return tau if scale == "normalised" else tau * kinds * log(classes.channels)


@dataclass(frozen=True, eq=False)
class Completed:
    """Labels as channels, old organs filled in, IGNORE where the entropy is too high."""

    targets: Tensor
    accepted: Tensor
    """Per sample, the share of background voxels whose vote was accepted."""


def complete(labels: Tensor, teacher: Tensor, classes: StepClasses, thresholds: Tensor) -> Completed:
    """Labels of the dataset completed by the teacher."""
    votes, doubt = teacher_votes(teacher, classes)
    background = labels == 0
    sure = background & (doubt < thresholds.to(doubt.dtype)[votes])
    voted = torch.tensor(classes.background_of_labels, device=labels.device)[votes]
    targets = torch.where(background, torch.where(sure, voted, IGNORE), classes.as_channels(labels))
    accepted = sure.flatten(1).sum(1) / (background.flatten(1).sum(1) + 1e-6)
    return Completed(targets, accepted)


def completed_loss(
    logits: Tensor,
    completed: Completed,
    classes: StepClasses,
    dice_over: DiceClasses = "all",
    balance: float = 0.0,
    mean_over: Literal["all", "valid"] = "all",
    old_in_dice: bool = True,
) -> Tensor:
    """nnU-Net's loss without the ignored voxels, each sample weighted by what was accepted of it.

    Dice goes over the dataset's organs and, with `old_in_dice`, those filled in. The cross-entropy is a
    mean over all voxels, ignored ones counting 0, as in the published code; or over the valid ones.
    """
    logits, targets = precise(logits), completed.targets.flatten(1)
    valid = (targets != IGNORE).to(logits.dtype)
    labels = targets.clamp_min(0)
    true = class_sums(labels, valid, logits.shape[1])
    counted = true > 0
    if dice_over == "all":
        counted[:, list(classes.labelled)] = True
    counted[:, [0] if old_in_dice else list(classes.background_of_labels)] = False
    weight = valid
    if balance:
        weight = weight * true.clamp_min(1).pow(-balance).gather(1, labels)
        weight = weight * (valid.sum(1) / weight.sum(1).clamp_min(TINY))[:, None]
    voxels = valid.sum(1).clamp_min(1) if mean_over == "valid" else valid.shape[1]
    share = completed.accepted.to(logits.dtype) / len(logits)
    return weighted_dice_and_cross_entropy(
        logits,
        labels,
        weight * (share / voxels)[:, None],
        counted * (share / counted.sum(1).clamp_min(1))[:, None],
        valid,
    )
