"""Cut the same box of a patient into other voxels.

A scan becomes smooth where voxels shrink and is averaged where they grow. A label map is harder: ids
cannot be averaged, and one volume per organ does not fit into memory for a hundred organs. So every
organ is interpolated alone, on its own crop, and each new voxel goes to whatever has the largest share
of it, background included.

In:  a volume or label map, and a grid over the same box (`Grid.with_shape`, `Grid.with_spacing`)
Out: the same on that grid; untouched when the shapes agree
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from scipy import ndimage
from torch.nn import functional

from continual_segment.volume import Grid, LabelMap, Volume

_SLAB = 32  # slices or rows worked on at a time: bounds the memory beyond input and output
_ROUNDING = 1e-5  # shares nearer than this are equal: they are sums of float32 weights


def resample_scan(volume: Volume, grid: Grid, dtype: type = np.float32) -> Volume:
    """Bicubic within slices, then linear between them; shrinking averages what it drops.

    Beyond input and output a few slices exist at a time. With an integer `dtype` values are rounded. A volume
    that is on the grid already is handed back as it is.
    """
    if volume.grid.shape == grid.shape:
        there = volume.slices(slice(0, 1)).dtype == dtype
        return volume if there else Volume(_as(volume.voxels, dtype), grid)
    resampled: np.ndarray = np.empty(grid.shape, dtype)
    depth = _smooth_weights(volume.grid.shape[0], grid.shape[0])
    for slab in _slabs(grid.shape[0]):
        _, reached = _touched(depth[slab].abs(), slice(0, depth.shape[1]))
        in_plane = _resize_slices(volume.slices(reached), grid.shape[1:])
        mixed = depth[slab, reached] @ in_plane.flatten(1)
        resampled[slab] = _as(mixed.view(-1, *grid.shape[1:]).numpy(), dtype)
    return Volume(resampled, grid)


def _as(voxels: np.ndarray, dtype: type) -> np.ndarray:
    if np.issubdtype(dtype, np.integer) and voxels.dtype.kind == "f":
        limits = np.iinfo(dtype)
        voxels = np.clip(np.rint(voxels), limits.min, limits.max)
    return voxels.astype(dtype, copy=False)


def _smooth_weights(old: int, new: int) -> torch.Tensor:
    """Linear interpolation along one axis, averaging where it shrinks, as a matrix (new, old)."""
    if old == new:
        return torch.eye(old)
    return functional.interpolate(
        torch.eye(old)[None, None], size=(new, old), mode="bilinear", align_corners=False, antialias=True
    )[0, 0]


def _resize_slices(voxels: np.ndarray, shape: tuple[int, ...]) -> torch.Tensor:
    """Some slices with another number of rows and columns; float32."""
    slices = torch.from_numpy(np.ascontiguousarray(voxels, dtype=np.float32))
    if voxels.shape[1:] == shape:
        return slices
    return functional.interpolate(
        slices[:, None], size=shape, mode="bicubic", align_corners=False, antialias=True
    )[:, 0]


def resample_labels(labels: LabelMap, grid: Grid) -> LabelMap:
    """Every new voxel gets the organ, or background, with the largest share of it.

    Where voxels shrink a share is the linear interpolation of the organ's mask; where they grow it is
    the part of the new voxel that the organ fills. An organ wins a tie against background, the lower
    id one between organs.
    """
    if labels.voxels.shape == grid.shape:
        return LabelMap(labels.voxels, grid, labels.names)
    weights = [_axis_weights(old, new) for old, new in zip(labels.voxels.shape, grid.shape, strict=True)]
    crops = {
        label: crop
        for label, crop in enumerate(ndimage.find_objects(labels.voxels), start=1)
        if crop is not None
    }
    resampled = np.zeros(grid.shape, labels.voxels.dtype)
    for slab in _slabs(grid.shape[0]):
        resampled[slab] = _largest_share(labels.voxels, crops, [weights[0][slab], *weights[1:]])
    return LabelMap(resampled, grid, labels.names)


def _largest_share(
    voxels: np.ndarray, crops: dict[int, tuple[slice, ...]], weights: list[torch.Tensor]
) -> np.ndarray:
    """The winner of every voxel in the slab of the new grid whose rows `weights` holds."""
    shape = tuple(len(axis) for axis in weights)
    winner = np.zeros(shape, voxels.dtype)
    largest = np.zeros(shape, np.float32)
    background = np.ones(shape, np.float32)
    for label, crop in crops.items():
        parts = [_touched(axis, part) for axis, part in zip(weights, crop, strict=True)]
        if any(target.start == target.stop for target, _ in parts):
            continue  # the organ is in other slabs
        target, source = (tuple(part) for part in zip(*parts, strict=True))
        mask = torch.from_numpy(voxels[source] == label).float()
        share = _interpolate(mask, [axis[t, s] for axis, t, s in zip(weights, target, source, strict=True)])
        background[target] -= share
        wins = share > largest[target] + _ROUNDING
        winner[target][wins] = label
        largest[target][wins] = share[wins]
    winner[background > largest + _ROUNDING] = 0
    return winner


def _touched(weights: torch.Tensor, crop: slice) -> tuple[slice, slice]:
    """The new voxels along one axis that a crop reaches, and the part of the crop that reaches them."""
    reached = weights[:, crop] > 0
    new = torch.nonzero(reached.any(dim=1)).flatten()
    if len(new) == 0:
        return slice(0, 0), slice(0, 0)
    old = torch.nonzero(reached.any(dim=0)).flatten() + crop.start
    return slice(int(new[0]), int(new[-1]) + 1), slice(int(old[0]), int(old[-1]) + 1)


def _interpolate(mask: torch.Tensor, weights: list[torch.Tensor]) -> np.ndarray:
    """Apply one weight matrix per axis to a mask (z, y, x)."""
    across = mask @ weights[2].T
    along = weights[1] @ across
    depth = weights[0] @ along.flatten(1)
    return depth.view(len(weights[0]), len(weights[1]), len(weights[2])).numpy()


def _axis_weights(old: int, new: int) -> torch.Tensor:
    """How much of each new voxel every old voxel makes up along one axis: (new, old), rows sum to 1."""
    width = old / new  # of a new voxel, in old ones
    starts = np.arange(new)[:, None] * width
    voxels = np.arange(old)
    if width >= 1:
        overlap = np.minimum(starts + width, voxels + 1) - np.maximum(starts, voxels)
    else:
        centres = np.clip(starts + width / 2 - 0.5, 0, old - 1)  # beyond the last centre its value repeats
        overlap = 1 - np.abs(centres - voxels)
    weights = np.where(overlap > 1e-9, overlap, 0)
    return torch.from_numpy((weights / weights.sum(axis=1, keepdims=True)).astype(np.float32))


def _slabs(length: int) -> Iterator[slice]:
    return (slice(start, min(start + _SLAB, length)) for start in range(0, length, _SLAB))
