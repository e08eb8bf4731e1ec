"""Sliding windows: their positions, and the weights of their voxels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Place = TypeVar("Place")


@dataclass(frozen=True)
class Tiling:
    """How windows cover a scan."""

    starts: Callable[[int, int, float], list[int]]
    """Length of an axis, window and overlap -> first voxels of the windows."""
    weights: Callable[[Sequence[int]], np.ndarray]
    """Window -> weight of each of its voxels; sums of weights have its dtype."""
    skips_air: bool
    """Whether windows of air beside the body are left out."""


def window_starts(length: int, window: int, overlap: float) -> list[int]:
    """First voxels of the fewest, evenly spaced windows that cover an axis with at least this overlap."""
    if length <= window:
        return [0]
    step = max(1, int(window * (1 - overlap) + 1e-6))  # whole voxels, or rounding reduces the overlap
    count = -(-(length - window) // step) + 1
    return [round(start) for start in np.linspace(0, length - window, count)]


def covering_corners(shape: Sequence[int], window: Sequence[int]) -> list[list[int]]:
    """First voxels of windows side by side; a scan smaller than a window is in the middle of it."""
    starts = [
        window_starts(length, size, overlap=0.0) if length > size else [(length - size) // 2]
        for length, size in zip(shape, window, strict=True)
    ]
    return [[z, y, x] for z in starts[0] for y in starts[1] for x in starts[2]]


def spread_evenly(places: Sequence[Place], at_most: int) -> list[Place]:
    """So many of the places, from the first to the last."""
    kept = np.linspace(0, len(places) - 1, min(at_most, len(places))).round().astype(int)
    return [places[number] for number in kept]


def gaussian_weights(window: Sequence[int]) -> np.ndarray:
    """Weight of each voxel of a window, 1 in its centre: predictions near the border see less context."""
    weights = np.ones(tuple(window), dtype=np.float32)
    for axis, length in enumerate(window):
        offset = (np.arange(length) - (length - 1) / 2) / (length / 8)  # sigma is an eighth, as in nnU-Net
        shape = [-1 if axis == other else 1 for other in range(len(window))]
        weights *= np.exp(-0.5 * offset**2).astype(np.float32).reshape(shape)
    return np.maximum(weights, weights.max() * 1e-4)  # no division by 0 at the corners


OWN_TILING = Tiling(window_starts, gaussian_weights, skips_air=True)
