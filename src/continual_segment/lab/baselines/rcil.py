"""RCIL: two branches per convolution, one frozen; pooled cubes are distilled (Zhang et al., CVPR 2022)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from continual_segment.lab.baselines.classes import StepClasses
from continual_segment.lab.baselines.distillation_pass import DistillationPass, forward_both_with_features
from continual_segment.lab.baselines.marginal import old_logits
from continual_segment.lab.baselines.mib import MiB
from continual_segment.lab.baselines.pooled import channel_distance, cube_distance
from continual_segment.lab.baselines.step import Keeps, Learner, LearningStep, Memory
from continual_segment.networks.blocks import ConvBlock
from continual_segment.networks.segmentation_network import SegmentationNetwork
from continual_segment.networks.two_branch_conv import TwoBranchConv

Pair = tuple[Tensor, Tensor]
REFERENCE_VOXELS = 32 * 32
"""Of the two-dimensional features for which the factors were made."""


@dataclass(frozen=True)
class RCIL:
    """Representation Compensation: old and new branch side by side, MiB's losses, pooled-cube distillation.

    The original merges the branches through batch norm's statistics. Instance norm has none, so here both
    branches meet before one shared norm, where merging is exact. The paper says nothing about how it
    brought RCIL to three dimensions; every convolution of encoder and decoder blocks has two branches here,
    windows are shares of each axis, and factors are scaled to the original's number of voxels.
    """

    keeps: ClassVar[Keeps] = "one network"

    kd_weight: float = 100.0
    """Of the unbiased distillation, a mean over classes. Made for eleven old classes and more; with two or
    three, new organs come late."""
    cube_factor: float = 0.001
    """Of pooled features. The published code has 0.01 with few classes, which leaves features trained from
    scratch no room for new organs, and 5e-6 with many. A tenth of the former is what the paper took for PLOP,
    whose factors are the same."""
    logit_factor: float = 5e-5
    """Of pooled logits, in the original's proportion to that of features."""
    windows: tuple[float, ...] = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4)
    """Sizes of the pooled boxes as shares of each axis."""
    boundary: Literal["copy", "keep"] = "copy"
    """How the new branch begins a step: as a copy of the merged one, so that nothing changes at first; or
    with its own weights of the step before, as in the published code."""

    def begin(self, step: LearningStep) -> Learner:
        student, classes = step.grown_network(), step.classes
        branches = split_branches(student, step.train.seed)
        if self.boundary == "keep" and step.memory:
            for name, branch in branches.items():
                branch.load_new(step.memory[f"{name}.weight"], step.memory.get(f"{name}.bias"))
        mib = MiB(kd_weight=self.kd_weight)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            both = forward_both_with_features(student, step.previous, images)
            return mib.loss(both, labels, classes, step.train) + self.cubes(both, classes)

        def finish() -> Memory:
            kept = {} if self.boundary == "copy" else new_branches(branches)
            merge_branches(student)
            return kept

        return Learner(student, classes.organs, loss, finish=finish)

    def cubes(self, both: DistillationPass, classes: StepClasses) -> Tensor:
        """Mean over layers of the pooled distances in space, and of those in channels, logits left out.

        The last layer of either has the logits' factor: so does the published code.
        """
        logits = (old_logits(both.outputs[0], classes), both.taught[0])
        in_space = self.weighted([*both.inner, logits], partial(cube_distance, shares=self.windows))
        in_channels = self.weighted(both.inner, channel_distance)
        return classes.class_ratio * (in_space + in_channels)

    def weighted(self, pairs: Sequence[Pair], distance: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Mean over layers of a distance, in the size it would have in the original."""
        factors = [self.cube_factor] * (len(pairs) - 1) + [self.logit_factor]
        distances = [
            factor * scale_of(ours) * distance(ours, theirs)
            for factor, (ours, theirs) in zip(factors, pairs, strict=True)
        ]
        return torch.stack(distances).mean()


def scale_of(features: Tensor) -> float:
    """Brings a sum over these voxels to the size of one over the original's."""
    return (REFERENCE_VOXELS / prod(features.shape[2:])) ** 0.5


def blocks_of(network: SegmentationNetwork) -> Iterator[tuple[str, ConvBlock]]:
    for name, module in network.named_modules():
        if isinstance(module, ConvBlock):
            yield name, module


def split_branches(network: SegmentationNetwork, seed: int) -> dict[str, TwoBranchConv]:
    """Give every convolution of the network an old and a new branch; return them by name."""
    for number, (_, block) in enumerate(blocks_of(network)):
        block.conv = TwoBranchConv(block.conv, seed=10_000 * seed + number).to(block.conv.weight.device)
    return {name: block.conv for name, block in blocks_of(network) if isinstance(block.conv, TwoBranchConv)}


def merge_branches(network: SegmentationNetwork) -> None:
    """Make every convolution plain again: the same answers at nnU-Net's size."""
    for _, block in blocks_of(network):
        if isinstance(block.conv, TwoBranchConv):
            block.conv = block.conv.merged()


def new_branches(branches: dict[str, TwoBranchConv]) -> Memory:
    found: dict[str, Tensor] = {}
    for name, branch in branches.items():
        found |= {f"{name}.{part}": tensor.detach() for part, tensor in branch.named_parameters()}
    return found
