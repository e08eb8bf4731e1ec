"""RCIL: two branches per convolution, one frozen; pooled cubes are distilled (Zhang et al., CVPR 2022)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from continual_segment.lab.baselines.classes import StepClasses
from continual_segment.lab.baselines.distillation_pass import DistillationPass, forward_both_tapped
from continual_segment.lab.baselines.marginal import old_logits
from continual_segment.lab.baselines.mib import MiB
from continual_segment.lab.baselines.pooled import channel_distance, cube_distance
from continual_segment.lab.baselines.state import MethodState
from continual_segment.lab.baselines.step import Learner, LearningStep, NetworkMethod
from continual_segment.networks.blocks import ConvBlock
from continual_segment.networks.segmentation_network import SegmentationNetwork
from continual_segment.networks.two_branch_conv import TwoBranchConv

Pair = tuple[Tensor, Tensor]
LEAK = 0.01
"""Slope below 0 of the activation of a block."""
REFERENCE_VOXELS = 32 * 32
"""Of the two-dimensional features for which the factors were chosen."""


@dataclass(frozen=True)
class RCIL(NetworkMethod):
    """Representation Compensation: old and new branch side by side, MiB's losses, pooled-cube distillation.

    The original merges the branches through batch norm's statistics. Instance norm has none, so here both
    branches meet before one shared norm, where merging is exact. The paper does not describe its
    three-dimensional version; every convolution of encoder and decoder blocks has two branches here,
    windows are shares of each axis, and factors are scaled to the original's number of voxels.
    """

    kd_weight: float = 100.0
    """Of the unbiased distillation, a mean over classes. Chosen for eleven old classes and more; with two or
    three, new organs are learned late."""
    kd_mean_over_classes: bool = True
    """As in MiB."""
    cube_factor: float = 0.001
    """Of pooled features. The published code has 0.01 with few classes, with which features trained from
    scratch do not adapt to new organs, and 5e-6 with many. The paper uses a tenth of the former for PLOP,
    which has the same factors."""
    logit_factor: float = 5e-5
    """Of pooled logits, in the original's proportion to that of features."""
    windows: tuple[float, ...] = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4)
    """Sizes of the pooled boxes as shares of each axis."""
    boundary: Literal["copy", "keep"] = "copy"
    """Initial weights of the new branch: a copy of the merged one, so that the outputs are the same at first;
    or its own of the step before, as in the published code."""

    def begin(self, step: LearningStep) -> Learner:
        student, classes = step.grown_network(), step.classes
        branches = split_branches(student, step.train.seed)
        if self.boundary == "keep" and step.state:
            for name, branch in branches.items():
                branch.load_new(step.state[f"{name}.weight"], step.state.get(f"{name}.bias"))
        mib = MiB(kd_weight=self.kd_weight, kd_mean_over_classes=self.kd_mean_over_classes)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            passed = forward_both_tapped(student, step.previous, images)
            return mib.loss(passed, labels, classes, step.train) + self.cubes(passed, classes)

        def finish() -> MethodState:
            kept = {} if self.boundary == "copy" else new_branches(branches)
            merge_branches(student)
            return kept

        return Learner(student, classes.organs, loss, finish=finish)

    def cubes(self, passed: DistillationPass, classes: StepClasses) -> Tensor:
        """Mean over layers of the pooled distances in space, and of those in channels, logits left out.

        The last layer of either has the logits' factor, as in the published code, whose features are those
        after the activation: it works in place.
        """
        inner = [(activated(ours), activated(theirs)) for ours, theirs in passed.inner]
        logits = (old_logits(passed.outputs[0], classes), passed.taught[0])
        in_space = self.weighted([*inner, logits], partial(cube_distance, shares=self.windows))
        in_channels = self.weighted(inner, channel_distance)
        return classes.class_ratio * (in_space + in_channels)

    def weighted(self, pairs: Sequence[Pair], distance: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Mean over layers of a distance, in the size it would have in the original."""
        factors = [self.cube_factor] * (len(pairs) - 1) + [self.logit_factor]
        distances = [
            factor * scale_of(ours) * distance(ours, theirs)
            for factor, (ours, theirs) in zip(factors, pairs, strict=True)
        ]
        return torch.stack(distances).mean()


def activated(features: Tensor) -> Tensor:
    return functional.leaky_relu(features, LEAK)


def scale_of(features: Tensor) -> float:
    """Scales a sum over these voxels to one over the original number."""
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
    """Merge both branches of every convolution: the same outputs at nnU-Net's size."""
    for _, block in blocks_of(network):
        if isinstance(block.conv, TwoBranchConv):
            block.conv = block.conv.merged()


def new_branches(branches: dict[str, TwoBranchConv]) -> MethodState:
    found: dict[str, Tensor] = {}
    for name, branch in branches.items():
        found |= {f"{name}.{part}": tensor.detach() for part, tensor in branch.named_parameters()}
    return found
