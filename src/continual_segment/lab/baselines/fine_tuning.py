"""Plain fine-tuning of one network with one growing head: the control that forgets."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from continual_segment.lab.baselines.step import Learner, LearningStep, NetworkMethod
from continual_segment.training import supervised_loss


@dataclass(frozen=True)
class FineTuning(NetworkMethod):
    """nnU-Net's loss over all classes; background means background, whatever organ of an earlier dataset it
    contains."""

    def begin(self, step: LearningStep) -> Learner:
        student, train = step.grown_network(), step.train

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            outputs = student.decoder.forward_supervised(student.encoder(images))
            return supervised_loss(outputs, step.classes.as_channels(labels), train.dice_over, train.balance)

        return Learner(student, step.classes.organs, loss)
