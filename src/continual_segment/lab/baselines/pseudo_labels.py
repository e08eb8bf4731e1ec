"""Pseudo-labels: the teacher replaces background labels by old organs where its entropy is low (PLOP)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log
from typing import Literal

import torch
from torch import Tensor

from continual_segment.lab.baselines.classes import StepClasses
from continual_segment.lab.baselines.marginal import joined, labelled_logits
from continual_segment.training.loss import (
    DiceClasses,
    class_sums,
    dice_alone,
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
    """Histogram of the teacher's entropy per class on background voxels, over many patches.

    The published code divides the entropy once more by the number of classes and by the logarithm of the new
    number. With 104 and 131 classes all of it falls into the first bin, and its median search stops at the
    first bin that holds half of a class's votes: every vote is then accepted.
    """

    def __init__(self, classes: StepClasses, device: str = "cpu", scale: EntropyScale = "normalised") -> None:
        self.classes = classes
        self.scale = scale
        kinds = len(classes.background_of_labels)
        self.unit = 1.0 if scale == "normalised" else 1 / (kinds * log(classes.channels))
        self.counts = torch.zeros(kinds, BINS, device=device)

    def add(self, teacher: Tensor, labels: Tensor) -> None:
        votes, doubt = teacher_votes(teacher, self.classes)
        at = labels == 0
        cells = votes[at] * BINS + (doubt[at] * self.unit * BINS).long().clamp_max(BINS - 1)
        self.counts += torch.bincount(cells, minlength=self.counts.numel()).reshape(self.counts.shape)

    def thresholds(self, least: float) -> Tensor:
        """Per class, in units of the normalised entropy: the median, at least `least` of this scale."""
        medians = self.medians() if self.scale == "normalised" else self.published_medians()
        return medians.clamp_min(least) / self.unit

    def published_medians(self) -> Tensor:
        """As the published code finds them: the sum of what lies below grows by the number of every bin
        instead of its count."""
        found = [published_median(row) if any(row) else 0.0 for row in self.counts.tolist()]
        return torch.tensor(found, device=self.counts.device)

    def medians(self) -> Tensor:
        """Per class, linear within a bin; 0 for a class that did not occur."""
        half = self.counts.sum(1, keepdim=True) / 2
        reached = self.counts.cumsum(1)
        place = (reached < half).sum(1, keepdim=True).clamp_max(BINS - 1)
        inside = self.counts.gather(1, place)
        below = reached.gather(1, place) - inside
        share = torch.where(inside > 0, (half - below) / inside.clamp_min(1), 0.0)
        return torch.where(half > 0, (place + share) / BINS, 0.0)[:, 0]


def published_median(counts: Sequence[float]) -> float:
    half, below = sum(counts) / 2, 0
    for place, count in enumerate(counts):
        if below <= half <= below + count or place == len(counts) - 1:
            break
        below += place
    return (place + (half - below) / count) / len(counts) if count else inf


@dataclass(frozen=True, eq=False)
class Completed:
    """Labels and, as channels (`targets`), the same with old organs filled in, IGNORE where the entropy is
    too high."""

    labels: Tensor
    """The dataset's own."""
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
    return Completed(labels, targets, accepted)


def completed_loss(
    logits: Tensor,
    completed: Completed,
    classes: StepClasses,
    dice_over: DiceClasses = "all",
    balance: float = 0.0,
    mean_over: Literal["all", "valid"] = "all",
    old_in_dice: bool = True,
) -> Tensor:
    """Cross-entropy and Dice on completed labels, and nnU-Net's Dice of the dataset's own organs.

    The first two leave out ignored voxels and weigh each sample by what was accepted of it; with
    `old_in_dice` alone there is a Dice of the organs that are filled in. The cross-entropy is a mean over all
    voxels, ignored ones counting 0, as in the published code; or over the valid ones. The Dice of the
    dataset's own organs, whose labels are certain, is that of every other method.
    """
    own = dice_alone(labelled_logits(logits, classes), completed.labels, dice_over)
    logits, targets = precise(logits), completed.targets.flatten(1)
    valid = (targets != IGNORE).to(logits.dtype)
    labels = targets.clamp_min(0)
    true = class_sums(labels, valid, logits.shape[1])
    counted = torch.zeros_like(true)
    if old_in_dice:
        filled_in = list(classes.old_only)
        counted[:, filled_in] = (true[:, filled_in] > 0).to(true.dtype)
    weight = valid
    if balance:
        weight = weight * true.clamp_min(1).pow(-balance).gather(1, labels)
        weight = weight * (valid.sum(1) / weight.sum(1).clamp_min(TINY))[:, None]
    voxels = valid.sum(1).clamp_min(1) if mean_over == "valid" else valid.shape[1]
    share = completed.accepted.to(logits.dtype) / len(logits)
    return own + weighted_dice_and_cross_entropy(
        logits,
        labels,
        weight * (share / voxels)[:, None],
        counted * (share / counted.sum(1).clamp_min(1))[:, None],
        valid,
    )
