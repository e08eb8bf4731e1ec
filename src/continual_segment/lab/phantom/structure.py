"""Structure and Body: what anatomy consists of, and the painter that turns it into voxels.

Each voxel gets two answers: which structure it belongs to (anatomy, the source of all labels) and which
tissue fills it (what the scanner sees): a femur is one structure of cortical bone around marrow, a colon one
of wall, stool and gas. Structures are painted in order, later ones over earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from continual_segment.lab.phantom.solids import Box, Solid

AIR = "air"
KEEP = ""
"""A structure of this name changes the tissue only: a tumour in a lobe stays part of the lobe."""
_OTHERS = ((1, 2), (0, 2), (0, 1))
"""For each axis the other two."""


@dataclass(frozen=True)
class Structure:
    """A named part of the body."""

    name: str
    solid: Solid
    tissue: str
    """What it is made of."""
    core: str | None = None
    """What is deeper than `rind_mm`: marrow in a bone, contents of a hollow organ."""
    rind_mm: float = 0.0
    only_over: frozenset[str] | None = None
    """Structures it may replace; None: any, but never the air around the body."""
    outline: bool = False
    """Whether it shapes the body's surface, and so may replace the air around it."""


@dataclass(frozen=True)
class Body:
    """A painted body: ids of structures and of tissues, (z, y, x); 0 is the air outside."""

    structures: np.ndarray
    tissues: np.ndarray
    structure_names: tuple[str, ...]
    """Name of every structure id."""
    tissue_names: tuple[str, ...]

    def mask(self, *names: str) -> np.ndarray:
        """Where any of these structures is."""
        wanted = np.isin(np.array(self.structure_names), names)
        return wanted[self.structures]


class Canvas:
    """The voxels to paint: their atlas coordinates, and quick answers to "which voxels are in this box?"."""

    slab = 40_000  # voxels that are evaluated at once
    block = 3  # voxels along an edge of the blocks that represent their voxels

    def __init__(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> None:
        self.coordinates = (x, y, z)
        self.low = [self._reduce(np.minimum, c) for c in self.coordinates]
        self.high = [self._reduce(np.maximum, c) for c in self.coordinates]
        # the same per layer of blocks across each axis of the image
        self.lowest = [[low.min(axis=others) for others in _OTHERS] for low in self.low]
        self.highest = [[high.max(axis=others) for others in _OTHERS] for high in self.high]

    def _reduce(self, what: np.ufunc, values: np.ndarray) -> np.ndarray:
        for axis in range(3):
            by_layer = np.moveaxis(values, axis, 0)
            found = by_layer[:: self.block].copy()
            for start in range(1, self.block):
                layers = by_layer[start :: self.block]
                what(found[: len(layers)], layers, out=found[: len(layers)])
            values = np.moveaxis(found, 0, axis)
        return np.ascontiguousarray(values)

    def shows(self, box: Box) -> bool:
        """Whether anything in the box can be in the image."""
        return all(
            self.lowest[axis][0].min() <= box[1, axis] and self.highest[axis][0].max() >= box[0, axis]
            for axis in range(3)
        )

    def window(self, box: Box) -> tuple[slice, slice, slice] | None:
        """The smallest window of blocks that holds every voxel in the box."""
        rough = self._layers(box)
        if rough is None:
            return None
        touched: np.ndarray | None = None
        for axis in range(3):
            within = (self.high[axis][rough] >= box[0, axis]) & (self.low[axis][rough] <= box[1, axis])
            touched = within if touched is None else touched & within
        assert touched is not None
        found = []
        for layers, others in zip(rough, _OTHERS, strict=True):
            line = np.flatnonzero(touched.any(axis=others))
            if not len(line):
                return None
            first, last = layers.start + int(line[0]), layers.start + int(line[-1])
            found.append(slice(first * self.block, (last + 1) * self.block))
        return found[0], found[1], found[2]

    def _layers(self, box: Box) -> tuple[slice, slice, slice] | None:
        """A first guess, never too small: the layers of blocks that reach into the box."""
        found = []
        for image_axis in range(3):
            within = np.ones(self.low[0].shape[image_axis], bool)
            for axis in range(3):
                within &= self.highest[axis][image_axis] >= box[0, axis]
                within &= self.lowest[axis][image_axis] <= box[1, axis]
            line = np.flatnonzero(within)
            if not len(line):
                return None
            found.append(slice(int(line[0]), int(line[-1]) + 1))
        return found[0], found[1], found[2]

    def windows(self, box: Box) -> Iterator[tuple[slice, slice, slice]]:
        """The window around a box in slabs small enough for the processor's cache."""
        window = self.window(box)
        if window is None:
            return
        z, y, x = window
        bottom, top, _ = z.indices(self.coordinates[0].shape[0])
        step = max(1, self.slab // ((y.stop - y.start) * (x.stop - x.start)))
        for start in range(bottom, top, step):
            yield slice(start, min(start + step, top)), y, x


def paint(canvas: Canvas, structures: Sequence[Structure]) -> Body:
    """Voxels of all structures, later ones over earlier ones."""
    names = (AIR, *dict.fromkeys(s.name for s in structures if s.name != KEEP))
    tissues = (AIR, *dict.fromkeys(t for s in structures for t in (s.tissue, s.core) if t))
    assert len(names) < 256, "structure ids are bytes"
    assert len(tissues) < 256, "tissue ids are bytes"
    shape = canvas.coordinates[0].shape
    body = Body(np.zeros(shape, np.uint8), np.zeros(shape, np.uint8), names, tissues)
    for structure in structures:
        _paint_structure(body, canvas, structure)
    return body


def _paint_structure(body: Body, canvas: Canvas, structure: Structure) -> None:
    """All pieces first, then all cores: where pieces overlap, the deeper one decides."""
    if not canvas.shows(structure.solid.box):
        return
    allowed = _replaceable(body, structure)
    name = body.structure_names.index(structure.name) if structure.name != KEEP else None
    tissue = body.tissue_names.index(structure.tissue)
    cores = []
    for piece in structure.solid.pieces:
        for window in (w for box in piece.boxes for w in canvas.windows(box)):
            depth = piece.depth_inside(*(c[window] for c in canvas.coordinates))
            inside = depth > 0
            if not inside.any():
                continue
            if not structure.outline:
                inside &= allowed[body.structures[window]]
            if name is not None:
                body.structures[window][inside] = name
            body.tissues[window][inside] = tissue
            if structure.core is not None:
                cores.append((window, inside & (depth > structure.rind_mm)))
    for window, core in cores:
        body.tissues[window][core] = body.tissue_names.index(str(structure.core))


def _replaceable(body: Body, structure: Structure) -> np.ndarray:
    """Per structure id: may this structure be painted over it?"""
    if structure.only_over is None:
        return np.array([name != AIR for name in body.structure_names])
    return np.array([name in structure.only_over or name == structure.name for name in body.structure_names])
