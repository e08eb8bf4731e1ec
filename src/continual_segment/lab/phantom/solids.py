"""Parametric solids: the shapes that anatomy is made of.

Every solid answers one question: how many millimetres below its surface is a point (negative
outside)? From that follow booleans (min, max), shells (a range of depths), a cortex around a core. Depths
are first-order estimates, good to a few per cent near the surface, where they are used.

Points are three arrays x, y, z in millimetres right, anterior, superior. `boxes` bounds where a solid can
possibly be, so that a painter never evaluates it elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

FAR_MM = 1e4
Vector = Sequence[float] | np.ndarray
Box = np.ndarray
"""(2, 3): lowest and highest x, y, z."""
EVERYWHERE: Box = np.array([[-FAR_MM] * 3, [FAR_MM] * 3])


class Solid:
    """A shape; see the module docstring for what `depth` means."""

    boxes: list[Box]

    def depth(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def depth_inside(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Like `depth` inside the solid; anything below zero outside. For painting, which is cheaper so."""
        return self.depth(x, y, z)

    @property
    def pieces(self) -> list[Solid]:
        """Solids whose union this is: small pieces are cheaper to paint than the whole."""
        return [self]

    @cached_property
    def box(self) -> Box:
        """One box around all boxes."""
        return np.stack([np.min([b[0] for b in self.boxes], 0), np.max([b[1] for b in self.boxes], 0)])

    def __or__(self, other: Solid) -> Solid:
        return Union([self, other])

    def __and__(self, other: Solid) -> Solid:
        return Intersection(self, other)

    def __sub__(self, other: Solid) -> Solid:
        return Intersection(self, Outside(other))

    def grown(self, by_mm: float) -> Solid:
        """The same shape, thicker all around (thinner for a negative size)."""
        return Grown(self, by_mm)

    def shell(self, thickness_mm: float) -> Solid:
        """Only the outermost layer, inwards from the surface."""
        return self - self.grown(-thickness_mm)

    def mirrored(self) -> Solid:
        """The same organ on the other side of the body."""
        return Mirrored(self)

    def moved(self, shift: Vector = (0, 0, 0), scale: float = 1.0) -> Solid:
        """Scaled about its own middle, then shifted (millimetres right, anterior, superior)."""
        return Moved(self, np.asarray(shift, float), scale)


