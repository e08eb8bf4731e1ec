"""PyTorch's layers with its names, weights and answers, computed in a way that takes less time.

`benchmarks/layers.py` measures what each gains.
"""

from __future__ import annotations

from functools import reduce
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional, grad

CHANNELS_AT_ONCE = 8
"""Of oneDNN's kernels for AVX2."""


class SplitInputConv(nn.Conv3d):
    """A convolution of one tensor, or of several side by side as channels of one.

    Where only some of them need a gradient, as a decoder's features beside those of a frozen encoder, each is
    convolved alone: left to itself, PyTorch would compute a gradient for all and throw a part away.
    """

    def forward(self, *parts: Tensor) -> Tensor:
        if not torch.is_grad_enabled() or len({part.requires_grad for part in parts}) == 1:
            joined = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
            return self._convolve(joined, self.weight, self.bias)
        weights = self.weight.split([part.shape[1] for part in parts], dim=1)
        biases = (self.bias, *[None] * (len(parts) - 1))
        return reduce(torch.add, map(self._convolve, parts, weights, biases))

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self._pads_for_gradient(x, weight):
            return _PaddedGradientConv.apply(x, weight, bias, self.padding)
        return functional.conv3d(x, weight, bias, self.stride, self.padding)

    def _pads_for_gradient(self, x: Tensor, weight: Tensor) -> bool:
        """Whether the weights need a gradient that is computed faster from a padded input."""
        return (
            torch.is_grad_enabled()
            and weight.requires_grad
            and not isinstance(self.padding, str)
            and max(self.padding) > 0
            and max(self.stride) == 1
            and x.dtype == torch.float32
            and not any(channels % CHANNELS_AT_ONCE for channels in weight.shape[:2])
            and has_avx2_kernels(x.device)
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()
        )


def has_avx2_kernels(device: torch.device) -> bool:
    """Whether convolutions run by oneDNN's kernels for AVX2; those for AVX-512 have no such limit."""
    return device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2"


class _PaddedGradientConv(torch.autograd.Function):
    """A convolution whose gradient by the weights is computed from the padded input.

    With AVX2, oneDNN has no kernel for that gradient in three dimensions with padding: it would copy every
    voxel once per weight of the kernel and multiply matrices, which takes up to three times as long.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int, int]
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding = padding
        return functional.conv3d(x, weight, bias, padding=padding)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        (gradient,), (x, weight) = outer, ctx.saved_tensors
        by_x, by_weight, by_bias, _ = ctx.needs_input_grad
        sides = [side for side in reversed(ctx.padding) for _ in range(2)]  # x first, before and after
        return (
            grad.conv3d_input(x.shape, weight, gradient, padding=ctx.padding) if by_x else None,
            grad.conv3d_weight(functional.pad(x, sides), weight.shape, gradient) if by_weight else None,
            gradient.sum((0, 2, 3, 4)) if by_bias else None,
            None,
        )


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
        if pairs_as_complex(blocks):
            return interleaved(blocks).reshape(batch, self.out_channels, *enlarged)
        return blocks.permute(0, 1, 5, 2, 6, 3, 7, 4).reshape(batch, self.out_channels, *enlarged)


def pairs_as_complex(blocks: Tensor) -> bool:
    """Whether neighbours along x can be written as one complex number."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # other backends may lack such numbers
        return False
    return (
        blocks.shape[4] == 2
        and blocks.dtype == torch.float32
        and blocks.device.type == "cpu"
        and not blocks.requires_grad
    )


def interleaved(blocks: Tensor) -> Tensor:
    """(batch, channel, bz, by, 2, z, y, x) -> (batch, channel, z, bz, y, by, x, 2), of up to twice the speed.

    PyTorch changes the order of single numbers slowly. Two neighbours along x become the real and imaginary
    part of one number, and lines of those are written as they are.
    """
    batch, channels, bz, by, _, z, y, x = blocks.shape
    found = torch.empty(batch, channels, z, bz, y, by, x, dtype=torch.complex64)
    torch.complex(*blocks.unbind(4), out=found.permute(0, 1, 3, 5, 2, 4, 6))
    return torch.view_as_real(found)
