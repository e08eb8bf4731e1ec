"""PyTorch's layers with its names, weights and answers, computed in a way that takes less time.

`benchmarks/layers.py` measures what each gains.
"""

from __future__ import annotations

from functools import reduce
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional


class SplitInputConv(nn.Conv3d):
    """A convolution of one tensor, or of several side by side as channels of one.

    Where only some of them need a gradient, as a decoder's features beside those of a frozen encoder, each is
    convolved alone: left to itself, PyTorch would compute a gradient for all and throw a part away.
    """

    def forward(self, *parts: Tensor) -> Tensor:
        if not torch.is_grad_enabled() or len({part.requires_grad for part in parts}) == 1:
            return super().forward(torch.cat(parts, dim=1) if len(parts) > 1 else parts[0])
        weights = self.weight.split([part.shape[1] for part in parts], dim=1)
        biases = (self.bias, *[None] * (len(parts) - 1))
        convolved = (
            functional.conv3d(part, weight, bias, self.stride, self.padding)
            for part, weight, bias in zip(parts, weights, biases, strict=True)
        )
        return reduce(torch.add, convolved)


class FastInstanceNorm(nn.InstanceNorm3d):
    """Instance norm as a group norm of single channels, which PyTorch computes faster."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.group_norm(x, self.num_features, self.weight, self.bias, self.eps)


class FastTransposedConv(nn.ConvTranspose3d):
    """A transposed convolution whose kernel is as large as its stride: every voxel becomes a block of voxels.

    That is one matrix product and a change of order, several times faster than PyTorch's on a CPU.
    """

    def __init__(self, inputs: int, outputs: int, stride: tuple[int, int, int]) -> None:
        super().__init__(inputs, outputs, stride, stride)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        batch, inputs, *size = x.shape
        block = self.weight.shape[2:]
        assert self.bias is not None
        weight = self.weight.reshape(inputs, -1).t().expand(batch, -1, -1)
        bias = self.bias.repeat_interleave(prod(block))[None, :, None]
        blocks = torch.baddbmm(bias, weight, x.reshape(batch, inputs, -1))
        blocks = blocks.view(batch, self.out_channels, *block, *size)
        enlarged = [length * times for length, times in zip(size, block, strict=True)]
        return blocks.permute(0, 1, 5, 2, 6, 3, 7, 4).reshape(batch, self.out_channels, *enlarged)
