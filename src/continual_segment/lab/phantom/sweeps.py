"""Solids made by moving a section: up along z (Loft), or along a curved line (Tube)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.interpolate import PchipInterpolator

from continual_segment.lab.phantom.solids import Solid, Union, Vector

Rows = Sequence[Sequence[float]] | np.ndarray


class Loft(Solid):
    """Rounded cross-sections stacked along z.

    `table` has rows (z, half width, back y, front y); `centre_x` may follow z too. `square` makes the
    sections boxier: 0 is an ellipse, 1 a rectangle.
    """

    def __init__(
        self,
        table: Rows,
        centre_x: float | Vector = 0.0,
        square: float = 0.0,
        grow: float = 0.0,
    ) -> None:
        rows = np.asarray(table, float)
        rows = rows[rows[:, 0].argsort()]
        self.bottom, self.top = rows[0, 0], rows[-1, 0]
        fine = np.arange(self.bottom, self.top + 1.0)
        half, back, front = (PchipInterpolator(rows[:, 0], rows[:, k])(fine) for k in (1, 2, 3))
        middle = np.broadcast_to(np.asarray(centre_x, float), len(rows))
        middle = PchipInterpolator(rows[:, 0], middle)(fine)
        columns = (middle, (front + back) / 2, 1 / (half + grow), 1 / ((front - back) / 2 + grow))
        # middle x, middle y, one over half width, one over half depth, every millimetre
        self.sections = [column.astype(np.float32) for column in columns]
        self.square = np.float32(square)
        low = [(middle - half).min() - grow, back.min() - grow, self.bottom]
        high = [(middle + half).max() + grow, front.max() + grow, self.top]
        self.boxes = [np.array([low, high])]

    def depth(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        above = z - np.float32(self.bottom)
        level = np.clip(above, 0, len(self.sections[0]) - 1).astype(np.intp)
        middle_x, middle_y, narrow_x, narrow_y = (column.take(level) for column in self.sections)
        u, v = np.subtract(x, middle_x, out=middle_x), np.subtract(y, middle_y, out=middle_y)
        for part, narrow in ((u, narrow_x), (v, narrow_y)):
            part *= narrow
            part *= part
            narrow *= narrow
        square = u + v
        square += np.float32(1e-10)
        if self.square:
            square -= self.square * np.minimum(u, 1) * np.minimum(v, 1)
        u *= narrow_x
        v *= narrow_y
        u += v
        u += np.float32(1e-14)
        side = np.sqrt(square / u, out=u)
        side *= 1 - np.sqrt(square, out=square)
        return np.minimum(side, np.minimum(above, np.float32(self.top) - z, out=above), out=side)


def smooth_path(points: np.ndarray, step_mm: float) -> tuple[np.ndarray, np.ndarray]:
    """A cubic curve through the points, sampled evenly; and the position of each sample along it, in mm."""
    points = np.asarray(points, float)
    length = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(points[:, :3], axis=0), axis=1))])
    count = max(int(length[-1] / step_mm) + 1, 4)
    at = np.linspace(0, length[-1], count)
    slopes = np.gradient(points, length, axis=0) if len(points) > 2 else None
    return _hermite(length, points, slopes, at), at


def _hermite(knots: np.ndarray, values: np.ndarray, slopes: np.ndarray | None, at: np.ndarray) -> np.ndarray:
    if slopes is None:
        slopes = np.repeat(np.diff(values, axis=0) / np.diff(knots)[:, None], 2, axis=0)
    k = np.clip(np.searchsorted(knots, at, side="right") - 1, 0, len(knots) - 2)
    width = (knots[k + 1] - knots[k])[:, None]
    t = ((at - knots[k])[:, None]) / width
    a, b, c, d = 2 * t**3 - 3 * t**2 + 1, t**3 - 2 * t**2 + t, -2 * t**3 + 3 * t**2, t**3 - t**2
    return a * values[k] + b * width * slopes[k] + c * values[k + 1] + d * width * slopes[k + 1]


class Tube(Solid):
    """A round or flattened section swept along a smooth centre line.

    `points` has rows (x, y, z, radius) or (x, y, z, radius, width): with a width, the section is an ellipse
    with half-axis `width` along `axis` (made perpendicular to the line) and `radius` across it. `beads`
    (wave length in mm, share of the radius) makes pouches, as along a bowel.
    """

    tolerance_mm = 0.25
    """How far the straight segments that the line is painted with may be off it."""
    longest_mm = 28.0
    """Longer segments have boxes with much in them that is not tube."""
    segments_per_stretch = 3

    def __init__(
        self,
        points: Rows,
        axis: Vector = (0.0, 0.0, 1.0),
        beads: tuple[float, float] | None = None,
    ) -> None:
        rows = np.asarray(points, float)
        step_mm = float(np.clip(0.5 * rows[:, 3].mean(), 1.5, 7.0))
        samples, at = smooth_path(rows, step_mm)
        self.line = samples[:, :3]
        samples[:, 3:] = np.maximum(samples[:, 3:], 0.5)
        if beads:
            samples[:, 3] *= 1 + beads[1] * np.sin(2 * np.pi * at / beads[0])
        knots = self._knots(samples, at)
        starts = range(0, len(knots) - 1, self.segments_per_stretch)
        across = _perpendicular(knots[:, :3], np.asarray(axis, float)) if rows.shape[1] > 4 else None
        self.stretches = [
            _Stretch(knots[part], None if across is None else across[part])
            for part in (slice(s, s + self.segments_per_stretch + 1) for s in starts)
        ]
        self.boxes = [stretch.boxes[0] for stretch in self.stretches]

    def _knots(self, samples: np.ndarray, at: np.ndarray) -> np.ndarray:
        """As few of the curve's points as straight segments between them allow, given the tolerance."""
        step = at[1] - at[0]
        bend = np.zeros(len(at))
        bend[1:-1] = np.sqrt((np.diff(samples, 2, axis=0) ** 2).sum(1)) / step**2
        per_mm = np.maximum(np.sqrt(bend / (8 * self.tolerance_mm)), 1 / self.longest_mm)
        count = np.concatenate([[0], np.cumsum(0.5 * (per_mm[1:] + per_mm[:-1]) * step)])
        place = np.interp(np.linspace(0, count[-1], int(np.ceil(count[-1])) + 1), count, at / step)
        left = np.minimum(place.astype(int), len(at) - 2)
        return samples[left] + (samples[left + 1] - samples[left]) * (place - left)[:, None]

    @property
    def pieces(self) -> list[Solid]:
        return list(self.stretches)

    def depth(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        return Union(self.stretches).depth(x, y, z)


def _perpendicular(line: np.ndarray, axis: np.ndarray) -> np.ndarray:
    """Per point of a line, the part of `axis` that is perpendicular to it, of length one."""
    tangent = np.gradient(line, axis=0)
    tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
    across = axis - tangent * (tangent @ axis)[:, None]
    return across / (np.linalg.norm(across, axis=1, keepdims=True) + 1e-9)


class _Stretch(Solid):
    """A few straight segments of a tube."""

    def __init__(self, knots: np.ndarray, across: np.ndarray | None) -> None:
        line, reach = knots[:, :3], knots[:, 3:].max()
        self.boxes = [np.stack([line.min(0) - reach, line.max(0) + reach])]
        way = np.diff(line, axis=0)
        self.starts = line[:-1].astype(np.float32)
        self.ways = way.astype(np.float32)
        self.shares = (way / (way**2).sum(1, keepdims=True)).astype(np.float32)  # of the way, per mm along it
        self.radii = knots[:-1, 3].astype(np.float32)
        self.widening = np.diff(knots[:, 3]).astype(np.float32)
        self.across: np.ndarray | None = None
        if across is not None:
            self.across = (across[:-1] + across[1:]).astype(np.float32) / 2
            flatter = (knots[:, 3] / knots[:, 4]) ** 2 - 1
            self.flatter = ((flatter[:-1] + flatter[1:]) / 2).astype(np.float32)

    def depth(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        result = self._segment_depth(0, x, y, z)
        for segment in range(1, len(self.starts)):
            np.maximum(result, self._segment_depth(segment, x, y, z), out=result)
        return result

    def _segment_depth(self, k: int, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        off = [v - start for v, start in zip((x, y, z), self.starts[k], strict=True)]
        share = _dot(off, self.shares[k])
        np.clip(share, 0, 1, out=share)
        for v, way in zip(off, self.ways[k], strict=True):
            v -= share * way
        along = None if self.across is None else _dot(off, self.across[k])
        for v in off:
            v *= v
        square = off[0]
        square += off[1]
        square += off[2]
        if along is not None:
            along *= along
            along *= self.flatter[k]
            square += along
            np.maximum(square, 0, out=square)
        share *= self.widening[k]
        share += self.radii[k]
        share -= np.sqrt(square, out=square)
        return share


def _dot(vector: Sequence[np.ndarray], by: np.ndarray) -> np.ndarray:
    result = vector[0] * by[0]
    result += vector[1] * by[1]
    result += vector[2] * by[2]
    return result
