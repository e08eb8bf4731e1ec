"""Positions and weights of windows with the numbers of stock nnU-Net.

What differs from `segmentation/windows.py`: nnU-Net steps by fractions of a voxel, so that windows of odd
sides or overlaps other than a half may start elsewhere; its Gaussian has its maximum at side // 2, half a
voxel beside the middle of an even side, and is rounded to float16, as are its sums.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from continual_segment.segmentation.windows import Tiling

LARGEST_WEIGHT = 10.0
"""Scales the weights so that few of them are too small for float16."""


def nnunet_window_starts(length: int, window: int, step: float = 0.5) -> list[int]:
    """First voxels of the windows along an axis, at most `step` of a window apart and evenly spread."""
    if length <= window:
        return [0]
    count = math.ceil((length - window) / (window * step)) + 1
    distance = (length - window) / (count - 1)
    return [round(distance * number) for number in range(count)]


def nnunet_window_weights(window: Sequence[int]) -> np.ndarray:
    """Weight of each voxel of a window: float16, without a 0."""
    weights = np.full(tuple(window), LARGEST_WEIGHT)
    for axis, side in enumerate(window):
        offset = (np.arange(side) - side // 2) / (side / 8)
        shape = [-1 if axis == other else 1 for other in range(len(window))]
        weights *= np.exp(-0.5 * offset**2).reshape(shape)
    half = weights.astype(np.float32).astype(np.float16)  # by way of float32, as PyTorch does
    half[half == 0] = half[half > 0].min()
    return half


NNUNET_TILING = Tiling(
    lambda length, window, overlap: nnunet_window_starts(length, window, 1 - overlap),
    nnunet_window_weights,
    skips_air=False,
)
