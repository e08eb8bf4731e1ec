"""PLOP: pooled features stay as they were, sure old organs are labels (Douillard et al., CVPR 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from continual_segment.baselines.classes import StepClasses
from continual_segment.baselines.marginal import joined
from continual_segment.baselines.pooled import pod_distance
from continual_segment.baselines.pseudo_labels import (
    Completed,
    DoubtHistogram,
    EntropyScale,
    complete,
    completed_loss,
    least_threshold,
)
from continual_segment.baselines.seen import see
from continual_segment.baselines.step import Keeps, Learner, LearningStep
from continual_segment.networks.segmentation_network import Taps
from continual_segment.training.loss import over_outputs, shrink_labels


@dataclass(frozen=True)
class PLOP:
    """Learning without Forgetting by Pooled Outputs: local POD on features, entropy-gated pseudo-labels.

    Features are those before the last activation of every encoder stage and decoder block, and the finest
    logits. No output distillation and no unbiased cross-entropy, as in the original.
    """

    keeps: ClassVar[Keeps] = "one network"

    pod_factor: float = 0.001
    """Of features: a tenth of the original, because three-dimensional sums are about ten times larger."""
    logit_factor: float = 5e-5
    """Of logits; the paper names none, so in the original's proportion to that of features."""
    scales: tuple[int, ...] = (1, 2, 4)
    """Parts into which every axis is cut."""
    logit_background: Literal["joined", "sum"] = "joined"
    """How logits of new classes go into the old background: as probabilities do, or added as in the code."""
    least_threshold: float = 0.001
    """Entropy below which a vote is always accepted."""
    entropy: EntropyScale = "normalised"
    """normalised to 0..1, or as the published code scales it, which accepts nearly every vote when there are
    many classes."""
    mean_over: Literal["all", "valid"] = "all"
    """Voxels of the cross-entropy's mean: all, ignored ones counting 0, as in the code; or the valid ones."""
    threshold_batches: int = 100
    """Batches behind the thresholds; never more than a quarter of the training."""

    def begin(self, step: LearningStep) -> Learner:
        student, classes, train = step.grown_network(), step.classes, step.train
        thresholds = self.thresholds(step)
        ours, theirs = Taps(student), Taps(step.previous)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            seen = see(student, step.previous, images)
            completed = complete(labels, seen.taught[0], classes, thresholds)
            learned = over_outputs(
                seen.outputs,
                lambda output: completed_loss(
                    output, shrunk(completed, output), classes, train.dice_over, train.balance, self.mean_over
                ),
            )
            return learned + self.pod(ours.take(), theirs.take(), seen.outputs[0], seen.taught[0], classes)

        return Learner(student, classes.organs, loss)

    @torch.no_grad()
    def thresholds(self, step: LearningStep) -> Tensor:
        """Per old class, the median doubt of the teacher on background, at least the least threshold."""
        found = DoubtHistogram(step.classes, step.train.device)
        batches = step.training_batches()
        for number in range(min(self.threshold_batches, max(1, len(batches) // 4))):
            images, labels = batches[number]
            found.add(step.previous(images.to(step.train.device)), labels.to(step.train.device))
        least = least_threshold(self.least_threshold, step.classes, self.entropy)
        return found.medians().clamp_min(least)

    def pod(
        self,
        ours: Sequence[Tensor],
        theirs: Sequence[Tensor],
        logits: Tensor,
        taught: Tensor,
        classes: StepClasses,
    ) -> Tensor:
        """Mean over layers of the weighted distances."""
        old = old_logits(logits, classes, self.logit_background)
        distances = [
            self.pod_factor * pod_distance(a, b, self.scales) for a, b in zip(ours, theirs, strict=True)
        ]
        distances.append(self.logit_factor * pod_distance(old, taught, self.scales))
        return classes.class_ratio * torch.stack(distances).mean()


def old_logits(
    logits: Tensor, classes: StepClasses, background: Literal["joined", "sum"] = "joined"
) -> Tensor:
    """The student's logits in the teacher's channels: new organs go into background."""
    own = (0, *classes.new)
    organs = range(1, classes.before + 1)
    if background == "joined":
        return joined(logits, own, organs)
    return torch.cat((logits[:, list(own)].sum(1, keepdim=True), logits[:, list(organs)]), dim=1)


def shrunk(completed: Completed, output: Tensor) -> Completed:
    """The same targets on the coarser grid of an output."""
    return Completed(shrink_labels(completed.targets, output.shape[2:]), completed.accepted)
