"""Where to look at an organ: a voxel of it, in the slice that shows most of it."""

from __future__ import annotations

import numpy as np
from scipy import ndimage

from continual_segment.volume import LabelMap


def middle_of_each(labels: LabelMap) -> dict[int, list[float]]:
    """Label -> millimetres right, anterior, superior of a voxel that carries it."""
    middles = {}
    for label, box in enumerate(ndimage.find_objects(labels.voxels), start=1):
        if box is not None:
            z, y, x = middle_of(labels.voxels[box] == label) + [part.start for part in box]
            middles[label] = [round(float(mm), 2) for mm in (labels.grid.affine @ [x, y, z, 1])[:3]]
    return middles


def middle_of(mask: np.ndarray) -> np.ndarray:
    """Index (z, y, x): of the slice with most voxels, the voxel nearest to the middle of them."""
    z = mask.sum(axis=(1, 2)).argmax()
    voxels = np.argwhere(mask[z])
    nearest = np.linalg.norm(voxels - voxels.mean(axis=0), axis=1).argmin()
    return np.array([z, *voxels[nearest]])
