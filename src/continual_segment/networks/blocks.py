"""The building block of encoders and decoders: convolution, instance norm, leaky ReLU.

Module names are those of nnU-Net v2's networks, so its checkpoints load without renaming layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor, nn

from continual_segment.networks.layers import FastInstanceNorm, SplitInputConv

Kernel = tuple[int, int, int]  # (z, y, x)


class ConvBlock(nn.Module):
    """Convolution, instance norm with scale and shift, leaky ReLU unless `activated` is False."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Kernel,
        stride: Kernel = (1, 1, 1),
        bias: bool = True,
        activated: bool = True,
    ) -> None:
        super().__init__()
        self.conv = SplitInputConv(inputs, outputs, kernel, stride, same_padding(kernel), bias=bias)
        self.norm = FastInstanceNorm(outputs, affine=True)
        self.nonlin = nn.LeakyReLU(0.01, inplace=True) if activated else nn.Identity()

    def forward(self, *parts: Tensor) -> Tensor:
        return self.nonlin(self.norm(self.conv(*parts)))


class ConvStack(nn.Module):
    """ConvBlocks in a row, one per kernel; only the first changes width and resolution."""

    def __init__(
        self, inputs: int, outputs: int, kernels: Sequence[Kernel], stride: Kernel = (1, 1, 1)
    ) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            ConvBlock(inputs, outputs, kernels[0], stride),
            *(ConvBlock(outputs, outputs, kernel) for kernel in kernels[1:]),
        )

    def forward(self, *parts: Tensor) -> Tensor:
        """`parts` are the channels of one input, side by side."""
        first, *others = self.convs
        x = first(*parts)
        for conv in others:
            x = conv(x)
        return x

    @property
    def last_activation(self) -> nn.Module:
        last = self.convs[-1]
        assert isinstance(last, ConvBlock)
        return last.nonlin


class ReducedConv(nn.Module):
    """A convolution of fewer channels, instance norm, leaky ReLU.

    Its input is reduced to `width` channels, and the kernels follow each other on those; only the last one
    widens again. A second input has that width already and is added.
    """

    def __init__(self, inputs: int, outputs: int, kernels: Sequence[Kernel], width: int) -> None:
        super().__init__()
        self.reduce = nn.Conv3d(inputs, width, 1, bias=False)
        *inside, last = kernels
        self.convs = nn.Sequential(
            *(SplitInputConv(width, width, kernel, 1, same_padding(kernel), bias=False) for kernel in inside),
            SplitInputConv(width, outputs, last, 1, same_padding(last)),
        )
        self.norm = FastInstanceNorm(outputs, affine=True)
        self.nonlin = nn.LeakyReLU(0.01, inplace=True)

    def forward(self, *parts: Tensor) -> Tensor:
        return self.nonlin(self.norm(self.convs(self.reduced(*parts))))

    @property
    def kernels(self) -> list[nn.Conv3d]:
        """Its convolutions behind the reduction."""
        return [conv for conv in self.convs if isinstance(conv, nn.Conv3d)]

    def reduced(self, *parts: Tensor) -> Tensor:
        """What its kernels read; `parts` are the input, or what is added to it reduced and the input."""
        *added, x = parts
        return reduce(torch.add, added, self.reduce(x))


class ReducedStack(nn.Module):
    """ReducedConvs in a row; the first reads enlarged features of its width and the encoder's."""

    def __init__(self, features: int, kernels: Sequence[Kernel], width: int, depth: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(*(ReducedConv(features, features, kernels, width) for _ in range(depth)))

    def forward(self, *parts: Tensor) -> Tensor:
        first, *others = self.convs
        x = first(*parts)
        for conv in others:
            x = conv(x)
        return x

    @property
    def last_activation(self) -> nn.Module:
        last = self.convs[-1]
        assert isinstance(last, ReducedConv)
        return last.nonlin


def same_padding(kernel: Kernel) -> Kernel:
    z, y, x = kernel
    return z // 2, y // 2, x // 2


def initialise(module: nn.Module) -> None:
    """He initialisation for leaky ReLU, zero biases; for `nn.Module.apply`."""
    if isinstance(module, nn.Conv3d | nn.ConvTranspose3d):
        nn.init.kaiming_normal_(module.weight, a=0.01)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
