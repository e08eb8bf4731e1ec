"""Distances between features of student and teacher that forgive small shifts: local POD and pooled cubes.

Both compare squared features after some averaging; a sign or a voxel more to the left hardly matters. The
norms are roots, whose gradient is infinite at 0, where every step begins, hence a small number inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from continual_segment.training.loss import precise

TINY = 1e-12


def squared_difference(student: Tensor, teacher: Tensor) -> Tensor:
    """Averaging is linear: the difference of averages is the average of this, at half the work."""
    return precise(student).square() - precise(teacher).square()


def length(difference: Tensor) -> Tensor:
    """Mean over samples of the Euclidean length of a difference."""
    return difference.flatten(1).pow(2).sum(1).add(TINY).sqrt().mean()


def pod_distance(student: Tensor, teacher: Tensor, scales: Sequence[int] = (1, 2, 4)) -> Tensor:
    """PLOP's local POD, one dimension up: the distance of `local_means` of squared features."""
    return length(local_means(squared_difference(student, teacher), scales))


def local_means(values: Tensor, scales: Sequence[int] = (1, 2, 4)) -> Tensor:
    """Values (batch, channel, z, y, x) averaged along each axis within parts of the patch.

    At scale s every axis is cut into s parts (fewer where it is shorter than that; what is left over at its
    end is dropped), and in each of the s ** 3 boxes the mean along each of the three axes is taken.
    Out: (batch, all of them).
    """
    batch, channels = values.shape[:2]
    found = []
    for scale in scales:
        parts = [min(scale, size) for size in values.shape[2:]]
        sizes = [size // count for size, count in zip(values.shape[2:], parts, strict=True)]
        z, y, x = (size * count for size, count in zip(sizes, parts, strict=True))
        shape = [number for pair in zip(parts, sizes, strict=True) for number in pair]
        boxes = values[:, :, :z, :y, :x].reshape(batch, channels, *shape)
        found += [boxes.mean(axis).flatten(1) for axis in (3, 5, 7)]
    return torch.cat(found, dim=1)


def cube_distance(student: Tensor, teacher: Tensor, shares: Sequence[float]) -> Tensor:
    """Mean over window sizes, shares of each axis, of the distance of box-averaged squared features."""
    difference = squared_difference(student, teacher)
    return torch.stack([length(box_means(difference, share)) for share in shares]).mean()


def box_means(values: Tensor, share: float) -> Tensor:
    """Averages over boxes of a share of every axis, step 1, with zeros around: one axis after the other.

    Each axis is one product with a band of a matrix: windows are long, and pooling adds voxel by voxel.
    """
    z, y, x = (window_matrix(size, share).to(values) for size in values.shape[2:])
    with torch.autocast(values.device.type, enabled=False):  # which would round the products
        values = y @ (values @ x.T)
        return (z @ values.flatten(3)).unflatten(3, values.shape[3:])


@cache
def window_matrix(size: int, share: float) -> Tensor:
    """Row i averages the i-th window of a share of an axis, half a window of zeros on both ends."""
    window = max(1, round(share * size))
    padding = window // 2
    first = torch.arange(size + 2 * padding - window + 1)[:, None] - padding
    place = torch.arange(size)
    return ((place >= first) & (place < first + window)).double() / window


def channel_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """The same with averages over three neighbouring channels in place of space."""
    difference = squared_difference(student, teacher).flatten(2)[:, None]
    return length(functional.avg_pool2d(difference, (3, 1), stride=1, padding=(1, 0)))
