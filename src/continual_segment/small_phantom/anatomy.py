"""A small body: some twenty organs of simple shape, each in its place.

Solids live in a frame of the body, millimetres right, anterior, superior of its centre; a patient is the
same body with other sizes, a few organs moved, and everything bent a little. `paint` lays solids down in
order, so a later one wins where two meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Point = tuple[float, float, float]
Inside = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]

BODY_MM = (280.0, 200.0, 500.0)
"""Right-left, front-back, foot-head: a slight body, so that it stays small in memory."""


@dataclass(frozen=True)
class Solid:
    """One structure: what it is made of and which points lie in it."""

    name: str
    hu: float
    inside: Inside


def ellipsoid(centre: Point, radii: Point) -> Inside:
    def inside(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        x, y, z = ((axis - c) / r for axis, c, r in zip((x, y, z), centre, radii, strict=True))
        return x**2 + y**2 + z**2 <= 1

    return inside


def tube(points: Sequence[Point], radius: float | Sequence[float]) -> Inside:
    """A tube along z through points of rising height; its axis is interpolated between them."""
    heights = [point[2] for point in points]

    def inside(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        centre_x, centre_y = (np.interp(z, heights, [point[i] for point in points]) for i in (0, 1))
        width = np.interp(z, heights, np.broadcast_to(radius, len(points)))
        within = (z >= heights[0]) & (z <= heights[-1])
        return within & ((x - centre_x) ** 2 + (y - centre_y) ** 2 <= width**2)

    return inside


@dataclass(frozen=True)
class Patient:
    """What differs between bodies; drawn from a seed."""

    seed: int
    scale: Point
    """Factor on each axis."""
    tumour: bool = False
    """A tumour that thickens and bends the esophagus."""

    @classmethod
    def draw(cls, seed: int, tumour: bool) -> Patient:
        x, y, z = np.random.default_rng((seed, 1)).uniform(0.9, 1.1, 3)
        return cls(seed, (float(x), float(y), float(z)), tumour)


def solids(patient: Patient) -> list[Solid]:
    """The patient's structures in the order they are painted."""
    rng = np.random.default_rng((patient.seed, 2))

    def jitter(centre: Point, spread_mm: float = 4.0) -> Point:
        x, y, z = np.add(centre, rng.uniform(-spread_mm, spread_mm, 3))
        return float(x), float(y), float(z)

    def blob(name: str, hu: float, centre: Point, radii: Point) -> Solid:
        size = rng.uniform(0.9, 1.1)
        return Solid(name, hu, ellipsoid(jitter(centre), (size * radii[0], size * radii[1], size * radii[2])))

    def pair(name: str, hu: float, centre: Point, radii: Point) -> list[Solid]:
        """An organ of both sides; x of the centre is on the right."""
        x, y, z = centre
        return [blob(f"{name}_right", hu, (x, y, z), radii), blob(f"{name}_left", hu, (-x, y, z), radii)]

    return [
        Solid("body", -90, ellipsoid((0, 0, -60), (130, 92, 230))),
        Solid("muscle", 45, ellipsoid((0, 0, -60), (120, 80, 225))),
        Solid("neck", 40, tube([(0, -5, 90), (0, 0, 170)], 45)),
        Solid("skull", 800, ellipsoid((0, 5, 195), (60, 72, 55))),
        blob("brain", 36, (0, 5, 200), (51, 61, 44)),
        *pair("eye", 10, (27, 60, 172), (18, 18, 18)),
        *pair("parotid", -30, (42, -5, 138), (17, 20, 24)),
        *pair("lung_upper_lobe", -820, (60, 0, 45), (38, 55, 38)),
        *pair("lung_lower_lobe", -780, (60, -12, -15), (42, 52, 45)),
        Solid("heart", 120, ellipsoid(jitter((-12, 25, 0)), (38, 34, 36))),
        blob("sternum", 420, (0, 68, 35), (16, 9, 45)),
        Solid("spine", 500, tube([(0, -52, -250), (0, -48, -100), (0, -58, 20), (0, -42, 140)], 18)),
        Solid("spinal_cord", 30, tube([(0, -52, -250), (0, -48, -100), (0, -58, 20), (0, -42, 150)], 8)),
        blob("liver", 110, (52, 18, -82), (58, 52, 36)),
        blob("spleen", 130, (-78, -22, -72), (24, 30, 32)),
        blob("stomach", 20, (-42, 28, -72), (36, 30, 30)),
        *pair("kidney", 170, (52, -32, -128), (21, 22, 36)),
        *pair("hip", 480, (62, -15, -215), (30, 38, 36)),
        blob("urinary_bladder", 5, (0, 22, -220), (28, 26, 22)),
        Solid("aorta", 230, tube([jitter((-8, -24, -200)), (-14, -26, -60), (-10, -26, 45)], 12)),
        Solid("superior_vena_cava", 190, tube([(20, 18, 10), jitter((22, 14, 70), 2)], 11)),
        Solid("trachea", -950, tube([jitter((0, -2, 20), 2), (0, 10, 145)], 11)),
        *pair("thyroid", 150, (26, 14, 108), (15, 14, 24)),
        *esophagus(patient, rng),
    ]


def esophagus(patient: Patient, rng: np.random.Generator) -> list[Solid]:
    """Behind the trachea down to the stomach; a tumour makes a stretch of it thick, bright and crooked."""
    path = [
        (-20.0, -2.0, -70.0),
        (-6.0, -14.0, -20.0),
        (3.0, -22.0, 30.0),
        (0.0, -18.0, 90.0),
        (0.0, -12.0, 140.0),
    ]
    if not patient.tumour:
        return [Solid("esophagus", 40, tube(path, 11))]
    middle = float(rng.uniform(-20, 60))
    shift = float(rng.uniform(4, 9))
    heights = np.linspace(path[0][2], path[-1][2], 30)
    bump = np.exp(-0.5 * ((heights - middle) / 20) ** 2)
    axis = [np.interp(heights, [p[2] for p in path], [p[i] for p in path]) for i in (0, 1)]
    bent = [
        (float(x + shift * b), float(y), float(z)) for x, y, z, b in zip(*axis, heights, bump, strict=True)
    ]
    thick = (11 + 7 * bump).tolist()
    return [
        Solid("esophagus", 40, tube(bent, thick)),
        Solid(
            "tumour", 75, ellipsoid((shift, float(np.interp(middle, heights, axis[1])), middle), (13, 13, 24))
        ),
    ]


def paint(patient: Patient, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, list[Solid]]:
    """The index + 1 of the solid at every point (0: air), for points in body millimetres."""
    rng = np.random.default_rng((patient.seed, 3))
    phase, size = rng.uniform(0, 2 * np.pi, 3), rng.uniform(1, 4, 3)
    bend = [s * np.sin(z / 90 + p) for s, p in zip(size, phase, strict=True)]  # one slow wave along the body
    x, y, z = (axis / scale + b for axis, scale, b in zip((x, y, z), patient.scale, bend, strict=True))
    painted = np.zeros(np.broadcast(x, y, z).shape, dtype=np.uint8)
    structures = solids(patient)
    for number, solid in enumerate(structures, start=1):
        painted[np.broadcast_to(solid.inside(x, y, z), painted.shape)] = number
    return painted, structures
