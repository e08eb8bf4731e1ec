"""The one building block of encoder and decoders: convolution, instance norm, leaky ReLU.

Module names are those of nnU-Net v2's PlainConvUNet, so its checkpoints load without renaming layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor, nn
from torch.nn import functional

Kernel = tuple[int, int, int]  # (z, y, x)


class JoinedConv(nn.Conv3d):
    """A convolution of one tensor, or of several side by side as channels of one.

    Where only some of them need a gradient, as a decoder's features beside those of a frozen encoder, each is
    convolved alone: left to itself, PyTorch would compute a gradient for all and throw a part away.
    """

    def forward(self, *parts: Tensor) -> Tensor:
        if len({part.requires_grad for part in parts}) == 1:
            return super().forward(torch.cat(parts, dim=1) if len(parts) > 1 else parts[0])
        weights = self.weight.split([part.shape[1] for part in parts], dim=1)
        biases = (self.bias, *[None] * (len(parts) - 1))
        convolved = [
            functional.conv3d(part, weight, bias, self.stride, self.padding)
            for part, weight, bias in zip(parts, weights, biases, strict=True)
        ]
        return reduce(torch.add, convolved)


class ConvBlock(nn.Module):
    """Convolution, instance norm with scale and shift, leaky ReLU."""

    def __init__(self, inputs: int, outputs: int, kernel: Kernel, stride: Kernel = (1, 1, 1)) -> None:
        super().__init__()
        z, y, x = kernel
        padding = (z // 2, y // 2, x // 2)
        self.conv = JoinedConv(inputs, outputs, kernel, stride, padding)
        self.norm = nn.InstanceNorm3d(outputs, affine=True)
        self.nonlin = nn.LeakyReLU(0.01, inplace=True)

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
        """`parts` lie side by side, as channels of one input."""
        first, *others = self.convs
        x = first(*parts)
        for conv in others:
            x = conv(x)
        return x

    @property
    def last_norm(self) -> nn.Module:
        last = self.convs[-1]
        assert isinstance(last, ConvBlock)
        return last.norm


def initialise(module: nn.Module) -> None:
    """He initialisation for leaky ReLU, zero biases; for `nn.Module.apply`."""
    if isinstance(module, nn.Conv3d | nn.ConvTranspose3d):
        nn.init.kaiming_normal_(module.weight, a=0.01)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
