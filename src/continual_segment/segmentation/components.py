"""Connected components of an organ in a label map, by 26-neighbourhood, within bounded memory.

The box of an organ with islands may be as large as the scan. Components are found in slabs of a few slices
and joined where slabs meet; only their sizes are kept, and voxels are numbered again where they are needed.

The slices of a tilted gantry are shifted against each other by up to several pixels. They are moved back
before components are found, so that a thin vessel is one piece on such a grid as well, and boxes are as long
as in the patient.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from scipy import ndimage, sparse

from continual_segment.volume import Grid, LabelMap

Box3 = tuple[slice, slice, slice]
NEIGHBOURS = np.ones((3, 3, 3), bool)
SLICES_AT_ONCE = 16


@dataclass(frozen=True, eq=False)
class OrganSlab:
    """Some slices of the box of an organ."""

    labels: LabelMap
    organs: tuple[int, ...]
    """Labels that count as the organ."""
    place: Box3
    """In the label map."""
    offsets: np.ndarray
    """Pixels (z, 2), from 0, by which slices are moved in their planes (y, x)."""
    room: tuple[int, int]
    """Pixels (y, x) that the slices of all slabs need once they are moved."""

    def components(self) -> np.ndarray:
        """Number of the slab's own component at every voxel, from 1; slices are moved."""
        found = self.labels.voxels[self.place]
        mask = found == self.organs[0] if len(self.organs) == 1 else np.isin(found, self.organs)
        if self.offsets.any() or mask.shape[1:] != self.room:
            moved = np.zeros((len(mask), *self.room), bool)
            for target, plane, part in zip(moved, mask, self._parts(mask.shape[1:]), strict=True):
                target[part] = plane
            mask = moved
        return ndimage.label(mask, NEIGHBOURS)[0] if mask.any() else np.zeros(mask.shape, np.int32)

    def at_place(self, moved: np.ndarray) -> np.ndarray:
        """An array with moved slices as one of the voxels in the label map."""
        shape = [part.stop - part.start for part in self.place]
        if not self.offsets.any() and moved.shape[1:] == tuple(shape[1:]):
            return moved
        return np.stack([plane[part] for plane, part in zip(moved, self._parts(shape[1:]), strict=True)])

    def _parts(self, plane_shape: Sequence[int]) -> list[tuple[slice, slice]]:
        lines, columns = plane_shape
        return [(slice(y, y + lines), slice(x, x + columns)) for y, x in self.offsets.tolist()]


@dataclass(frozen=True, eq=False)
class Boxes:
    """Boxes of components in voxels (z, y, x), counted from the corner of the organ's box."""

    first: np.ndarray
    """(component, 3)"""
    end: np.ndarray
    """(component, 3): behind the last voxel."""
    step_mm: np.ndarray
    """Size of a voxel (z, y, x); slices count by the distance of their planes."""

    @property
    def extents_mm(self) -> np.ndarray:
        """(component, 3)"""
        return ((self.end - self.first) * self.step_mm).round(6)  # equal lengths stay equal

    def union(self, components: np.ndarray) -> Boxes:
        """The box of some components, by number or by a bool for each."""
        first, end = self.first[components].min(axis=0), self.end[components].max(axis=0)
        return Boxes(first[None], end[None], self.step_mm)


@dataclass(frozen=True, eq=False)
class Components:
    """The components of an organ, numbered from 1."""

    slabs: tuple[OrganSlab, ...]
    number_of: tuple[np.ndarray, ...]
    """Per slab, by the number of its own component, the number of the one that this belongs to; 0 is 0."""
    sizes: np.ndarray
    """Voxels by number; that of 0 is 0."""
    boxes: Boxes
    """By number; that of 0 is empty."""

    def numbered(self, wanted: np.ndarray) -> Iterator[tuple[Box3, np.ndarray]]:
        """Slabs with `wanted` components (bool by number): place in the label map, and every voxel's number.

        Voxels outside of the organ have number 0.
        """
        for slab, number_of in zip(self.slabs, self.number_of, strict=True):
            if wanted[number_of].any():
                yield slab.place, slab.at_place(number_of[slab.components()])


def boxes_of(labels: LabelMap) -> dict[int, Box3]:
    """Label -> the box of its voxels, of all labels that occur."""
    found = ndimage.find_objects(labels.voxels, max_label=max([0, *labels.names]))
    return {label: box for label, box in enumerate(found, start=1) if box is not None}


