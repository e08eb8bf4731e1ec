"""RCIL: two branches per convolution, one frozen; pooled cubes are distilled (Zhang et al., CVPR 2022)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from continual_segment.baselines.classes import StepClasses
from continual_segment.baselines.mib import MiB
from continual_segment.baselines.plop import old_logits
from continual_segment.baselines.pooled import channel_distance, cube_distance
from continual_segment.baselines.seen import see
from continual_segment.baselines.step import Keeps, Learner, LearningStep, Memory
from continual_segment.networks.blocks import ConvBlock
from continual_segment.networks.segmentation_network import SegmentationNetwork, Taps
from continual_segment.networks.two_branch_conv import TwoBranchConv

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
    """Of the unbiased distillation, a mean over classes."""
    cube_factor: float = 0.01
    """Of pooled features."""
    logit_factor: float = 5e-4
    """Of pooled logits."""
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
                branch.load_new(step.memory[f"{name}.weight"], step.memory[f"{name}.bias"])
        ours, theirs = Taps(student), Taps(step.previous)
        mib = MiB(kd_weight=self.kd_weight)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            seen = see(student, step.previous, images)
            learned = mib.loss(seen, labels, classes, step.train)
            return learned + self.cubes(ours.take(), theirs.take(), seen.outputs[0], seen.taught[0], classes)

        def finish() -> Memory:
            kept = {} if self.boundary == "copy" else new_branches(branches)
            merge_branches(student)
            return kept

        return Learner(student, classes.organs, loss, finish=finish)

    def cubes(
        self,
        ours: Sequence[Tensor],
        theirs: Sequence[Tensor],
        logits: Tensor,
        taught: Tensor,
        classes: StepClasses,
    ) -> Tensor:
        """Mean over layers of the pooled distances in space, and of those in channels, logits left out."""
        pairs = list(zip(ours, theirs, strict=True))
        in_space = [self._spatial(a, b, self.cube_factor) for a, b in pairs]
        in_space.append(self._spatial(old_logits(logits, classes), taught, self.logit_factor))
        in_channels = [self.cube_factor * scale_of(a) * channel_distance(a, b) for a, b in pairs]
        return classes.class_ratio * (torch.stack(in_space).mean() + torch.stack(in_channels).mean())

    def _spatial(self, ours: Tensor, theirs: Tensor, factor: float) -> Tensor:
        return factor * scale_of(ours) * cube_distance(ours, theirs, self.windows)


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
        assert branch.bias is not None
        found |= {f"{name}.weight": branch.weight.detach(), f"{name}.bias": branch.bias.detach()}
    return found
