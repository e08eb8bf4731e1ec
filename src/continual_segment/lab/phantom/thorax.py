"""The chest cage: pleural cavity, ribs with cartilages, sternum."""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.interpolate import PchipInterpolator

from continual_segment.lab.phantom.landmarks import LEVELS, canal_y
from continual_segment.lab.phantom.patient import Patient
from continual_segment.lab.phantom.solids import Solid, Union
from continual_segment.lab.phantom.structure import Structure
from continual_segment.lab.phantom.sweeps import Loft, Tube

CAVITY = [  # z, half width, back y, front y of the inner surface of the chest wall
    (478, 20, -56, -26), (470, 42, -72, -8), (455, 66, -86, 10), (435, 86, -95, 30), (405, 105, -102, 48),
    (370, 117, -105, 62), (340, 126, -106, 72), (310, 132, -106, 80), (280, 136, -104, 86),
    (250, 139, -100, 90), (220, 140, -95, 93), (190, 138, -90, 94), (160, 135, -86, 94), (130, 130, -84, 94),
]  # fmt: skip
_COLUMNS = np.array(sorted(CAVITY), float).T
_HALF_WIDTH, _BACK, _FRONT = (PchipInterpolator(_COLUMNS[0], column) for column in _COLUMNS[1:])

RIBS = {  # number: (fall from spine to front end in mm, angle of that end: 0 at the spine, 180 at the front)
    1: (26, 160), 2: (48, 160), 3: (70, 160), 4: (92, 158), 5: (110, 155), 6: (126, 151),
    7: (138, 147), 8: (138, 139), 9: (128, 129), 10: (108, 116), 11: (82, 90), 12: (48, 52),
}  # fmt: skip


@cache
def cavity(grow: float = 0.0) -> Loft:
    """Inside of the chest wall; grown outwards for what is on the ribs."""
    return Loft(CAVITY, square=0.25, grow=grow)


def wall_point(angle_degrees: float, z: float, outside_mm: float) -> tuple[float, float, float]:
    """A point of the chest wall on the right: angle 0 at the back, 90 at the side, 180 at the front."""
    level = np.clip(z, 130, 476)
    half_x = float(_HALF_WIDTH(level)) + outside_mm
    half_y = float(_FRONT(level) - _BACK(level)) / 2 + outside_mm
    middle = float(_FRONT(level) + _BACK(level)) / 2
    angle = np.radians(angle_degrees)
    sine, cosine = np.sin(angle), -np.cos(angle)
    corner = 1 + 0.06 * (2 * sine * cosine) ** 2  # sections of the cavity are slightly boxy
    return half_x * sine * corner, middle + half_y * cosine * corner, float(z)


@cache
def rib_line(number: int) -> list[tuple[float, float, float]]:
    """Centre line of a right rib, from its vertebra to its front end."""
    level = LEVELS[f"T{number}"]
    fall, last = RIBS[number]
    start = level.middle_z + (0.30 * level.pitch if number < 11 else 0.0)
    neck_y = canal_y(start)
    near = 20.0 if number > 2 else 18.0
    joint = (near, neck_y + 12.0, start)
    tubercle = (near + 18.0, neck_y - 9.0, start - 3.0)
    first = 34.0 if number > 1 else 48.0
    angles = np.linspace(first, last, 9)
    share = (angles - first) / (last - first)
    heights = start - 5.0 - (fall - 5.0) * (0.25 * share + 0.75 * share**1.5)
    if number > 10:  # floating ribs run straight down
        heights = start - 5.0 - (fall - 5.0) * share
    around = [wall_point(a, z, 4.5) for a, z in zip(angles, heights, strict=True)]
    return [joint, tubercle, *around]


def _rib(number: int, thickness: float) -> Solid:
    line = rib_line(number)
    radius = (3.6 if number > 1 else 3.2) * thickness
    high = (6.3 if number > 1 else 6.0) * thickness
    rows = [(*p, radius + 0.4, high * (0.75 if k < 2 else 1.0)) for k, p in enumerate(line)]
    return Tube(rows, axis=(0.0, 0.0, 1.0) if number > 1 else (0.5, 0.6, -0.2))


@cache
def _cartilage(number: int) -> Solid:
    """From a rib's front end to the sternum, or to the cartilage above."""
    end = np.array(rib_line(number)[-1])
    before = np.array(rib_line(number)[-2])
    onwards = end + (end - before) / np.linalg.norm(end - before) * 12
    if number <= 7:
        z = float(np.interp(number, [1, 2, 3, 5, 7], [420, 386, 358, 310, 284]))
        goal = np.array([float(np.interp(number, [1, 2, 7], [26, 20, 14])), sternum_y(z), z])
    else:
        above = np.array(rib_line(number - 1)[-1])
        goal = 0.75 * above + 0.25 * np.array([14.0, sternum_y(284.0), 284.0])
    middle = 0.45 * onwards + 0.55 * goal + [0, 4, -12 if number > 4 else 0]
    return Tube([(*end, 4, 6), (*onwards, 4, 6), (*middle, 4, 6), (*goal, 4, 6)])


STERNUM = [  # y, z, half thickness, half width
    (44, 430, 6, 24), (50, 416, 7, 28), (58, 396, 6.5, 20), (63, 383, 6, 16), (76, 340, 6, 17),
    (87, 300, 6, 19), (90, 282, 5.5, 15), (92, 266, 4, 7), (93, 256, 3, 4),
]  # fmt: skip


def sternum_y(z: float) -> float:
    rows = np.array(sorted((row[1], row[0]) for row in STERNUM), float)
    return float(np.interp(z, rows[:, 0], rows[:, 1]))


def thorax_structures(patient: Patient) -> list[Structure]:
    thickness = patient.scale_of("ribs")
    cartilages = [_cartilage(n) for n in range(1, 11)]
    both = [side for c in cartilages for side in (c, c.mirrored())]
    found = [Structure("costal_cartilage", piece, "cartilage") for piece in both]
    for number in RIBS:
        rib = _rib(number, thickness)
        found.append(Structure(f"rib_right_{number}", rib, "cortical_bone", "spongy_bone", 2.2))
        found.append(Structure(f"rib_left_{number}", rib.mirrored(), "cortical_bone", "spongy_bone", 2.2))
    plate = Tube([(0, *row) for row in STERNUM], axis=(1, 0, 0))
    found.append(Structure("sternum", Union([plate]), "cortical_bone", "spongy_bone", 2.2))
    return found
