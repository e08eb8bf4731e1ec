"""MiB: the background changes its meaning from step to step (Cermelli et al., CVPR 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from continual_segment.lab.baselines.classes import StepClasses
from continual_segment.lab.baselines.distillation_pass import DistillationPass, forward_both
from continual_segment.lab.baselines.marginal import OverlapForm, distillation, labelled_logits
from continual_segment.lab.baselines.step import Learner, LearningStep, NetworkMethod
from continual_segment.training import TrainConfig
from continual_segment.training.loss import over_outputs


@dataclass(frozen=True)
class MiB(NetworkMethod):
    """Modeling the Background: unbiased cross-entropy and distillation, new classes start as background.

    nnU-Net's Dice is added over the dataset's own organs: over old organs, which the dataset labels as
    background, it would penalise every correct voxel.
    """

    kd_weight: float = 10.0
    """Of distillation."""
    kd_mean_over_classes: bool = True
    """Divide distillation by the number of old classes, as the published code does and the formula does not:
    with 104 classes the weight is 0.1 instead of 10."""
    kd_scales: Literal["all", "finest"] = "all"
    """Outputs that are distilled: those the segmentation loss reads, or the finest alone."""
    overlap_kd: OverlapForm = "merged"
    """How the teacher's probability of organs that are labelled again is used."""
    freeze_encoder: bool = False
    """Train the decoder alone."""

    def begin(self, step: LearningStep) -> Learner:
        student = step.grown_network()
        if self.freeze_encoder:
            student.encoder.freeze()

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            passed = forward_both(student, step.previous, images, one_encoder=self.freeze_encoder)
            return self.loss(passed, labels, step.classes, step.train)

        return Learner(
            student, step.classes.organs, loss, student.decoder if self.freeze_encoder else student
        )

    def loss(
        self, passed: DistillationPass, labels: Tensor, classes: StepClasses, train: TrainConfig
    ) -> Tensor:
        """Segmentation of the labelled organs plus distillation of the old ones."""
        outputs = [labelled_logits(output, classes) for output in passed.outputs]
        supervised = train.loss.build()(outputs, labels)
        pairs = passed.pairs if self.kd_scales == "all" else passed.pairs[:1]
        kept = over_outputs(
            pairs,
            lambda pair: distillation(*pair, classes, self.overlap_kd, self.kd_mean_over_classes),
            train.loss.deep_supervision,
        )
        return supervised + self.kd_weight * kept
