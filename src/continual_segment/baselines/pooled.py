"""Distances between features of student and teacher that forgive small shifts: local POD and pooled cubes.

Both compare squared features after some averaging; a sign or a voxel more to the left hardly matters. The
norms are roots, whose gradient is infinite at 0, where every step begins, hence a small number inside.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

TINY = 1e-12


def length(difference: Tensor) -> Tensor:
    """Mean over samples of the Euclidean length of a difference."""
    return difference.flatten(1).pow(2).sum(1).add(TINY).sqrt().mean()


def local_pod(features: Tensor, scales: Sequence[int] = (1, 2, 4)) -> Tensor:
    """Squared features (batch, channel, z, y, x) averaged along each axis within parts of the patch.

    At scale s every axis is cut into s parts (fewer where it is shorter than that; what is left over at its
    end is dropped), and in each of the s ** 3 boxes the mean along each of the three axes is taken. PLOP's
    two-dimensional local POD, one dimension up. Out: (batch, all of them).
    """
    batch, channels = features.shape[:2]
    found = []
    for scale in scales:
        parts = [min(scale, size) for size in features.shape[2:]]
        sizes = [size // count for size, count in zip(features.shape[2:], parts, strict=True)]
        z, y, x = (size * count for size, count in zip(sizes, parts, strict=True))
        shape = [number for pair in zip(parts, sizes, strict=True) for number in pair]
        boxes = features[:, :, :z, :y, :x].square().reshape(batch, channels, *shape)
        found += [boxes.mean(axis).flatten(1) for axis in (3, 5, 7)]
    return torch.cat(found, dim=1)


def pod_distance(student: Tensor, teacher: Tensor, scales: Sequence[int] = (1, 2, 4)) -> Tensor:
    return length(local_pod(student, scales) - local_pod(teacher, scales))


def cube_distance(student: Tensor, teacher: Tensor, shares: Sequence[float]) -> Tensor:
    """Mean over window sizes, shares of each axis, of the distance of box-averaged squared features."""
    difference = student.square() - teacher.square()  # averaging is linear: the difference can go first
    return torch.stack([length(box_mean(difference, share)) for share in shares]).mean()


def box_mean(values: Tensor, share: float) -> Tensor:
    """Averages over boxes of a share of every axis, step 1, with zeros around: one axis after the other."""
    for axis in range(3):
        size = max(1, round(share * values.shape[2 + axis]))
        kernel, padding = [1, 1, 1], [0, 0, 0]
        kernel[axis], padding[axis] = size, size // 2
        values = functional.avg_pool3d(values, kernel, stride=1, padding=padding)
    return values


def channel_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """The same with averages over three neighbouring channels in place of space."""
    difference = (student.square() - teacher.square()).flatten(2)[:, None]
    return length(functional.avg_pool2d(difference, (3, 1), stride=1, padding=(1, 0)))
