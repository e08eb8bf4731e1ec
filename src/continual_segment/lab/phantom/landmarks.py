"""The spine as the body's ruler: heights of the vertebrae and the line of their bodies.

All numbers are atlas millimetres (the reference man): x to the right, y to the front, z to the head, with
z = 0 at the lower end-plate of L5 and y = 0 near the middle of the trunk.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.interpolate import PchipInterpolator

PITCH_MM = {  # height of each vertebra with the disc above it, from the sacrum up
    **dict(zip(("L5", "L4", "L3", "L2", "L1"), (35, 36, 36, 35, 34), strict=True)),
    **{
        f"T{n}": mm
        for n, mm in zip(range(12, 0, -1), (31, 29, 27, 26, 25, 24, 23, 22, 22, 21, 20, 20), strict=True)
    },
    **{f"C{n}": mm for n, mm in zip(range(7, 0, -1), (18, 17, 17, 17, 17, 22, 14), strict=True)},
}
VERTEBRAE = tuple(PITCH_MM)
"""L5 to C1, from below."""

_BODY_LINE = [  # z, y of the middle of the vertebral bodies
    (-20, -24), (0, -16), (18, -11), (53, -5), (89, -7), (124, -15), (159, -26), (191, -36), (221, -45),
    (250, -52), (276, -57), (302, -60), (326, -62), (350, -62), (372, -60), (394, -56), (415, -50),
    (436, -43), (456, -35), (475, -28), (492, -22), (510, -18), (526, -15), (543, -14), (563, -14),
    (590, -14),
]  # fmt: skip
_CURVE = PchipInterpolator(*np.array(_BODY_LINE, float).T)


@dataclass(frozen=True)
class Level:
    """One vertebra's place."""

    name: str
    bottom: float
    """z of its lower end-plate."""
    pitch: float
    middle_y: float
    """y of the middle of its body."""
    tilt: float
    """Slope of the spine here: how far it runs forward for each millimetre up."""

    @property
    def middle_z(self) -> float:
        return self.bottom + 0.4 * self.pitch


def body_line_y(z: float | np.ndarray) -> np.ndarray:
    """y of the middle of the vertebral bodies at a height."""
    return np.asarray(_CURVE(np.clip(z, -20, 590)))


def spine_y(z: float) -> float:
    """The same for one height."""
    return float(body_line_y(z))


def _levels() -> dict[str, Level]:
    found, bottom = {}, 0.0
    for name, pitch in PITCH_MM.items():
        middle = bottom + 0.4 * pitch
        found[name] = Level(name, bottom, pitch, float(_CURVE(middle)), float(_CURVE(middle, 1)))
        bottom += pitch
    return found


LEVELS = _levels()
REGION_STARTS = {  # lower end-plates that part the body
    "hip_thigh": -np.inf,
    "abdomen": LEVELS["L5"].bottom,
    "chest": LEVELS["T11"].bottom,
    "head_neck": LEVELS["T2"].bottom,
}


def canal_y(z: float) -> float:
    """y of the middle of the spinal canal."""
    behind = np.interp(z, [-40, 150, 250, 440, 490, 580], [27, 27, 24, 23, 18.5, 17])
    return float(body_line_y(z) - behind)
