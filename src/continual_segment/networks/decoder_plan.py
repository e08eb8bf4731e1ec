"""DecoderPlan: the shape of one decoder as plain data, what it weighs and what it costs.

A plan names one kernel per block, deepest block first. Two counts of parameters live side by side:
the paper counts convolution weights of the blocks only and a P3D convolution as 12 weights; the true
count takes every number the decoder holds. Parameters sit in the deep blocks, which are wide; time sits in
the shallow ones, which have many voxels: so multiply-adds are counted beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Literal, get_args

from torch import nn

from continual_segment.networks.blocks import Kernel
from continual_segment.networks.encoder import NetworkConfig

KernelName = Literal["projection", "2d", "p3d", "3d", "nnunet"]

KERNELS: dict[str, tuple[Kernel, ...]] = {
    "projection": ((1, 1, 1),),
    "2d": ((1, 3, 3),),
    "p3d": ((1, 3, 3), (3, 1, 1)),  # in-plane, then across slices
    "3d": ((3, 3, 3),),
}
PAPER_WEIGHTS = {"projection": 1, "2d": 9, "p3d": 12, "3d": 27}


@dataclass(frozen=True)
class DecoderPlan:
    """One kernel per decoder block, deepest first."""

    kernels: tuple[KernelName, ...]

    def __post_init__(self) -> None:
        unknown = set(self.kernels) - set(get_args(KernelName))
        if unknown:
            known = ", ".join(get_args(KernelName))
            raise ValueError(f"A decoder block is one of {known}, not {', '.join(sorted(unknown))}.")

    @classmethod
    def nnunet(cls, network: NetworkConfig) -> DecoderPlan:
        """nnU-Net's own decoder: each block takes the kernel of the encoder stage it meets."""
        return cls(tuple("nnunet" for _ in network.features[1:]))

    @classmethod
    def projections(cls, network: NetworkConfig) -> DecoderPlan:
        """The smallest decoder: projections in every block."""
        return cls(tuple("projection" for _ in network.features[1:]))

    def block_kernels(self, network: NetworkConfig) -> list[tuple[Kernel, ...]]:
        """Per block, deepest first, the convolutions that one step of the block is made of."""
        stages = reversed(network.kernels[:-1])
        return [
            (stage,) if name == "nnunet" else KERNELS[name]
            for name, stage in zip(self.kernels, stages, strict=True)
        ]


def paper_count(plan: DecoderPlan, network: NetworkConfig) -> int:
    """Convolution weights of the blocks, counted as in the paper: (2f -> f), then (f -> f) per block."""
    features, stages = network.features[-2::-1], network.kernels[-2::-1]
    blocks = zip(plan.kernels, features, stages, network.decoder_depths, strict=True)
    return sum(
        (1 + convs) * width**2 * (prod(stage) if name == "nnunet" else PAPER_WEIGHTS[name])
        for name, width, stage, convs in blocks
    )


def true_count(module: nn.Module) -> int:
    """Every number the module holds."""
    return sum(parameter.numel() for parameter in module.parameters())


def multiply_adds(plan: DecoderPlan, network: NetworkConfig, window: Sequence[int], organs: int) -> int:
    """Multiplications, each with its addition, behind a decoder's answer on one window.

    Of convolutions, transposed ones and the finest head; norms and activations are not counted.
    """
    voxels = block_voxels(network, window)
    blocks = sum(
        block_multiply_adds(kernels, network, window, number)
        for number, kernels in enumerate(plan.block_kernels(network))
    )
    # strides equal kernels: each voxel a transposed convolution writes comes from one voxel it reads
    upwards = sum(
        deep * width * size
        for (deep, width), size in zip(pairwise(network.features[::-1]), voxels, strict=True)
    )
    return blocks + upwards + network.features[0] * (organs + 1) * voxels[-1]


def block_multiply_adds(
    kernels: Sequence[Kernel], network: NetworkConfig, window: Sequence[int], number: int
) -> int:
    """The same of the convolutions in one block; `kernels` is what one of its steps is made of."""
    width = network.features[-2 - number]
    sizes = [prod(kernel) for kernel in kernels] * network.decoder_depths[number]
    return (sum(sizes) + sizes[0]) * width**2 * block_voxels(network, window)[number]  # the first reads 2f


def block_voxels(network: NetworkConfig, window: Sequence[int]) -> list[int]:
    """Voxels of every block's output on one window, deepest block first."""
    sizes, voxels = [], prod(window)
    for stride in network.strides[:-1]:
        voxels //= prod(stride)
        sizes.append(voxels)
    return sizes[::-1]
