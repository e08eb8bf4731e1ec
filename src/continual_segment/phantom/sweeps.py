"""Solids made by moving a section: up along z (Loft), or along a curved line (Tube)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.interpolate import PchipInterpolator

from continual_segment.phantom.solids import Solid, Union, Vector

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
        self.sections = np.stack(columns, axis=1).astype(np.float32)
        self.square = np.float32(square)
        low = [(middle - half).min() - grow, back.min() - grow, self.bottom]
        high = [(middle + half).max() + grow, front.max() + grow, self.top]
        self.boxes = [np.array([low, high])]

    def depth(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        level = np.clip(z - np.float32(self.bottom), 0, len(self.sections) - 1).astype(np.int32)
        middle_x, middle_y, narrow_x, narrow_y = np.moveaxis(np.take(self.sections, level, axis=0), -1, 0)
        u, v = ((x - middle_x) * narrow_x) ** 2, ((y - middle_y) * narrow_y) ** 2
        square = u + v + np.float32(1e-10)
        if self.square:
            square = square - self.square * np.minimum(u, 1) * np.minimum(v, 1)
        slope = np.sqrt(square / (u * narrow_x**2 + v * narrow_y**2 + np.float32(1e-14)))
        side = (1 - np.sqrt(square)) * slope
        return np.minimum(side, np.minimum(z - np.float32(self.bottom), np.float32(self.top) - z))


def smooth_path(points: np.ndarray, step_mm: float) -> tuple[np.ndarray, np.ndarray]:
    """A cubic curve through the points, sampled evenly; and how far along each sample lies, in mm."""
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

    samples_per_stretch = 12

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
        self.radius = np.maximum(samples[:, 3], 0.5)
        if beads:
            self.radius = self.radius * (1 + beads[1] * np.sin(2 * np.pi * at / beads[0]))
        self.width = np.maximum(samples[:, 4], 0.5) if rows.shape[1] > 4 else self.radius
        tangent = np.gradient(self.line, axis=0)
        tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
        across = np.asarray(axis, float) - tangent * (tangent @ np.asarray(axis, float))[:, None]
        self.across = across / (np.linalg.norm(across, axis=1, keepdims=True) + 1e-9)
        starts = range(0, len(self.line) - 1, self.samples_per_stretch)
        self.stretches = [_Stretch(self, s, s + self.samples_per_stretch + 1) for s in starts]
        self.boxes = [stretch.boxes[0] for stretch in self.stretches]

    @property
    def pieces(self) -> list[Solid]:
        return list(self.stretches)

    def depth(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        return Union(self.stretches).depth(x, y, z)


class _Stretch(Solid):
    """A short piece of a tube: few enough samples to compare every point with each of them."""

    def __init__(self, tube: Tube, start: int, stop: int) -> None:
        self.line = tube.line[start:stop].astype(np.float32)
        self.radius = tube.radius[start:stop].astype(np.float32)
        self.across = tube.across[start:stop].astype(np.float32)
        self.flatter = (tube.radius / tube.width)[start:stop].astype(np.float32)
        self.round = bool(np.allclose(self.flatter, 1))
        reach = float(max(self.radius.max(), tube.width[start:stop].max()))
        self.boxes = [np.stack([self.line.min(0) - reach, self.line.max(0) + reach]).astype(float)]

    def depth(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        flat = (x.reshape(-1, 1), y.reshape(-1, 1), z.reshape(-1, 1))
        square = sum((v - c) ** 2 for v, c in zip(flat, self.line.T, strict=True))
        nearest = square.argmin(1)
        square = np.take_along_axis(square, nearest[:, None], 1)[:, 0]
        if not self.round:
            along = sum(
                (v[:, 0] - c[nearest]) * a[nearest]
                for v, c, a in zip(flat, self.line.T, self.across.T, strict=True)
            )
            square = square + along**2 * (self.flatter**2 - 1)[nearest]
        return (self.radius[nearest] - np.sqrt(np.maximum(square, 0))).reshape(x.shape)
