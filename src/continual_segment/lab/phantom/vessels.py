"""The vascular tree: every vessel starts where another ends, so the tree hangs together by its points.

Paths are rows (x, y, z, radius) in atlas millimetres. Paired vessels are given for the right side.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from continual_segment.lab.phantom import heart
from continual_segment.lab.phantom.chest import LOBES
from continual_segment.lab.phantom.landmarks import spine_y
from continual_segment.lab.phantom.patient import Patient
from continual_segment.lab.phantom.structure import KEEP, Structure
from continual_segment.lab.phantom.sweeps import Tube

Point = tuple[float, float, float]
Path = Sequence[tuple[float, ...]]

ARCH_START: Point = (14, 26, 396)
ARCH_END: Point = (-28, -38, 392)
AORTIC_FORK: Point = (-2, 26, 54)
TRUNK_FORK: Point = (19, 4, 440)
"""Where the brachiocephalic trunk parts into right carotid and subclavian."""
VEIN_ANGLE: Point = (36, 10, 448)
"""Meeting of jugular and subclavian vein."""
CAVAL_ORIGIN: Point = (30, 20, 416)
CAVAL_FORK: Point = (16, 20, 40)
LUNG_FORK: Point = (-14, 8, 372)
SPLENIC_MEETING: Point = (10, 34, 148)

ARCH = [(*ARCH_START, 15), (-1, 8, 409, 14.2), (-20, -14, 408, 13.2), (*ARCH_END, 12.5)]
DESCENDING = [  # x, distance before the middle of the vertebral bodies, z, radius
    (-27, 18, 360, 12.2), (-25, 18, 320, 12), (-19, 22, 275, 11.6), (-11, 26, 230, 11), (-7, 28, 190, 10.6),
    (-9, 28, 150, 10), (-10, 28, 110, 9.5), (-7, 28, 80, 9.2),
]  # fmt: skip
TRUNK = [(8, 14, 402, 7), (14, 10, 420, 6.5), (*TRUNK_FORK, 7.5)]
CAROTID = [(23, 3, 455, 4), (26, 0, 470, 3.9), (28, 0, 500, 3.9), (30, -1, 526, 4.2), (31, -3, 540, 4.4)]
INNER_CAROTID = [(31, -3, 540, 3.4), (30, -7, 565, 3), (27, -4, 590, 2.8)]
SUBCLAVIAN = [(36, -9, 453, 4.6), (58, -4, 464, 4.5), (78, 0, 458, 4.3), (118, 0, 436, 4)]
LEFT_CAROTID_START = [(-9, -2, 412, 4.4), (-17, 0, 438, 4.1)]
LEFT_SUBCLAVIAN_START = [(-23, -22, 410, 5.2), (-27, -18, 436, 5)]
VERTEBRAL = [  # from the subclavian, through the holes of C6 to C1 and the foramen magnum
    (40, -8, 458, 3.2), (31, -14, 475, 3.0),
    *((23.5, spine_y(z) - 6, z, 2.9) for z in (493, 510, 526, 543, 560)),
    (31, -24, 578, 2.9), (26, -36, 586, 2.9), (10, -28, 594, 2.8),
]  # fmt: skip

JUGULAR = [
    (*VEIN_ANGLE, 7), (37, 6, 465, 6.5), (38, 2, 490, 6), (39, -2, 520, 5.6), (38, -8, 555, 5),
    (34, -14, 592, 4),
]  # fmt: skip
SUBCLAVIAN_VEIN = [(*VEIN_ANGLE, 6.2), (56, 16, 449, 5.8), (84, 16, 440, 5.4), (118, 8, 424, 5)]
BRACHIOCEPHALIC_RIGHT = [(*VEIN_ANGLE, 7.2), (33, 16, 434, 7.5), (*CAVAL_ORIGIN, 8)]
BRACHIOCEPHALIC_LEFT = [(-36, 10, 448, 7), (-22, 28, 438, 7), (4, 36, 426, 7), (*CAVAL_ORIGIN, 7.2)]
AZYGOS = [
    *((9, spine_y(z) + 19, z, 3.6) for z in (190, 230, 270, 310, 345, 370)),
    (12, -30, 390, 4.4), (22, -12, 396, 4.6), (31, 12, 390, 4.6),
]  # fmt: skip
UPPER_CAVA = [(*CAVAL_ORIGIN, 8.6), (32, 17, 385, 9.2), (34, 16, 355, 9.4)]
LOWER_CAVA = [
    (*CAVAL_FORK, 10), (19, 20, 75, 10), (20, 18, 120, 10.5), (21, 12, 165, 11), (22, 2, 205, 11.5),
    (26, 6, 240, 12),
]  # fmt: skip

RIGHT_PULMONARY = [(*LUNG_FORK, 10.5), (8, 2, 369, 10), (30, -4, 364, 9.2), (50, -12, 354, 7)]
LEFT_PULMONARY = [(*LUNG_FORK, 10.5), (-28, -8, 374, 9.5), (-46, -20, 366, 7.5), (-56, -26, 352, 6)]
LUNG_VEINS = [  # relative to the middle of the left atrium: an upper and a lower one
    [(22, 2, 10, 6.5), (38, 4, 18, 6), (54, 8, 30, 4.5)],
    [(24, -4, -8, 6.5), (40, -12, -14, 6), (56, -20, -26, 4.5)],
]

ILIAC_ARTERY = [
    (22, 22, 22, 6.2), (40, 10, -14, 5.6), (56, 14, -50, 5.2), (70, 34, -85, 5), (78, 50, -112, 4.8),
    (80, 50, -140, 4.6),
]  # fmt: skip
ILIAC_VEIN = [
    (32, 12, 10, 7.6), (42, 0, -18, 7), (52, 4, -50, 6.6), (62, 24, -85, 6.4), (68, 42, -112, 6.2),
    (68, 42, -140, 6),
]  # fmt: skip
LEFT_ILIAC_VEIN_START = [(*CAVAL_FORK, 8), (-6, 14, 22, 7.4)]
SPLENIC = [
    (*SPLENIC_MEETING, 5.6),
    (-18, 25, 156, 5),
    (-46, 8, 164, 4.8),
    (-70, -16, 170, 4.6),
    (-84, -28, 174, 4.4),
]
PORTAL = [(*SPLENIC_MEETING, 7), (22, 36, 160, 7), (38, 40, 176, 7), (52, 38, 186, 6), (70, 30, 196, 4.5)]
MESENTERIC_VEIN = [(*SPLENIC_MEETING, 5.5), (8, 44, 120, 5), (8, 46, 85, 4)]
MESENTERIC_ARTERY = [(-9, 14, 150, 4), (-6, 36, 138, 4), (-2, 42, 90, 3.5)]
RENAL = [[(14, 22, 132, 4.5), (45, -4, 126, 4.5)], [(-8, 22, 138, 4.5), (-48, -8, 134, 4.5)]]


def _vessel(name: str, blood: str, path: Path, scale: float) -> Structure:
    return Structure(name, Tube([(x, y, z, r * scale) for x, y, z, r in path]), f"{blood}_blood")


def _left(path: Path) -> list[tuple[float, ...]]:
    return [(-x, *rest) for x, *rest in path]


def aorta_structures(patient: Patient) -> list[Structure]:
    size = patient.scale_of("aorta")
    ascending = [
        (*heart.aortic_root(patient), 15),
        (10, 30, 345, 15.5),
        (17, 32, 370, 15.5),
        (*ARCH_START, 15),
    ]
    down = [(x, spine_y(z) + before, z, r) for x, before, z, r in DESCENDING]
    return [
        _vessel("descending_aorta", "arterial", [(*ARCH_END, 12.5), *down, (*AORTIC_FORK, 9)], size),
        _vessel("ascending_aorta", "arterial", ascending, size),
        _vessel("aorta_arch", "arterial", ARCH, size),
    ]


def neck_artery_structures(patient: Patient) -> list[Structure]:
    """Branches first, so that each vessel is whole up to where the next one leaves it."""
    paths: list[tuple[str, Path]] = [
        ("internal_carotid_artery", INNER_CAROTID),
        ("internal_carotid_artery", _left(INNER_CAROTID)),
        ("common_carotid_artery_right", [(*TRUNK_FORK, 4.4), *CAROTID]),
        ("common_carotid_artery_left", [*LEFT_CAROTID_START, *_left(CAROTID)]),
        ("vertebral_artery_right", VERTEBRAL),
        ("vertebral_artery_left", _left(VERTEBRAL)),
        ("subclavian_artery_right", [(*TRUNK_FORK, 5), *SUBCLAVIAN]),
        ("subclavian_artery_left", [*LEFT_SUBCLAVIAN_START, *_left(SUBCLAVIAN)]),
        ("brachiocephalic_trunk", TRUNK),
    ]
    return [_vessel(name, "arterial", path, patient.scale_of("arteries")) for name, path in paths]


def vein_structures(patient: Patient) -> list[Structure]:
    x, y, z = heart.atrium(patient, "right")
    paths: list[tuple[str, str, Path]] = [
        ("subclavian_vein_right", "venous", SUBCLAVIAN_VEIN),
        ("subclavian_vein_left", "venous", _left(SUBCLAVIAN_VEIN)),
        ("internal_jugular_vein_right", "venous", JUGULAR),
        ("internal_jugular_vein_left", "venous", _left(JUGULAR)),
        ("brachiocephalic_vein_left", "venous", BRACHIOCEPHALIC_LEFT),
        ("brachiocephalic_vein_right", "venous", BRACHIOCEPHALIC_RIGHT),
        ("azygos_vein", "venous", AZYGOS),
        ("superior_vena_cava", "right", [*UPPER_CAVA, (x - 8, y - 4, z + 26, 10)]),
        ("inferior_vena_cava", "venous", [*LOWER_CAVA, (x - 14, y - 10, z - 32, 12.5)]),
    ]
    return [_vessel(name, blood, path, patient.scale_of("veins")) for name, blood, path in paths]


def pulmonary_structures(patient: Patient) -> list[Structure]:
    size = patient.scale_of("veins")
    trunk = [(*heart.pulmonary_valve(patient), 13.5), (-20, 34, 358, 13.5), (*LUNG_FORK, 12.5)]
    found = [_vessel("pulmonary_artery", "right", p, size) for p in (trunk, RIGHT_PULMONARY, LEFT_PULMONARY)]
    x, y, z = heart.atrium(patient, "left")
    for side in (1, -1):
        for vein in LUNG_VEINS:
            path = [(x + side * dx, y + dy, z + dz, r) for dx, dy, dz, r in vein]
            found.append(_vessel("pulmonary_vein", "left", path, size))
    return found


def lung_vessel_structures(patient: Patient) -> list[Structure]:
    """Branches inside the lungs: texture for the eye, part of their lobe for the labels."""
    rng = np.random.default_rng([patient.seed, 5])
    found = []
    for side in (1, -1):
        for _ in range(16):
            direction = rng.normal(size=3) * [0.8, 1.1, 1.3] + [0.75, 0, 0]
            direction /= np.linalg.norm(direction)
            start = np.array([44.0, -18.0, 355.0]) + rng.normal(0, 5, 3)
            bend = start + direction * 40 + rng.normal(0, 7, 3)
            end = bend + direction * 45 + rng.normal(0, 16, 3)
            branch = Tube([(*(p * [side, 1, 1]), r) for p, r in ((start, 4.0), (bend, 2.8), (end, 1.4))])
            found.append(Structure(KEEP, branch, "lung_vessel", only_over=frozenset(LOBES)))
    return found


def abdominal_vessel_structures(patient: Patient) -> list[Structure]:
    artery, vein = patient.scale_of("arteries"), patient.scale_of("veins")
    return [
        *(_vessel("renal_vessel", "venous", path, vein) for path in RENAL),
        _vessel("superior_mesenteric", "arterial", MESENTERIC_ARTERY, artery),
        _vessel("superior_mesenteric", "portal", MESENTERIC_VEIN, vein),
        _vessel("portal_vein_and_splenic_vein", "portal", SPLENIC, vein),
        _vessel("portal_vein_and_splenic_vein", "portal", PORTAL, vein),
        _vessel("iliac_vena_right", "venous", [(*CAVAL_FORK, 8), *ILIAC_VEIN], vein),
        _vessel("iliac_vena_left", "venous", [*LEFT_ILIAC_VEIN_START, *_left(ILIAC_VEIN[1:])], vein),
        _vessel("iliac_artery_right", "arterial", [(*AORTIC_FORK, 6.6), *ILIAC_ARTERY], artery),
        _vessel("iliac_artery_left", "arterial", [(*AORTIC_FORK, 6.6), *_left(ILIAC_ARTERY)], artery),
    ]
