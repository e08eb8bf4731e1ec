"""Distances between features of student and teacher that tolerate small shifts: local POD and pooled cubes.

Both compare squared features after averaging, so that signs and shifts by a voxel have little effect. The
norms are roots, whose gradient is infinite at 0, where every step starts, hence a small number inside.

Averaging is linear. With P one as a matrix, the squared length of P d is d · PᵀP d, and the gradient of the
length is PᵀP d / length. So every kind of averaging is given as its PᵀP, "there and back", of one sample
(channel, z, y, x): one product yields value and gradient, and nothing that was averaged is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from continual_segment.training.loss import precise

TINY = 1e-12
ThereAndBack = Callable[[Tensor], Tensor]


def pod_distance(student: Tensor, teacher: Tensor, scales: Sequence[int] = (1, 2, 4)) -> Tensor:
    """PLOP's local POD, one dimension up: squared features averaged along each axis.

    At scale s every axis is cut into s parts (fewer where it is shorter than that; what is left over at its
    end is dropped), and in each of the s ** 3 boxes the mean along each of the three axes is taken.
    """
    return _Distance.apply(precise(student), precise(teacher), [partial(along_axes, scales=scales)])


def cube_distance(student: Tensor, teacher: Tensor, shares: Sequence[float]) -> Tensor:
    """Mean over window sizes, shares of each axis, of the distance of box-averaged features."""
    boxes = [partial(over_boxes, share=share) for share in shares]
    return _Distance.apply(precise(student), precise(teacher), boxes)


def channel_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """The same with averages over three neighbouring channels in place of space."""
    return _Distance.apply(precise(student), precise(teacher), [over_channels])


class _Distance(torch.autograd.Function):
    """Mean over kinds of averaging and over samples of the length of averaged differences of squares."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, averaging: Sequence[ThereAndBack]) -> Tensor:
        difference = student.square().addcmul_(teacher, teacher, value=-1)
        gradient = torch.zeros_like(difference)
        found = difference.new_zeros(())
        with torch.autocast(difference.device.type, enabled=False):  # which would round the products
            for sample, pull in zip(difference, gradient, strict=True):
                for there_and_back in averaging:
                    returned = there_and_back(sample)
                    length = torch.dot(sample.flatten(), returned.flatten()).clamp_min(0).add(TINY).sqrt()
                    found += length
                    pull.addcdiv_(returned, length)
        count = len(averaging) * len(student)
        ctx.save_for_backward(gradient.mul_(student).mul_(2 / count))
        return found / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0], None, None


def along_axes(values: Tensor, scales: Sequence[int]) -> Tensor:
    """There: means along each axis within parts of the patch, at every scale. Back: each to its voxels."""
    returned = torch.zeros_like(values)
    for scale in scales:
        parts = [min(scale, size) for size in values.shape[1:]]
        sizes = [size // count for size, count in zip(values.shape[1:], parts, strict=True)]
        boxes, back = in_boxes(values, parts, sizes), in_boxes(returned, parts, sizes)
        for axis, size in zip((2, 4, 6), sizes, strict=True):
            back += boxes.mean(axis, keepdim=True) / size
    return returned


def in_boxes(volume: Tensor, parts: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """A view (channel, part, z, part, y, part, x)."""
    for axis in (2, 1, 0):  # the last one first, so that the others keep their places
        count, size = parts[axis], sizes[axis]
        volume = volume.narrow(1 + axis, 0, count * size).unflatten(1 + axis, (count, size))
    return volume


def over_boxes(values: Tensor, share: float) -> Tensor:
    """Averages over boxes of a share of every axis, step 1, with zeros around: one axis after the other.

    Each axis is one product with a matrix: windows are long, and pooling adds voxel by voxel.
    """
    z, y, x = (window_gram(size, max(1, round(share * size))).to(values) for size in values.shape[1:])
    values = y @ (values @ x)
    return (z @ values.flatten(2)).unflatten(2, values.shape[2:])


def over_channels(values: Tensor) -> Tensor:
    """Averages over three neighbouring channels."""
    gram = window_gram(len(values), 3).to(values)
    return (gram @ values.flatten(1)).reshape(values.shape)


@cache
def window_gram(size: int, window: int) -> Tensor:
    """PᵀP of the averages over all windows of an axis, half a window of zeros on both ends."""
    padding = window // 2
    first = torch.arange(size + 2 * padding - window + 1)[:, None] - padding
    place = torch.arange(size)
    means = ((place >= first) & (place < first + window)).double() / window
    return means.T @ means