class Union(Solid):
    def __init__(self, solids: Sequence[Solid]) -> None:
        self.solids = solids
        hull = np.stack([np.min([s.box[0] for s in solids], 0), np.max([s.box[1] for s in solids], 0)])
        self.boxes = [hull]

    @property
    def pieces(self) -> list[Solid]:
        return [piece for solid in self.solids for piece in solid.pieces]

    def depth(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        result = self.solids[0].depth(x, y, z)
        for solid in self.solids[1:]:
            result = np.maximum(result, solid.depth(x, y, z))
        return result


class Intersection(Solid):
    def __init__(self, first: Solid, second: Solid) -> None:
        self.first, self.second = first, second
        limit = second.box
        cut = [np.stack([np.maximum(b[0], limit[0]), np.minimum(b[1], limit[1])]) for b in first.boxes]
        self.boxes = [b for b in cut if (b[0] < b[1]).all()] or [np.zeros((2, 3))]

    @property
    def pieces(self) -> list[Solid]:
        return [Intersection(piece, self.second) for piece in self.first.pieces]

    def depth(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        return np.minimum(self.first.depth(x, y, z), self.second.depth(x, y, z))

    def depth_inside(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        """The second solid is evaluated only at points inside the first."""
        result = self.first.depth_inside(x, y, z)
        inside = result > 0
        if inside.any():
            result[inside] = np.minimum(
                result[inside], self.second.depth_inside(x[inside], y[inside], z[inside])
            )
        return result


class Outside(Solid):
    """Everything but the solid; only ever used inside an intersection."""

    def __init__(self, solid: Solid) -> None:
        self.solid = solid
        self.boxes = [EVERYWHERE]

    def depth(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        return -self.solid.depth(x, y, z)


class Grown(Solid):
    def __init__(self, solid: Solid, by_mm: float) -> None:
        self.solid, self.by_mm = solid, by_mm
        margin = max(by_mm, 0)
        self.boxes = [np.stack([b[0] - margin, b[1] + margin]) for b in solid.boxes]

    @property
    def pieces(self) -> list[Solid]:
        return [Grown(piece, self.by_mm) for piece in self.solid.pieces]

    def depth(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        return self.solid.depth(x, y, z) + self.by_mm


class Mirrored(Solid):
    def __init__(self, solid: Solid) -> None:
        self.solid = solid
        flip = np.array([-1.0, 1.0, 1.0])
        self.boxes = [np.sort(b * flip, axis=0) for b in solid.boxes]

    @property
    def pieces(self) -> list[Solid]:
        return [Mirrored(piece) for piece in self.solid.pieces]

    def depth(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        return self.solid.depth(-x, y, z)


class Moved(Solid):
    def __init__(
        self, solid: Solid, shift: np.ndarray, scale: float, centre: np.ndarray | None = None
    ) -> None:
        self.solid, self.shift, self.scale = solid, shift, scale
        self.centre = solid.box.mean(0) if centre is None else centre
        self.boxes = [(b - self.centre) * scale + self.centre + shift for b in solid.boxes]

    @property
    def pieces(self) -> list[Solid]:
        return [Moved(piece, self.shift, self.scale, self.centre) for piece in self.solid.pieces]

    def depth(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        c, s, k = self.centre, self.shift, np.float32(1 / self.scale)
        back = [(v - np.float32(c[i] + s[i])) * k + np.float32(c[i]) for i, v in enumerate((x, y, z))]
        return self.solid.depth(*back) * np.float32(self.scale)


class HalfSpace(Solid):
    """All points on the near side of a plane; `normal` points out of the solid."""

    def __init__(self, point: Vector, normal: Vector) -> None:
        self.normal = np.asarray(normal, np.float32) / np.float32(np.linalg.norm(normal))
        self.offset = np.float32(np.dot(self.normal, point))
        self.boxes = [EVERYWHERE]

    def depth(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        a, b, c = self.normal
        return self.offset - (a * x + b * y + c * z)


class Block(Solid):
    """A box with faces along the axes; None leaves a side open."""

    def __init__(self, **limits: tuple[float | None, float | None]) -> None:
        pairs = [limits.get(axis, (None, None)) for axis in "xyz"]
        low = [-FAR_MM if a is None else a for a, _ in pairs]
        high = [FAR_MM if b is None else b for _, b in pairs]
        self.boxes = [np.array([low, high], float)]

    def depth(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        low, high = self.boxes[0].astype(np.float32)
        result = np.minimum(x - low[0], high[0] - x)
        for axis, v in ((1, y), (2, z)):
            if high[axis] - low[axis] < 2 * FAR_MM:
                result = np.minimum(result, np.minimum(v - low[axis], high[axis] - v))
        return result


def turn_matrix(degrees: Vector) -> np.ndarray:
    """Rotation about x, then y, then z."""
    a, b, c = np.radians(degrees)
    about_x = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
    about_y = np.array([[np.cos(b), 0, np.sin(b)], [0, 1, 0], [-np.sin(b), 0, np.cos(b)]])
    about_z = np.array([[np.cos(c), -np.sin(c), 0], [np.sin(c), np.cos(c), 0], [0, 0, 1]])
    return about_z @ about_y @ about_x


class Ellipsoid(Solid):
    def __init__(self, centre: Vector, half: Vector, turn: Vector = (0, 0, 0)) -> None:
        self.centre = np.asarray(centre, np.float32)
        self.half = np.asarray(half, np.float32)
        self.rotation = turn_matrix(turn).astype(np.float32)
        self.turned = any(turn)
        reach = np.sqrt(((self.rotation * self.half) ** 2).sum(1))
        self.boxes = [np.stack([self.centre - reach, self.centre + reach]).astype(float)]

    def depth(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        along = [v - c for v, c in zip((x, y, z), self.centre, strict=True)]
        if self.turned:
            dx, dy, dz = along
            along = [a * dx + b * dy + c * dz for a, b, c in self.rotation.T]
        narrow = 1 / self.half
        for axis in range(3):
            along[axis] *= narrow[axis]
            along[axis] *= along[axis]
        square = along[0] + along[1]
        square += along[2]
        square += np.float32(1e-12)
        slope = along[0] * narrow[0] ** 2
        for axis in (1, 2):
            along[axis] *= narrow[axis] ** 2
            slope += along[axis]
        slope += np.float32(1e-12) / self.half.mean() ** 2
        radius = np.sqrt(square)
        return (radius - square) / np.sqrt(slope, out=slope)
