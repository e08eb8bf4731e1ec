"""Reduce the channels that a trained convolution reads, in closed form.

A convolution reads many channels, and its weights use few directions among them. Which ones, follows from a
singular value decomposition of the weights, in units of how much each direction varies in training patches.
The first directions are those that a smaller convolution reads; the more of them, the less is lost. A
convolution that uses no more directions than are kept loses nothing.

In:  a trained decoder, training patches
Out: for every convolution its directions, the most important one first
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from continual_segment.networks import Decoder
from continual_segment.networks.blocks import ConvStack, ReducedConv, ReducedStack
from continual_segment.networks.layers import FastTransposedConv

SMALLEST_VARIANCE = 1e-4
"""Added to that of every direction, as a share of the mean one, so that none has none."""


class ChannelMoments:
    """Mean and covariance of channels over voxels."""

    def __init__(self) -> None:
        self.count, self.total, self.squares = 0, torch.zeros(()), torch.zeros(())

    def add(self, x: Tensor) -> None:
        """One batch (batch, channel, z, y, x)."""
        values = x.transpose(0, 1).flatten(1)
        self.count += values.shape[1]
        self.total = self.total.to(x.device) + values.sum(dim=1).double()
        self.squares = self.squares.to(x.device) + (values @ values.T).double()

    @property
    def covariance(self) -> Tensor:
        mean = self.total / self.count
        found = self.squares / self.count - torch.outer(mean, mean)
        return found + SMALLEST_VARIANCE * found.diagonal().mean() * torch.eye(len(found)).to(found)


def directions(weight: Tensor, covariance: Tensor) -> Tensor:
    """What a convolution uses of its input: (direction, channel), the most important first.

    `weight` is (output, channel, z, y, x). Each direction varies by 1 over the voxels.
    """
    values, vectors = torch.linalg.eigh(covariance)
    root, inverse = ((vectors * values**power) @ vectors.T for power in (0.5, -0.5))
    used, _, _ = torch.linalg.svd(root @ weight.transpose(0, 1).flatten(1).to(root), full_matrices=False)
    return (inverse @ used).T.float()


class DecoderDirections:
    """The directions of all convolutions of a trained decoder."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.moments = [[ChannelMoments() for _ in stage.convs] for stage in decoder.stages]  # type: ignore[union-attr]

    def add(self, features: Sequence[Tensor]) -> None:
        """One batch of the encoder's features."""
        x = features[-1]
        for number, stage in enumerate(self.decoder.stages):
            x = torch.cat(self.decoder.block_input(number, x, features), dim=1)
            assert isinstance(stage, ConvStack)
            for conv, moments in zip(stage.convs, self.moments[number], strict=True):
                moments.add(x)
                x = conv(x)

    def of(self, number: int, place: int) -> Tensor:
        """Of one convolution."""
        conv = self.decoder.stages[number].convs[place].conv  # type: ignore[union-attr,index]
        return directions(conv.weight, self.moments[number][place].covariance)

    @torch.no_grad()
    def reduce(self, number: int, block: ReducedStack, enlarger: FastTransposedConv) -> None:
        """Set what a smaller block and its transposed convolution keep of the trained ones."""
        for place, conv in enumerate(block.convs):
            assert isinstance(conv, ReducedConv)
            kept = self.of(number, place)[: conv.reduce.out_channels]
            own = conv.reduce.in_channels  # the encoder's features, behind those that are enlarged
            conv.reduce.weight.zero_()
            conv.reduce.weight[: len(kept)] = kept[:, -own:, None, None, None]
            if place == 0:
                reduce_enlarged(enlarger, self.decoder.transpconvs[number], kept[:, :-own])  # type: ignore[arg-type]


def reduce_enlarged(enlarger: FastTransposedConv, trained: FastTransposedConv, kept: Tensor) -> None:
    """A trained transposed convolution and the directions kept of its output, in one."""
    assert trained.bias is not None
    assert enlarger.bias is not None
    enlarger.weight.zero_()
    enlarger.bias.zero_()
    enlarger.weight[:, : len(kept)] = torch.einsum("ifzyx,rf->irzyx", trained.weight, kept)
    enlarger.bias[: len(kept)] = kept @ trained.bias


@torch.no_grad()
def set_kernels(conv: ReducedConv, weight: Tensor, bias: Tensor) -> None:
    """Set the kernels of a reduced convolution to (output, width, z, y, x), or to what is nearest to it."""
    *inside, last = conv.kernels
    assert last.bias is not None
    last.bias.copy_(bias)
    if not inside:
        last.weight.copy_(weight)
        return
    in_plane, through_plane = split_planes(weight, conv.reduce.out_channels)
    inside[0].weight.copy_(in_plane)
    last.weight.copy_(through_plane)


def split_planes(weight: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """A kernel as one in plane (width, channel, 1, y, x) and one across slices (output, width, z, 1, 1)."""
    outputs, channels, z, y, x = weight.shape
    matrix = weight.transpose(1, 2).reshape(outputs * z, channels * y * x)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    scale = values[:width].sqrt()
    through = (left[:, :width] * scale).reshape(outputs, z, -1).transpose(1, 2)[..., None, None]
    return (scale[:, None] * right[:width]).reshape(-1, channels, 1, y, x), through
