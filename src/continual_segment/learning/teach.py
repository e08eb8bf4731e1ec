"""Train a small decoder with a trained one as its teacher.

The small decoder learns from the labels and from the teacher's probabilities, which show where the border of
an organ is uncertain and what else a voxel could be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from continual_segment.learning.train_decoder import FrozenStep, validation_dice
from continual_segment.model.fingerprint import fingerprint_tensors
from continual_segment.networks import Decoder
from continual_segment.training import Objective, TrainConfig, TrainingRun, train
from continual_segment.training.train import Rows


@dataclass(frozen=True, eq=False)
class Teacher:
    """A trained decoder, and how much its answers count beside the labels."""

    decoder: Decoder
    weight: float

    def loss(self, features: Sequence[Tensor], outputs: Sequence[Tensor]) -> Tensor:
        """Divergence of the outputs from the teacher's; each coarser one counts half the one before."""
        with torch.no_grad():
            taught = self.decoder.forward_supervised(features)
        counted = max(1, len(outputs) - 1)  # not the coarsest, as in nnU-Net's loss
        weights = [0.5**number for number in range(counted)]
        terms = [
            weight * divergence(output, target)
            for weight, output, target in zip(weights, outputs[:counted], taught[:counted], strict=True)
        ]
        return self.weight * torch.stack(terms).sum() / sum(weights)


def divergence(logits: Tensor, taught: Tensor) -> Tensor:
    """Kullback-Leibler divergence of two sets of class probabilities, the mean over voxels."""
    wanted = taught.float().softmax(dim=1)
    return functional.kl_div(logits.float().log_softmax(dim=1), wanted, reduction="none").sum(dim=1).mean()


def train_with_teacher(
    step: FrozenStep, decoder: Decoder, teacher: Teacher, config: TrainConfig, part: str
) -> Rows:
    """Train a decoder in the folder of one part of the step."""
    for module in (teacher.decoder, decoder, step.encoder):
        module.to(config.device)
    loss = config.loss.build()

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        features = step.features(images)
        outputs = decoder.forward_supervised(features)
        return loss(outputs, labels) + teacher.loss(features, outputs)

    started_from = {
        "start": fingerprint_tensors(decoder.state_dict()),
        "teacher": fingerprint_tensors(teacher.decoder.state_dict()),
        "teacher_weight": teacher.weight,
    }
    return train(
        TrainingRun(
            Objective(loss_of, decoder=decoder),
            step.source.training(config),
            config,
            step.run / part,
            step.signature(config, plan=decoder.plan.kernels, **started_from),
            title=f"{part.replace('_', ' ')} {step.name}",
            validate=validation_dice(step.encoder, decoder, step.source, config),
        )
    )
