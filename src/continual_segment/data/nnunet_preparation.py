"""What stock nnU-Net does to a scan before its network sees it: crop, normalise, resample.

An imported nnU-Net gives nnU-Net's labels only if its input is nnU-Net's input. All steps work in the axes
of the network (`data/network_frame.py`) and in this order:

1. Crop to the box of voxels that are not 0: `nonzero_box`. Labels outside the box are background.
2. Normalise the crop (`data/intensity.py`), in float32:

   | scheme in `plans.json` | value of a voxel v |
   |---|---|
   | CTNormalization | (clip(v, percentile_00_5, percentile_99_5) - mean) / max(std, 1e-8), of the plans |
   | ZScoreNormalization | (v - mean) / max(std, 1e-8), of the crop |
   | the same with `use_mask_for_norm` | mean and std of `nonzero_mask`; v stays as it is outside the mask |
   | RescaleTo01Normalization | (v - minimum) / max(maximum - minimum, 1e-8), of the crop |
   | RGBTo01Normalization | v / 255 |
   | NoNormalization | v |

3. Resample to `resampled_shape`: `data/nnunet_resample.py`, with the axis that `coarse_axis` names.
4. Pad with 0 to the size of a window, half of it in front, rounded down.

Logits take the way back: padding removed, resampled to the shape of the crop, decided, put into the box.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import ndimage

from continual_segment.volume import SliceSource

SLICES_AT_ONCE = 16
ANISOTROPY = 3.0
"""From this ratio of the largest to the smallest voxel size on, one axis may be resampled on its own."""

Box = tuple[slice, slice, slice]


def nonzero_box(voxels: SliceSource) -> Box:
    """The smallest box that holds all voxels other than 0; all of a scan that has none.

    nnU-Net fills the holes of the mask first, which changes no box: a voxel outside the box has a straight
    way to the border and is in no hole.
    """
    depth, height, width = voxels.shape
    found = [np.zeros(length, bool) for length in (depth, height, width)]
    for first in range(0, depth, SLICES_AT_ONCE):
        part = slice(first, min(first + SLICES_AT_ONCE, depth))
        nonzero = voxels[part] != 0
        found[0][part] = nonzero.any(axis=(1, 2))
        found[1] |= nonzero.any(axis=(0, 2))
        found[2] |= nonzero.any(axis=(0, 1))
    z, y, x = map(_reach, found)
    return z, y, x


def _reach(found: np.ndarray) -> slice:
    there = np.flatnonzero(found)
    return slice(int(there[0]), int(there[-1]) + 1) if len(there) else slice(0, len(found))


def nonzero_mask(crop: np.ndarray) -> np.ndarray:
    """Voxels of a crop that are not 0, holes filled: those that `use_mask_for_norm` normalises.

    Of the crop alone: around it everything is 0 and reaches the border, so the holes are those of the scan.
    """
    return np.asarray(ndimage.binary_fill_holes(crop != 0), dtype=bool)


def put_back(labels: np.ndarray, box: Box, shape: Sequence[int]) -> np.ndarray:
    """Labels of a crop in an array of the scan's shape, background around it; no copy if nothing was cut."""
    if labels.shape == tuple(shape):
        return labels
    whole = np.zeros(tuple(shape), labels.dtype)
    whole[box] = labels
    return whole


def resampled_shape(
    shape: Sequence[int], spacing_mm: Sequence[float], new_spacing_mm: Sequence[float]
) -> tuple[int, int, int]:
    """Voxels per axis at another voxel size. At least one: nnU-Net rounds thin scans to none and fails.

    The order of the operations decides how a number such as 51.5 is rounded.
    """
    z, y, x = (
        max(1, round(old / new * length))
        for length, old, new in zip(shape, spacing_mm, new_spacing_mm, strict=True)
    )
    return z, y, x


def coarse_axis(
    spacing_mm: Sequence[float], new_spacing_mm: Sequence[float], separate: bool | None = None
) -> int | None:
    """The axis along which nnU-Net repeats the nearest slice instead of interpolating, if there is one.

    It is the axis with the largest voxel size: of the old voxels if these are anisotropic, otherwise of the
    new ones if those are. If two axes have exactly that size there is none. `separate` is `force_separate_z`
    of the plans. For the way back the arguments are swapped, and the result may be another axis.
    """
    if separate is False:
        return None
    for spacing in (spacing_mm, new_spacing_mm):
        if separate or max(spacing) / min(spacing) > ANISOTROPY:
            largest = [axis for axis, size in enumerate(spacing) if size == max(spacing)]
            return largest[0] if len(largest) == 1 else None
    return None
