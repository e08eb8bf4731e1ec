"""Plain fine-tuning of one network with one growing head: the control that forgets."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from continual_segment.lab.baselines.step import Learner, LearningStep, NetworkMethod


@dataclass(frozen=True)
class FineTuning(NetworkMethod):
    """nnU-Net's loss over all classes; background means background, whatever organ of an earlier dataset it
    contains."""

    def begin(self, step: LearningStep) -> Learner:
        student, loss = step.grown_network(), step.train.loss.build()

        def loss_of(images: Tensor, labels: Tensor) -> Tensor:
            outputs = student.decoder.forward_supervised(student.encoder(images))
            return loss(outputs, step.classes.as_channels(labels))

        return Learner(student, step.classes.organs, loss_of)
