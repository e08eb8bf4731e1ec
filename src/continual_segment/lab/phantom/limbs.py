"""Shoulders, arms, pelvis and thighs: bones and the muscles that are labelled."""

from __future__ import annotations

from functools import cache, lru_cache

from continual_segment.lab.phantom.landmarks import spine_y
from continual_segment.lab.phantom.patient import Patient
from continual_segment.lab.phantom.solids import Block, Ellipsoid, HalfSpace, Solid, Union
from continual_segment.lab.phantom.structure import Structure
from continual_segment.lab.phantom.sweeps import Loft, Tube
from continual_segment.lab.phantom.thorax import cavity, wall_point

BOWL = [  # z, half width, back y, front y: the pelvic bowl that carries the iliac wings
    (60, 136, -66, 104), (30, 134, -66, 104), (0, 127, -66, 104), (-30, 110, -66, 96), (-60, 92, -66, 84),
    (-95, 84, -64, 74),
]  # fmt: skip
AUTOCHTHON = [  # z, x, distance behind the vertebral bodies, half thickness, half width
    (-60, 20, 30, 9, 15), (-20, 30, 42, 17, 25), (30, 36, 46, 21, 31), (80, 38, 47, 22, 33),
    (150, 38, 46, 21, 33), (220, 34, 46, 17, 29), (300, 28, 44, 15, 23), (400, 25, 42, 13, 21),
    (470, 24, 40, 16, 19), (530, 22, 38, 16, 16), (580, 20, 36, 10, 13),
]  # fmt: skip
PSOAS = [  # x, distance before the middle of the vertebral bodies, z, radius
    (27, -4, 150, 8), (34, -4, 115, 14), (41, -4, 75, 19), (50, 0, 35, 22), (60, 10, -5, 21),
]  # fmt: skip
PSOAS_TENDON = [  # x, y, z, radius
    (72, 16, -50, 19), (82, 24, -85, 15), (92, 14, -115, 13), (108, -14, -146, 9),
]  # fmt: skip
HIP_JOINT = (88.0, -4.0, -100.0)
SHOULDER = {"up": (150.0, -38.0, 442.0), "down": (163.0, -40.0, 424.0)}


@lru_cache(maxsize=16)
def _bowl(outside_mm: float) -> Loft:
    return Loft(BOWL, grow=outside_mm)


def _wing_outline() -> Solid:
    """Seen from the side the iliac wing is a fan: crest above, notches in front and behind."""
    fan = Ellipsoid((0, -18, -46), (400, 66, 86))
    return fan & Block(x=(36, None), z=(-92, None)) & HalfSpace((0, 36, -30), (0, 1, 0.1))


@cache
def _hip_bone() -> Solid:
    wing = (_bowl(4.5) - _bowl(-4.5)) & _wing_outline()
    x, y, z = HIP_JOINT
    socket = Ellipsoid(HIP_JOINT, (37, 37, 37)) - Ellipsoid(HIP_JOINT, (26.5, 26.5, 26.5))
    socket = socket & HalfSpace((x + 9, y, z), (0.85, 0.25, -0.45))
    ischium = Tube([(x - 16, y - 24, z - 8, 15), (x - 20, y - 36, z - 32, 13), (x - 27, y - 40, z - 52, 15)])
    ramus = Tube([(x - 27, y - 38, z - 54, 10), (x - 44, y - 5, z - 54, 6.5), (x - 72, y + 26, z - 34, 7)])
    pubis = Tube([(x - 18, y + 16, z + 4, 11), (x - 48, y + 36, z - 4, 8.5), (x - 77, y + 40, z - 16, 10)])
    body = Ellipsoid((10.5, y + 36, z - 22), (9, 9, 18))
    near_sacrum = Tube([(50, -58, -8, 8), (48, -62, -30, 9)])
    neck = Tube([(78, -28, -55, 9), (80, -22, -75, 14)])
    return Union([wing, socket, ischium, ramus, pubis, body, near_sacrum, neck])


@cache
def _femur() -> Solid:
    x, y, z = HIP_JOINT
    head = Ellipsoid(HIP_JOINT, (24, 24, 24))
    neck = Tube([(x, y, z, 17), (x + 20, y - 5, z - 16, 14), (x + 36, y - 10, z - 30, 17)])
    trochanter = Ellipsoid((x + 44, y - 14, z - 18), (13, 17, 25))
    shaft = Tube(
        [
            (x + 36, y - 10, z - 28, 18),
            (x + 36, y - 8, z - 70, 15),
            (x + 30, y + 2, z - 160, 14),
            (x + 16, y + 4, z - 340, 15),
        ]
    )
    lesser = Ellipsoid((x + 23, y - 16, z - 52), (9, 9, 11))
    return Union([head, neck, trochanter, shaft, lesser])


