"""Train a small decoder with a trained one as its teacher.

The small decoder learns from the labels and from the teacher's probabilities, which show where the border of
an organ is uncertain and what else a voxel could be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from continual_segment.learning.train_decoder import FrozenStep, validation_dice
from continual_segment.model.fingerprint import fingerprint_tensors
from continual_segment.networks import Decoder
from continual_segment.training import Objective, TrainConfig, TrainingRun, train
from continual_segment.training.loss import full_precision, precise
from continual_segment.training.train import Rows

CACHED_VALUES = 2**17
"""So many numbers stay in a processor's second cache, twice."""


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
    with full_precision(logits.device):
        return _Divergence.apply(precise(logits), precise(taught))


class _Divergence(torch.autograd.Function):
    """The divergence and, in the same pass, its gradient by the first logits.

    Left to autograd, it writes several volumes of all classes, which with a hundred organs takes longer than
    a small decoder. Here a processor's cache holds everything but the gradient.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, taught: Tensor) -> Tensor:
        total, gradient = logits.new_zeros(()), logits.new_empty(logits.shape)
        for found, wanted, written in zip(blocks(logits), blocks(taught), blocks(gradient), strict=True):
            found, wanted = found.log_softmax(dim=0), wanted.log_softmax(dim=0)
            probability = wanted.exp()
            total += torch.dot(probability.flatten(), wanted.sub_(found).flatten())
            torch.sub(found.exp_(), probability, out=written)
        ctx.voxels = logits[:, 0].numel()
        ctx.save_for_backward(gradient)
        return total / ctx.voxels

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * (outer[0] / ctx.voxels), None


def blocks(values: Tensor) -> Iterator[Tensor]:
    """Views (class, voxel) of values (batch, class, z, y, x): on a CPU each fits its cache."""
    size = max(1, CACHED_VALUES // values.shape[1]) if values.device.type == "cpu" else values[0, 0].numel()
    for sample in values.flatten(2):
        yield from sample.split(size, dim=1)


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
