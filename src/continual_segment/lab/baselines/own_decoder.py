"""Methods with a decoder per dataset whose encoder is not frozen: unfreezing, and the upper bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from continual_segment.config import ExperimentConfig
from continual_segment.lab.baselines.budgets import share_of_first_step
from continual_segment.lab.baselines.method import Keeps, View
from continual_segment.lab.baselines.step import Learner, LearningStep, NetworkMethod
from continual_segment.networks.segmentation_network import SegmentationNetwork
from continual_segment.training import TrainConfig


def own_learner(network: SegmentationNetwork, step: LearningStep) -> Learner:
    """Plain training on the dataset's own labels."""
    loss = step.train.loss.build()

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        return loss(network.decoder.forward_supervised(network.encoder(images)), labels)

    return Learner(network, step.dataset.organs, loss_of)


@dataclass(frozen=True)
class Unfreezing(NetworkMethod):
    """The paper's method without the frozen encoder (Table 2 of the paper).

    Every dataset gets its own decoder, and the encoder is trained with it. Old decoders do not change, but
    read an encoder that did.
    """

    keeps: ClassVar[Keeps] = "old decoders"
    views: ClassVar[tuple[View, ...]] = (View("own"),)
    encoder: ClassVar[str] = "unfreezing"

    def begin(self, step: LearningStep) -> Learner:
        encoder = step.previous.trainable_copy().encoder
        return own_learner(step.fresh_network(encoder), step)


@dataclass(frozen=True)
class UpperBound(NetworkMethod):
    """One whole nnU-Net per dataset: nothing to forget, and nothing shared."""

    keeps: ClassVar[Keeps] = "one network per dataset"

    start: Literal["scratch", "first encoder"] = "scratch"
    """Initial weights of the encoder. The paper's upper bound equals its "unfreezing" to the last digit, so
    it may have started from the first step's."""

    @property
    def reads_first_step(self) -> bool:
        return self.start != "scratch"

    def begin(self, step: LearningStep) -> Learner:
        if self.start == "scratch":
            encoder = step.previous.encoder.config.build_encoder()
        else:
            encoder = step.previous.trainable_copy().encoder
        return own_learner(step.fresh_network(encoder), step)

    def paper_budget(self, config: ExperimentConfig) -> TrainConfig:
        return share_of_first_step(config, 1 / 8, rate=1)
