"""Connected components of an organ in a label map, by 26-neighbourhood, in the organ's own box.

The slices of a tilted gantry are shifted against each other by up to several pixels. They are moved back
before components are found, so that a thin vessel is one piece on such a grid as well.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from scipy import ndimage

from continual_segment.volume import Grid, LabelMap

Box3 = tuple[slice, slice, slice]
NEIGHBOURS = np.ones((3, 3, 3), bool)


class Components(NamedTuple):
    """The components of an organ."""

    box: Box3
    """Part of the label map that holds them."""
    numbers: np.ndarray
    """(z, y, x) in the box: number of the component, from 1; 0 outside of the organ."""
    sizes: np.ndarray
    """Voxels by number; that of 0 is 0."""


def boxes_of(labels: LabelMap) -> dict[int, Box3]:
    """Label -> the box of its voxels, of all labels that occur."""
    found = ndimage.find_objects(labels.voxels, max_label=max([0, *labels.names]))
    return {label: box for label, box in enumerate(found, start=1) if box is not None}


def components_of(labels: LabelMap, organs: Collection[int], boxes: Mapping[int, Box3]) -> Components:
    """Components of the union of some labels; at least one of them has a box."""
    box = _union([boxes[organ] for organ in organs if organ in boxes])
    mask = np.isin(labels.voxels[box], list(organs))
    offsets = _offsets(labels.grid, box)
    if offsets is None:
        numbers, count = ndimage.label(mask, NEIGHBOURS)
    else:
        moved, count = ndimage.label(_moved(mask, offsets), NEIGHBOURS)
        numbers = _moved_back(moved, offsets, mask.shape)
    sizes = np.bincount(numbers.ravel(), minlength=count + 1)
    sizes[0] = 0
    return Components(box, numbers, sizes)


def _union(boxes: Collection[Box3]) -> Box3:
    z, y, x = (
        slice(min(part.start for part in along), max(part.stop for part in along))
        for along in zip(*boxes, strict=True)
    )
    return z, y, x


def _offsets(grid: Grid, box: Box3) -> np.ndarray | None:
    """Pixels (z, 2), from 0, by which slices are shifted in their planes (y, x); None: not at all."""
    x, y, z = grid.affine[:3, :3].T
    per_slice = np.array([z @ y / (y @ y), z @ x / (x @ x)])
    offsets = np.rint(np.arange(box[0].start, box[0].stop)[:, None] * per_slice).astype(int)
    offsets -= offsets.min(axis=0)
    return offsets if offsets.any() else None


def _moved(mask: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """The slices at their places relative to each other, in an array with room for all."""
    slices, lines, columns = mask.shape
    wider, further = offsets.max(axis=0)
    moved = np.zeros((slices, lines + wider, columns + further), bool)
    for target, plane, (y, x) in zip(moved, mask, offsets, strict=True):
        target[y : y + lines, x : x + columns] = plane
    return moved


def _moved_back(numbers: np.ndarray, offsets: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    _, lines, columns = shape
    planes = [plane[y : y + lines, x : x + columns] for plane, (y, x) in zip(numbers, offsets, strict=True)]
    return np.stack(planes)
