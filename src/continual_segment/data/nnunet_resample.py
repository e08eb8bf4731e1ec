"""Resample a scan with the numbers of stock nnU-Net.

nnU-Net resizes scans with cubic splines, without anti-aliasing, and limits the result to the range of its
input. Where one axis is much coarser than the others (`coarse_axis`), it resizes each slice across that axis
on its own and repeats the nearest slice. It does so in float64 on whole volumes, at 64 products per voxel.

A spline in three axes is one linear map per axis. Here each map is a matrix, and slices pass through the
matrices some at a time: the same numbers up to the rounding of float64, in a fraction of time and memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from continual_segment.data.nnunet_preparation import SLICES_AT_ONCE
from continual_segment.volume import SliceSource

NEGLIGIBLE = 1e-12
"""Weights of distant slices below this are left out; a spline's weights shrink to a quarter per slice."""


def resample_like_nnunet(
    voxels: SliceSource, shape: Sequence[int], coarse: int | None = None, order: int = 3
) -> np.ndarray:
    """A normalised scan with another number of voxels per axis: float32.

    `order` is that of the spline, 3 for scans and 1 for logits; along the `coarse` axis it is always 0.
    """
    if tuple(voxels.shape) == tuple(shape):
        return voxels[:].astype(np.float32, copy=False)
    resampled: np.ndarray = np.empty(tuple(shape), np.float32)
    first = 0
    for slab in resampled_slabs(voxels, shape, coarse, order):
        resampled[first : first + len(slab)] = slab
        first += len(slab)
    return resampled


def resampled_slabs(
    voxels: SliceSource, shape: Sequence[int], coarse: int | None = None, order: int = 3
) -> Iterator[np.ndarray]:
    """The same, some slices at a time and in their order: neither input nor result exist as a whole."""
    depth, rows, columns = (
        axis_weights(old, new, 0 if axis == coarse else order)
        for axis, (old, new) in enumerate(zip(voxels.shape, shape, strict=True))
    )
    low, high = _limits(voxels, shape, coarse)
    ready = torch.zeros((0, len(rows), len(columns)), dtype=torch.float64)
    start = stop = 0  # of the slices that are ready
    for part, reach in _reaches(depth):
        fresh = _in_plane(voxels, slice(max(stop, reach.start), reach.stop), rows, columns)
        ready = torch.cat([ready[reach.start - start :], *fresh])
        start, stop = reach.start, reach.stop
        mixed = depth[part, reach] @ ready.flatten(1)
        slab = mixed.view(-1, len(rows), len(columns)).numpy()
        own = part if coarse == 0 else slice(None)
        yield np.clip(slab, low[own], high[own], out=slab).astype(np.float32)


def axis_weights(old: int, new: int, order: int) -> Tensor:
    """How much every old voxel contributes to each new one along one axis: (new, old), float64."""
    unit = np.eye(old)
    if order == 0 or old == new:
        return torch.from_numpy(unit[nearest_voxels(old, new)])
    weights = ndimage.zoom(unit, (new / old, 1), order=order, mode="nearest", grid_mode=True)
    return torch.from_numpy(weights)


def nearest_voxels(old: int, new: int) -> np.ndarray:
    """The old voxel whose centre is nearest to that of each new one, the upper of two at equal distance.

    Operations and their order are those of nnU-Net: where distances are equal, rounding decides.
    """
    centres = (old / new) * (np.arange(new) + 0.5) - 0.5
    return np.floor(np.clip(centres, 0, old - 1) + 0.5).astype(np.int64)


def _limits(voxels: SliceSource, shape: Sequence[int], coarse: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest value of the scan, or of each slice across the coarse axis, for the new voxels.

    Arrays of three axes that broadcast to the new shape.
    """
    across = tuple(axis for axis in range(3) if axis != coarse)
    slabs = (voxels[part] for part in _parts(slice(0, voxels.shape[0])))
    ranges = [[find(slab, axis=across, keepdims=True) for find in (np.min, np.max)] for slab in slabs]
    low, high = (np.concatenate(values) for values in zip(*ranges, strict=True))
    if coarse != 0:
        low, high = low.min(axis=0, keepdims=True), high.max(axis=0, keepdims=True)
    if coarse is None:
        return low, high
    nearest = nearest_voxels(voxels.shape[coarse], shape[coarse])
    return low.take(nearest, axis=coarse), high.take(nearest, axis=coarse)


def _reaches(weights: Tensor) -> Iterator[tuple[slice, slice]]:
    """Some new voxels along an axis at a time, and the old ones that contribute to them.

    Ranges of old voxels never move back, so that those before a range are not needed again.
    """
    contributes = weights.abs().numpy() > NEGLIGIBLE
    first = contributes.argmax(axis=1)
    last = contributes.shape[1] - contributes[:, ::-1].argmax(axis=1)
    first = np.minimum.accumulate(first[::-1])[::-1]
    last = np.maximum.accumulate(last)
    for part in _parts(slice(0, len(weights))):
        yield part, slice(int(first[part.start]), int(last[part.stop - 1]))


def _in_plane(voxels: SliceSource, slices: slice, rows: Tensor, columns: Tensor) -> Iterator[Tensor]:
    """Old slices with new rows and columns."""
    for part in _parts(slices):
        planes = torch.from_numpy(np.ascontiguousarray(voxels[part], dtype=np.float64))
        across = torch.cat([planes[:, :, old] @ columns[new, old].T for new, old in _reaches(columns)], dim=2)
        yield torch.cat([rows[new, old] @ across[:, old] for new, old in _reaches(rows)], dim=1)


def _parts(slices: slice) -> Iterator[slice]:
    starts = range(slices.start, slices.stop, SLICES_AT_ONCE)
    return (slice(start, min(start + SLICES_AT_ONCE, slices.stop)) for start in starts)