@cache
def _scapula() -> Solid:
    plate = (cavity(21) - cavity(14)) & Block(x=(62, None), y=(None, -42), z=(300, 447))
    blade = plate & HalfSpace((92, 0, 305), (0.88, 0, -0.47)) & HalfSpace((62, 0, 440), (0.25, 0, 1))
    ridge = [(*wall_point(34, 408, 18), 4.5), (*wall_point(50, 424, 22), 6), (*wall_point(66, 442, 36), 6)]
    spine = Tube([*ridge, (158, -66, 460, 6), (166, -42, 462, 6)])
    edge = Tube(
        [(*wall_point(39, 312, 17), 5), (*wall_point(56, 362, 17), 6), (132, -62, 412, 8), (134, -50, 428, 8)]
    )
    glenoid = Ellipsoid((134, -48, 430), (9, 13, 18), (0, 0, 25))
    coracoid = Tube([(132, -40, 444, 6), (128, -22, 450, 5.5), (128, -8, 440, 5)])
    return Union([blade, spine, edge, glenoid, coracoid])


@cache
def _clavicle() -> Solid:
    return Tube(
        [
            (24, 40, 432, 9),
            (48, 44, 438, 6),
            (80, 30, 446, 5.5),
            (112, 0, 455, 5.5),
            (140, -22, 462, 6),
            (160, -36, 463, 6),
        ]
    )


def arm_line(arms: str) -> list[tuple[float, float, float]]:
    """From the shoulder joint along the humerus."""
    x, y, z = SHOULDER[arms]
    if arms == "up":
        return [(x, y, z), (x + 12, y + 8, z + 40), (x + 22, y + 22, z + 120), (x + 22, y + 40, z + 290)]
    return [(x, y, z), (x + 16, y - 2, z - 40), (x + 28, y - 6, z - 120), (x + 42, y - 4, z - 290)]


@cache
def _humerus(arms: str) -> Solid:
    line = arm_line(arms)
    shaft = Tube([(*p, r) for p, r in zip(line, (19, 14, 11.5, 13), strict=True)])
    return Ellipsoid(line[0], (24, 24, 24)) | shaft


def _psoas(scale: float) -> Solid:
    beside_spine = [(x, spine_y(z) + forward, z, r * scale) for x, forward, z, r in PSOAS]
    to_femur = [(x, y, z, r * scale) for x, y, z, r in PSOAS_TENDON]
    iliacus = (
        (_bowl(-4.5) - _bowl(-21 * scale)) & Ellipsoid((0, -14, -40), (400, 50, 66)) & Block(x=(45, None))
    )
    return Tube([*beside_spine, *to_femur]) | iliacus


def _gluteal(scale: float) -> dict[str, Solid]:
    maximus = Tube(
        [(46, -86, -2, 9, 22), (62, -90, -38, 19 * scale, 50), (84, -86, -88, 26 * scale, 64),
         (116, -62, -140, 22 * scale, 48), (130, -36, -190, 9, 26)],
        axis=(0.6, 0.35, 0.5),
    )  # fmt: skip
    fan = Ellipsoid((0, -16, -44), (400, 60, 76)) & Block(x=(55, None), z=(-92, None))
    minimus = (
        (_bowl(4.5 + 12 * scale) - _bowl(4.5)) & Ellipsoid((0, 0, -50), (400, 36, 40)) & Block(x=(60, None))
    )
    to_femur = Tube([(102, -2, -62, 9), (116, -5, -82, 8), (130, -12, -104, 7)])
    medius = (_bowl(4.5 + 25 * scale) - _bowl(4.5)) & fan & HalfSpace((0, 30, 0), (0, 1, 0.25))
    medius = medius | Tube([(128, -20, -60, 17 * scale), (138, -20, -98, 9)])
    return {"gluteus_maximus": maximus, "gluteus_medius": medius, "gluteus_minimus": minimus | to_femur}


def _autochthon(scale: float) -> Solid:
    rows = [(x, spine_y(z) - back, z, thick * scale, wide * scale) for z, x, back, thick, wide in AUTOCHTHON]
    return Tube(rows, axis=(1, 0, 0)) & Block(x=(2.5, None))


def muscle_structures(patient: Patient) -> list[Structure]:
    """The labelled muscles of back and hips."""
    scale = patient.scale_of("muscles")
    return _both_sides(
        {"autochthon": _autochthon(scale), "iliopsoas": _psoas(scale), **_gluteal(scale)}, "muscle"
    )


def bone_structures(patient: Patient) -> list[Structure]:
    """Right and left are mirror images before the body deforms."""
    bones = {
        "hip": _hip_bone(),
        "femur": _femur(),
        "scapula": _scapula(),
        "clavicula": _clavicle(),
        "humerus": _humerus(patient.arms),
    }
    return _both_sides(bones, "cortical_bone", "spongy_bone", 3.0)


def _both_sides(
    solids: dict[str, Solid], tissue: str, core: str | None = None, rind_mm: float = 0.0
) -> list[Structure]:
    return [
        Structure(f"{name}_{side}", placed, tissue, core, rind_mm)
        for name, solid in solids.items()
        for side, placed in (("right", solid), ("left", solid.mirrored()))
    ]
