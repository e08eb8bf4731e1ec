"""PLOP: distilled pooled features, and pseudo-labels of old organs (Douillard et al., CVPR 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from continual_segment.errors import ConfigError
from continual_segment.lab.baselines.classes import StepClasses
from continual_segment.lab.baselines.distillation_pass import DistillationPass, forward_both_tapped
from continual_segment.lab.baselines.marginal import NewLogits, old_logits
from continual_segment.lab.baselines.pooled import pod_distance
from continual_segment.lab.baselines.pseudo_labels import (
    Completed,
    DoubtHistogram,
    EntropyScale,
    complete,
    completed_loss,
)
from continual_segment.lab.baselines.step import Learner, LearningStep, NetworkMethod
from continual_segment.training.loss import CustomLoss, over_outputs, shrink_labels


@dataclass(frozen=True)
class PLOP(NetworkMethod):
    """Learning without Forgetting by Pooled Outputs: local POD on features, entropy-gated pseudo-labels.

    Features are those before the last activation of every encoder stage and decoder block, and the finest
    logits. No output distillation and no unbiased cross-entropy, as in the original.
    """

    pod_factor: float = 0.001
    """Of features: a tenth of the original, because three-dimensional sums are about ten times larger."""
    logit_factor: float = 5e-5
    """Of logits; the paper names none, so in the original's proportion to that of features."""
    class_ratio: bool = True
    """Weight distances by the root of all classes per labelled organ, in steps that have a new class."""
    scales: tuple[int, ...] = (1, 2, 4)
    """Parts into which every axis is divided."""
    logit_background: NewLogits = "joined"
    """How logits of new classes join the old background: as probabilities, or added as in the code."""
    least_threshold: float = 0.001
    """Entropy below which a vote is always accepted."""
    entropy: EntropyScale = "normalised"
    """normalised to 0..1, or scaled and its median searched as in the published code, which accepts nearly
    every vote when there are many classes."""
    mean_over: Literal["all", "valid"] = "all"
    """Voxels of the cross-entropy's mean: all, ignored ones counting 0, as in the code; or the valid ones."""
    old_in_dice: bool = True
    """Add a Dice of the old organs that are filled in. The original has no Dice at all; that of the dataset's
    own organs is nnU-Net's, as in every other method."""
    threshold_batches: int = 100
    """Batches from which the thresholds are computed; never more than a quarter of the training."""

    def begin(self, step: LearningStep) -> Learner:
        student, classes, loss_config = step.grown_network(), step.classes, step.train.loss
        if isinstance(loss_config, CustomLoss):
            raise ConfigError(
                "PLOP leaves voxels out of its own cross-entropy and Dice, so it cannot learn with another "
                "loss. Leave plop out of the methods, or the loss at its default."
            )
        thresholds = self.thresholds(step)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            passed = forward_both_tapped(student, step.previous, images)
            completed = complete(labels, passed.taught[0], classes, thresholds)
            learned = over_outputs(
                passed.outputs,
                lambda output: completed_loss(
                    output,
                    shrunk(completed, output),
                    classes,
                    loss_config.dice_over,
                    loss_config.balance,
                    self.mean_over,
                    self.old_in_dice,
                ),
                loss_config.deep_supervision,
            )
            return learned + self.pod(passed, classes)

        return Learner(student, classes.organs, loss)

    @torch.no_grad()
    def thresholds(self, step: LearningStep) -> Tensor:
        """Per old class, the teacher's median entropy on background."""
        found = DoubtHistogram(step.classes, step.train.device, self.entropy)
        batches = step.training_batches()
        for number in range(min(self.threshold_batches, max(1, len(batches) // 4))):
            images, labels = batches[number]
            found.add(step.previous(images.to(step.train.device)), labels.to(step.train.device))
        return found.thresholds(self.least_threshold)

    def pod(self, passed: DistillationPass, classes: StepClasses) -> Tensor:
        """Mean over layers of the weighted distances."""
        distances = [self.pod_factor * pod_distance(*pair, self.scales) for pair in passed.inner]
        old = old_logits(passed.outputs[0], classes, self.logit_background)
        distances.append(self.logit_factor * pod_distance(old, passed.taught[0], self.scales))
        ratio = classes.class_ratio if self.class_ratio else 1.0
        return ratio * torch.stack(distances).mean()


def shrunk(completed: Completed, output: Tensor) -> Completed:
    """The same targets on the coarser grid of an output."""
    size = output.shape[2:]
    return Completed(
        shrink_labels(completed.labels, size), shrink_labels(completed.targets, size), completed.accepted
    )
