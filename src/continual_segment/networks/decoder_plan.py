"""DecoderPlan: the shape of one decoder as plain data, what it weighs and what it costs.

A plan names one form per block, deepest block first (block_form.py). Two counts of parameters live side by
side: the paper counts convolution weights of the blocks only and a P3D convolution as 12 weights; the true
count takes every number the decoder holds. Parameters sit in the deep blocks, which are wide; time sits in
the shallow ones, which have many voxels: so multiply-adds are counted beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from torch import nn

from continual_segment.networks.block_form import PAPER_WEIGHTS, BlockForm
from continual_segment.networks.blocks import Kernel
from continual_segment.networks.encoder import NetworkConfig


@dataclass(frozen=True)
class DecoderPlan:
    """One form per decoder block, deepest first."""

    kernels: tuple[str, ...]
    """Each a kernel, or a kernel and a width."""

    def __post_init__(self) -> None:
        _ = self.forms  # which raises where a word is unknown

    @classmethod
    def nnunet(cls, network: NetworkConfig) -> DecoderPlan:
        """nnU-Net's own decoder: each block takes the kernel of the encoder stage it meets."""
        return cls(tuple("nnunet" for _ in network.features[1:]))

    @classmethod
    def projections(cls, network: NetworkConfig) -> DecoderPlan:
        """1x1x1 alone: by the paper's count, 0.04 of nnU-Net's decoder."""
        return cls(tuple("projection" for _ in network.features[1:]))

    @property
    def forms(self) -> list[BlockForm]:
        return [BlockForm.of(name) for name in self.kernels]

    @property
    def has_widths(self) -> bool:
        """Whether a block is reduced, which versions before 0.2 cannot build."""
        return any(form.width is not None for form in self.forms)

    def forms_of(self, network: NetworkConfig) -> list[BlockForm]:
        """The form of every block of a decoder; raises where the plan has too few or too many."""
        return [form for form, _ in zip(self.forms, network.features[1:], strict=True)]

    def block_kernels(self, network: NetworkConfig) -> list[tuple[Kernel, ...]]:
        """Per block, deepest first, the convolutions that one step of the block is made of."""
        return [form.kernels(network, number) for number, form in enumerate(self.forms_of(network))]


def paper_count(plan: DecoderPlan, network: NetworkConfig) -> int:
    """Convolution weights of the blocks, counted as in the paper: (2f -> f), then (f -> f) per block."""
    return sum(paper_block_count(form, network, number) for number, form in enumerate(plan.forms_of(network)))


def paper_block_count(form: BlockForm, network: NetworkConfig, number: int) -> int:
    """The same of one block; of forms that the paper does not have, all weights of convolutions."""
    if form.width is not None:
        return sum(conv.weights for conv in form.convs(network, number))
    width, convs = network.features[-2 - number], network.decoder_depths[number]
    (kernel, *_) = form.kernels(network, number)
    weights = prod(kernel) if form.kernel == "nnunet" else PAPER_WEIGHTS[form.kernel]
    return (1 + convs) * width**2 * weights


def true_count(module: nn.Module) -> int:
    """Every number the module holds."""
    return sum(parameter.numel() for parameter in module.parameters())


def multiply_adds(plan: DecoderPlan, network: NetworkConfig, window: Sequence[int], organs: int) -> int:
    """Multiplications, each with its addition, behind a decoder's answer on one window.

    Of convolutions, transposed ones and the finest head; norms and activations are not counted.
    """
    blocks = sum(
        block_multiply_adds(form, network, window, number)
        + upward_multiply_adds(form, network, window, number)
        for number, form in enumerate(plan.forms_of(network))
    )
    return blocks + network.features[0] * (organs + 1) * block_voxels(network, window)[-1]


def block_multiply_adds(form: BlockForm, network: NetworkConfig, window: Sequence[int], number: int) -> int:
    """The same of the convolutions in one block."""
    weights = sum(conv.weights for conv in form.convs(network, number))
    return weights * block_voxels(network, window)[number]


def upward_multiply_adds(form: BlockForm, network: NetworkConfig, window: Sequence[int], number: int) -> int:
    """The same of the transposed convolution before a block."""
    # strides equal kernels: each voxel it writes comes from one voxel it reads
    deep = network.features[-1 - number]
    return deep * form.enlarged_width(network, number) * block_voxels(network, window)[number]


def block_voxels(network: NetworkConfig, window: Sequence[int]) -> list[int]:
    """Voxels of every block's output on one window, deepest block first."""
    sizes, voxels = [], prod(window)
    for stride in network.strides[:-1]:
        voxels //= prod(stride)
        sizes.append(voxels)
    return sizes[::-1]
