"""Methods with a decoder per dataset whose encoder is not frozen: unfreezing, and the upper bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from continual_segment.lab.baselines.step import Keeps, Learner, LearningStep
from continual_segment.networks.segmentation_network import SegmentationNetwork


def own_learner(network: SegmentationNetwork, step: LearningStep) -> Learner:
    """Plain training on the dataset's own labels."""
    loss = step.train.loss.build()

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        return loss(network.decoder.forward_supervised(network.encoder(images)), labels)

    return Learner(network, step.dataset.organs, loss_of)


@dataclass(frozen=True)
class Unfreezing:
    """Ours without the frozen encoder (the paper's Table 2).

    Every dataset gets a decoder of its own, and the encoder goes on learning with it; old decoders stay as
    they were and read an encoder that has moved on.
    """

    keeps: ClassVar[Keeps] = "old decoders"

    def begin(self, step: LearningStep) -> Learner:
        encoder = step.previous.trainable_copy().encoder
        return own_learner(step.fresh_network(encoder), step)


@dataclass(frozen=True)
class UpperBound:
    """One whole nnU-Net per dataset: nothing to forget, and nothing shared."""

    keeps: ClassVar[Keeps] = "one network per dataset"

    start: Literal["scratch", "first encoder"] = "scratch"
    """Where the encoder begins. The paper's upper bound equals its "unfreezing" to the last digit, so it may
    have begun with the first step's."""

    def begin(self, step: LearningStep) -> Learner:
        if self.start == "scratch":
            encoder = step.previous.encoder.config.build_encoder()
        else:
            encoder = step.previous.trainable_copy().encoder
        return own_learner(step.fresh_network(encoder), step)