def components_of(labels: LabelMap, organs: Collection[int], boxes: Mapping[int, Box3]) -> Components:
    """Components of the union of some labels, of which at least one has a box."""
    slabs = tuple(slabs_of(labels, tuple(organs), _union([boxes[each] for each in organs if each in boxes])))
    sizes, links, firsts = [np.zeros(1, int)], [], [0]
    corners = [np.zeros((1, 2, 3), int)]
    below = np.zeros(slabs[0].room, int)
    for slab in slabs:
        own = slab.components()
        bottom, top = (np.where(plane, plane + firsts[-1], 0) for plane in (own[0], own[-1]))
        links.append(_touching(below, bottom))
        sizes.append(np.bincount(own[own > 0])[1:])
        corners.append(_corners(own, slab.place[0].start - slabs[0].place[0].start))
        firsts.append(firsts[-1] + len(sizes[-1]))  # own number + first: unique among all slabs
        below = top
    joined = _joined(firsts[-1] + 1, np.concatenate(links, axis=1))
    number_of = [np.append(0, joined[first + 1 : end + 1]) for first, end in pairwise(firsts)]
    total = np.bincount(joined, np.concatenate(sizes)).astype(np.int64)
    first, end = np.concatenate(corners).transpose(1, 0, 2)
    joined_boxes = Boxes(*_joined_boxes(joined, first, end), _steps_mm(labels.grid))
    return Components(slabs, tuple(number_of), total, joined_boxes)


def slabs_of(labels: LabelMap, organs: tuple[int, ...], box: Box3) -> Iterator[OrganSlab]:
    """The box of an organ in slabs."""
    offsets = _offsets(labels.grid, box)
    lines, columns = (part.stop - part.start for part in box[1:])
    room = lines + int(offsets[:, 0].max()), columns + int(offsets[:, 1].max())
    for first in range(box[0].start, box[0].stop, SLICES_AT_ONCE):
        part = slice(first, min(first + SLICES_AT_ONCE, box[0].stop))
        own = offsets[part.start - box[0].start : part.stop - box[0].start]
        yield OrganSlab(labels, organs, (part, *box[1:]), own, room)


def _union(boxes: Collection[Box3]) -> Box3:
    z, y, x = (
        slice(min(part.start for part in along), max(part.stop for part in along))
        for along in zip(*boxes, strict=True)
    )
    return z, y, x


def _offsets(grid: Grid, box: Box3) -> np.ndarray:
    """Pixels (z, 2), from 0, by which the slices of a grid are shifted in their planes (y, x)."""
    x, y, z = grid.affine[:3, :3].T
    per_slice = np.array([z @ y / (y @ y), z @ x / (x @ x)])
    offsets = np.rint(np.arange(box[0].start, box[0].stop)[:, None] * per_slice).astype(int)
    return offsets - offsets.min(axis=0)


def _steps_mm(grid: Grid) -> np.ndarray:
    """Voxel size (z, y, x), with the distance between the planes of slices, shifted or not."""
    x, y, _ = grid.affine[:3, :3].T
    pixel = np.linalg.norm(np.cross(x, y))
    return np.array([1000 * grid.voxel_ml / pixel, np.linalg.norm(y), np.linalg.norm(x)])


def _corners(own: np.ndarray, slices_below: int) -> np.ndarray:
    """(component, 2, 3): first voxel of every component of a slab, and the one behind the last."""
    found = [box for box in ndimage.find_objects(own) if box is not None]
    boxes = [[[part.start for part in box], [part.stop for part in box]] for box in found]
    return np.array(boxes, int).reshape(-1, 2, 3) + np.array([slices_below, 0, 0])


def _joined_boxes(joined: np.ndarray, first: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Boxes of components whose parts in the slabs have these boxes; `joined` numbers the parts."""
    count = joined.max() + 1
    lowest, highest = np.full((count, 3), np.iinfo(int).max), np.zeros((count, 3), int)
    np.minimum.at(lowest, joined, first)
    np.maximum.at(highest, joined, end)
    return lowest, highest


def _touching(below: np.ndarray, above: np.ndarray) -> np.ndarray:
    """Pairs (2, n) of components in two neighbouring planes (y, x) that have voxels beside each other."""
    keys = [np.zeros(0, np.int64)]
    for dy, dx in product((-1, 0, 1), repeat=2):
        lower = below[max(0, dy) : len(below) + min(0, dy), max(0, dx) : below.shape[1] + min(0, dx)]
        upper = above[max(0, -dy) : len(above) + min(0, -dy), max(0, -dx) : above.shape[1] + min(0, -dx)]
        both = (lower > 0) & (upper > 0)
        keys.append(np.unique((lower[both].astype(np.int64) << 32) + upper[both]))
    pairs = np.unique(np.concatenate(keys))
    return np.stack([pairs >> 32, pairs & 0xFFFFFFFF])


def _joined(count: int, links: np.ndarray) -> np.ndarray:
    """By the number of a slab's component, that of the component it belongs to, in order of appearance."""
    graph = sparse.coo_matrix((np.ones(links.shape[1]), links), (count, count))
    _, found = sparse.csgraph.connected_components(graph, directed=False)
    _, first, joined = np.unique(found, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[joined]
