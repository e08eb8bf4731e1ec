"""Vertebrae, discs, sacrum and spinal canal."""

from __future__ import annotations

from functools import cache

import numpy as np

from continual_segment.lab.phantom.landmarks import LEVELS, VERTEBRAE, Level, canal_y
from continual_segment.lab.phantom.solids import Block, Ellipsoid, Solid, Union
from continual_segment.lab.phantom.structure import Structure
from continual_segment.lab.phantom.sweeps import Tube

# interpolated along the column: index in VERTEBRAE (0 = L5, 4 = L1, 5 = T12, 16 = T1, 17 = C7, 23 = C1)
_AT = [0, 4, 5, 10, 16, 17, 22, 23]
_HALF_WIDTH = [26, 23, 22, 16, 15, 13.5, 10, 10]
_HALF_DEPTH = [18, 17, 16, 15, 11, 9.5, 8, 8]
_CANAL = [10.5, 10, 9.5, 8.5, 9.0, 9.5, 10, 12]
_TRANSVERSE = [44, 40, 26, 33, 36, 28, 24, 36]  # reach from the midline
_SPINOUS = [28, 30, 28, 30, 32, 34, 20, 6]  # reach behind the canal's middle
_SPINOUS_DROP = [4, 4, 8, 24, 16, 10, 4, 0]


class Vertebra(Solid):
    """Body, arch around the canal, transverse and spinous processes, in the vertebra's own tilted frame."""

    def __init__(self, level: Level, place: int) -> None:
        self.level = level
        half_width, half_depth, self.canal, self.transverse, self.spinous, self.drop = (
            float(np.interp(place, _AT, table))
            for table in (_HALF_WIDTH, _HALF_DEPTH, _CANAL, _TRANSVERSE, _SPINOUS, _SPINOUS_DROP)
        )
        self.half = (half_width, half_depth, 0.41 * level.pitch)
        self.behind = level.middle_y - canal_y(level.middle_z)
        reach = max(self.transverse, half_width) + 6
        low = [-reach, level.middle_y - self.behind - self.spinous - 12, level.bottom - 30]
        high = [reach, level.middle_y + half_depth + 6, level.bottom + level.pitch + 14]
        self.boxes = [np.array([low, high])]

    def depth(self, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
        level = self.level
        across = np.abs(x)
        forward = y - np.float32(level.middle_y)
        up = z - np.float32(level.middle_z)
        forward, up = forward - level.tilt * up, up + level.tilt * forward
        behind = forward + np.float32(self.behind)  # from the canal's middle
        pieces = [self._processes(across, behind, up), self._arch(across, behind, up)]
        if level.name != "C1":
            pieces.append(self._body(across, forward, up))
        if level.name == "C2":  # the tooth, up into the ring of C1
            pieces.append(_pin(across, forward - 1, up - 19, 5.0, 5.0, 12.0))
        return np.maximum.reduce(pieces).astype(np.float32)

    def _body(self, across: np.ndarray, forward: np.ndarray, up: np.ndarray) -> np.ndarray:
        width, deep, high = self.half
        waist = 0.93 + 0.07 * (up / high) ** 2
        radius = np.sqrt((across / width) ** 2 + (forward / deep) ** 2) / waist
        return np.minimum((1 - radius) * 0.5 * (width + deep), high - np.abs(up))

    def _arch(self, across: np.ndarray, behind: np.ndarray, up: np.ndarray) -> np.ndarray:
        thick = 4.5 if self.half[0] < 15 else 5.5
        if self.level.name == "C1":
            ring = np.sqrt((across / 1.25) ** 2 + (behind - 5) ** 2) - (self.canal + 4)
            return np.minimum(thick + 0.5 - np.abs(ring), 6 - np.abs(up))
        radius = np.sqrt((across / 1.15) ** 2 + behind**2)
        wall = thick / 2 + 0.8 - np.abs(radius - self.canal - thick / 2)
        return np.minimum(wall, 0.72 * self.half[2] - np.abs(up + 0.1 * self.half[2]))

    def _processes(self, across: np.ndarray, behind: np.ndarray, up: np.ndarray) -> np.ndarray:
        start = self.canal + 2
        sloped = up + self.drop * np.clip(-behind - start, 0, None) / self.spinous
        spinous = np.minimum.reduce([
            4.0 - across,
            -behind - start,
            behind + self.spinous,
            0.42 * self.half[2] + 2 - np.abs(sloped + 2),
        ])  # fmt: skip
        back = 0.30 * np.clip(across - start, 0, None)
        transverse = np.minimum.reduce([
            self.transverse - across,
            across - start,
            5.0 - np.abs(behind + back - 2),
            5.5 - np.abs(up),
        ])  # fmt: skip
        facet = _pin(across - start - 3, behind + 6, up, 6.0, 6.0, self.half[2])
        return np.maximum.reduce([spinous, transverse, facet])


def _pin(a: np.ndarray, b: np.ndarray, c: np.ndarray, ra: float, rb: float, rc: float) -> np.ndarray:
    return (1 - np.sqrt((a / ra) ** 2 + (b / rb) ** 2 + (c / rc) ** 2)) * min(ra, rb, rc)


def _disc(name: str, place: int) -> Solid:
    level = LEVELS[name]
    half_width, half_depth = (float(np.interp(place, _AT, t)) for t in (_HALF_WIDTH, _HALF_DEPTH))
    top = level.bottom + 0.9 * level.pitch
    y = level.middle_y + level.tilt * 0.5 * level.pitch
    return Ellipsoid((0, y, top), (half_width * 0.97, half_depth * 0.97, 0.17 * level.pitch))


def _sacrum() -> Solid:
    plate = Tube(
        # x, y, z, half thickness, half width
        [(0, -24, -4, 19, 40), (0, -34, -22, 18, 52), (0, -50, -45, 15, 44), (0, -63, -68, 11, 30),
         (0, -68, -86, 8, 19), (0, -62, -104, 6, 10), (0, -52, -118, 4, 6)],
        axis=(1, 0, 0),
    )  # fmt: skip
    crest = Tube([(0, -62, -12, 7), (0, -72, -40, 7), (0, -78, -66, 5)])
    return (plate | crest) & Block(z=(None, -1.0))


def cord_line(top: float = 592.0, bottom: float = 150.0) -> list[tuple[float, float, float]]:
    """Middle of the spinal canal from above, every 20 mm."""
    return [(0.0, canal_y(z), float(z)) for z in np.linspace(top, bottom, 23)]


@cache
def spine_structures() -> list[Structure]:
    """The same in everybody but for how the body is bent, which the map to the patient does."""
    discs = Union([_disc(name, k) for k, name in enumerate(VERTEBRAE[:-2])])
    found = [Structure("disc", discs, "disc")]
    found.append(Structure("sacrum", _sacrum(), "cortical_bone", "spongy_bone", 2.5))
    for place, name in enumerate(VERTEBRAE):
        solid = Vertebra(LEVELS[name], place)
        found.append(Structure(f"vertebrae_{name}", solid, "cortical_bone", "spongy_bone", 2.0))
    canal = [(x, y, z, 9.0) for x, y, z in cord_line(588, -60)]
    cord = [
        (x, y, z, float(np.interp(z, [150, 190, 300, 440, 500, 590], [2.5, 5.0, 4.6, 4.8, 6.2, 6.0])))
        for x, y, z in cord_line()
    ]
    found.append(Structure("spinal_canal", Tube(canal), "csf"))
    found.append(Structure("spinal_cord", Tube(cord), "cord"))
    return found
