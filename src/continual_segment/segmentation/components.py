"""Connected components of organs in a label map, by 26-neighbourhood, from the runs of its lines.

A run is a stretch of one label along a line. A label map has a hundred times fewer runs than voxels, and they
say all about it: runs of neighbouring lines that touch are in one component. So the map is read once for all
organs, some slices at a time, and memory grows with the surfaces of organs.

The slices of a tilted gantry are shifted against each other by up to several pixels. They are moved back
before components are found, so that a thin vessel is one piece on such a grid as well, and boxes are as long
as in the patient.

In:  a label map
Out: Runs, and of some organs the Components
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from continual_segment.volume import Grid, LabelMap

VOXELS_AT_ONCE = 2**20
"""That are read for runs at a time."""
NEXT_LINES = ((0, 1), (1, -1), (1, 0), (1, 1))
"""(z, y) from a line to its neighbours; the others have this line as their neighbour."""


@dataclass(frozen=True, eq=False)
class Boxes:
    """Boxes of components in voxels (z, y, x) of the label map, slices of a tilted gantry moved back."""

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
    """The components of some organs, numbered from 1 in the order of their first voxels."""

    runs: np.ndarray
    """Which of the map's runs belong to them."""
    number: np.ndarray
    """Of the component of each of these."""
    sizes: np.ndarray
    """Voxels by number; that of 0 is 0."""
    boxes: Boxes
    """By number; that of 0 is empty."""

    def runs_of(self, wanted: np.ndarray) -> np.ndarray:
        """The map's runs in `wanted` components (bool by number)."""
        return self.runs[wanted[self.number]]


@dataclass(eq=False)
class Runs:
    """All runs of a label map that are not background, in the order of their voxels."""

    labels: LabelMap
    start: np.ndarray
    """Index of the first voxel in the flattened map."""
    length: np.ndarray
    label: np.ndarray

    @classmethod
    def of(cls, labels: LabelMap) -> Runs:
        """Read from the map, some slices at a time."""
        slices, height, width = labels.voxels.shape
        found = [np.zeros((3, 0), np.int64)]
        at_once = max(1, VOXELS_AT_ONCE // (height * width))
        for first in range(0, slices, at_once):
            lines = labels.voxels[first : first + at_once].reshape(-1, width)
            found.append(_runs_in(lines, first * height * width))
        start, length, label = np.concatenate(found, axis=1)
        return cls(labels, start, length, label)

    @property
    def present(self) -> set[int]:
        """All labels that occur."""
        return set(np.unique(self.label).tolist()) - {0}

    def components(self, organs: Collection[int]) -> Components:
        """Of the union of some labels, of which at least one occurs."""
        chosen = np.flatnonzero(np.isin(self.label, list(organs)))
        z, y, x, end = self._places(chosen)
        number = _numbered(z, y, x, end)
        sizes = np.bincount(number, self.length[chosen]).astype(np.int64)
        first, behind = np.full((len(sizes), 3), np.iinfo(np.int64).max), np.zeros((len(sizes), 3), np.int64)
        for axis, (low, high) in enumerate(((z, z + 1), (y, y + 1), (x, end))):
            np.minimum.at(first[:, axis], number, low)
            np.maximum.at(behind[:, axis], number, high)
        return Components(chosen, number, sizes, Boxes(first, behind, _steps_mm(self.labels.grid)))

    def cut(self, organs: Collection[int]) -> np.ndarray:
        """bool (z, y, x): whether voxels of these labels are at an end of the map."""
        chosen = np.flatnonzero(np.isin(self.label, list(organs)))
        z, y, x = np.unravel_index(self.start[chosen], self.labels.voxels.shape)
        ends = zip((z, y, x), (z, y, x + self.length[chosen] - 1), self.labels.voxels.shape, strict=True)
        return np.array([low.min() == 0 or high.max() == size - 1 for low, high, size in ends])

    def fill(self, runs: np.ndarray, value: int) -> set[int]:
        """Give some runs another label, in the map as well; returns the labels that they had."""
        before = set(np.unique(self.label[runs]).tolist())
        places = zip(*np.unravel_index(self.start[runs], self.labels.voxels.shape), strict=True)
        for (z, y, x), length in zip(places, self.length[runs].tolist(), strict=True):
            self.labels.voxels[z, y, x : x + length] = value
        self.label[runs] = value
        return before

    def _places(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Slice, line, first column and the one behind the last of some runs, with slices moved back."""
        z, y, x = np.unravel_index(self.start[chosen], self.labels.voxels.shape)
        down, across = _offsets(self.labels.grid, self.labels.voxels.shape[0])[z].T
        return z, y + down, x + across, x + across + self.length[chosen]


def _runs_in(lines: np.ndarray, before: int) -> np.ndarray:
    """(3, run): start, length and label of the runs in some lines, which `before` voxels precede."""
    begins = np.ones(lines.shape, bool)
    np.not_equal(lines[:, 1:], lines[:, :-1], out=begins[:, 1:])
    start = np.flatnonzero(begins)
    length, label = np.diff(start, append=lines.size), lines.reshape(-1)[start]
    organ = label > 0
    return np.stack([start[organ] + before, length[organ], label[organ].astype(np.int64)])


def _numbered(z: np.ndarray, y: np.ndarray, x: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The number of each run's component, from 1 in order of appearance."""
    lines, columns = y.max() + 3, end.max() + 2  # with room for neighbours beyond the last
    first, behind = _in_line(z, y, x, lines, columns), _in_line(z, y, end, lines, columns)
    beside = np.flatnonzero(behind[:-1] == first[1:])
    links = [np.stack([beside, beside + 1])]
    for dz, dy in NEXT_LINES:
        # of a neighbouring line, those runs touch that end where this one begins, or later, ...
        low = np.searchsorted(behind, _in_line(z + dz, y + dy, x, lines, columns), side="left")
        # ... and begin where it ends, or sooner: diagonal neighbours count
        high = np.searchsorted(first, _in_line(z + dz, y + dy, end, lines, columns), side="right")
        links.append(_pairs(low, high))
    joined = np.concatenate(links, axis=1)
    graph = sparse.coo_matrix((np.ones(joined.shape[1], bool), joined), (len(z), len(z)))
    _, found = sparse.csgraph.connected_components(graph, directed=False)
    _, appears, component = np.unique(found, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(appears))[component] + 1


def _in_line(z: np.ndarray, y: np.ndarray, x: np.ndarray, lines: int, columns: int) -> np.ndarray:
    """One number for a column of a line, in the order of voxels."""
    return (z * lines + y + 1) * columns + x


def _pairs(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """(2, n): each index with all from its `low` to before its `high`."""
    counts = np.maximum(high - low, 0)
    index = np.repeat(np.arange(len(low)), counts)
    within = np.arange(len(index)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([index, low[index] + within])


def _offsets(grid: Grid, slices: int) -> np.ndarray:
    """Pixels (z, 2), from 0, by which the slices of a grid are shifted in their planes (y, x)."""
    x, y, z = grid.affine[:3, :3].T
    per_slice = np.array([z @ y / (y @ y), z @ x / (x @ x)])
    offsets = np.rint(np.arange(slices)[:, None] * per_slice).astype(int)
    return offsets - offsets.min(axis=0)


def _steps_mm(grid: Grid) -> np.ndarray:
    """Voxel size (z, y, x), with the distance between the planes of slices, shifted or not."""
    x, y, _ = grid.affine[:3, :3].T
    pixel = np.linalg.norm(np.cross(x, y))
    return np.array([1000 * grid.voxel_ml / pixel, np.linalg.norm(y), np.linalg.norm(x)])
