"""Structure and Body: what anatomy consists of, and the painter that turns it into voxels.

Each voxel gets two answers: which structure it belongs to (anatomy, the source of all labels) and which
tissue fills it (what the scanner sees): a femur is one structure of cortical bone around marrow, a colon one
of wall, stool and gas. Structures are painted in order, later ones over earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from continual_segment.phantom.solids import Box, Solid

AIR = "air"
KEEP = ""
"""A structure of this name changes the tissue only: a tumour in a lobe stays part of the lobe."""


@dataclass(frozen=True)
class Structure:
    """A named part of the body."""

    name: str
    solid: Solid
    tissue: str
    """What it is made of."""
    core: str | None = None
    """What lies deeper than `rind_mm`: marrow in a bone, contents of a hollow organ."""
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
    """The voxels to paint: their atlas coordinates, and quick answers to "which voxels lie in this box?"."""

    slab = 40_000  # voxels that are evaluated at once
    block = 6  # voxels along an edge of the blocks that stand for their voxels

    def __init__(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> None:
        self.coordinates = (x, y, z)
        self.low = [self._reduce(np.minimum, c) for c in self.coordinates]
        self.high = [self._reduce(np.maximum, c) for c in self.coordinates]

    def _reduce(self, what: np.ufunc, values: np.ndarray) -> np.ndarray:
        for axis in range(3):
            values = what.reduceat(values, np.arange(0, values.shape[axis], self.block), axis=axis)
        return values

    def window(self, box: Box) -> tuple[slice, slice, slice] | None:
        """The smallest window of blocks that holds every voxel in the box."""
        touched = np.ones(self.low[0].shape, bool)
        for axis in range(3):
            touched &= (self.high[axis] >= box[0, axis]) & (self.low[axis] <= box[1, axis])
        found = []
        for axis in range(3):
            others = tuple(a for a in range(3) if a != axis)
            line = np.flatnonzero(touched.any(axis=others))
            if not len(line):
                return None
            found.append(slice(int(line[0]) * self.block, (int(line[-1]) + 1) * self.block))
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
    allowed = _replaceable(body, structure)
    name = body.structure_names.index(structure.name) if structure.name != KEEP else None
    tissue = body.tissue_names.index(structure.tissue)
    cores = []
    for piece in structure.solid.pieces:
        for window in (w for box in piece.boxes for w in canvas.windows(box)):
            depth = piece.depth(*(c[window] for c in canvas.coordinates))
            inside = depth > 0
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
        return np.array(body.structure_names) != AIR
    return np.isin(body.structure_names, [*structure.only_over, structure.name])
