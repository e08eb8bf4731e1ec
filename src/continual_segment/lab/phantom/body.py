"""Skin, fat and the plain muscle of trunk, neck, head and limbs: what everything else is painted into."""

from __future__ import annotations

from functools import cache

import numpy as np

from continual_segment.lab.phantom.limbs import arm_line
from continual_segment.lab.phantom.patient import Patient
from continual_segment.lab.phantom.solids import Block, Ellipsoid, HalfSpace, Solid, Union
from continual_segment.lab.phantom.structure import Structure
from continual_segment.lab.phantom.sweeps import Loft, Tube
from continual_segment.lab.phantom.thorax import cavity

LEAN = [  # z, half width, back y, front y: outer surface of the muscles of the trunk, without fat
    (490, 56, -80, 34), (478, 76, -90, 34), (466, 102, -102, 38), (452, 124, -114, 44),
    (430, 136, -124, 58), (400, 142, -128, 72), (360, 147, -128, 86), (320, 150, -126, 96),
    (280, 152, -122, 103), (240, 152, -118, 105), (200, 150, -114, 106), (150, 145, -110, 104),
    (100, 140, -108, 100), (50, 142, -107, 96), (0, 152, -108, 90), (-40, 158, -114, 82),
    (-80, 164, -118, 72), (-120, 166, -112, 62), (-165, 160, -95, 50),
]  # fmt: skip
FAT = [  # z, share of the belly's fat thickness at the side, back, front
    (490, 0.2, 0.2, 0.15), (430, 0.4, 0.5, 0.3), (360, 0.7, 0.6, 0.5), (250, 0.7, 0.6, 0.6),
    (150, 0.9, 0.7, 1.0), (50, 1.0, 1.0, 1.2), (-40, 1.1, 1.3, 1.1), (-100, 1.1, 1.5, 0.7),
    (-165, 1.0, 1.2, 0.5),
]  # fmt: skip
BELLY = [  # inside of the abdominal wall
    (265, 134, -78, 84), (215, 137, -82, 92), (150, 130, -76, 91), (100, 124, -72, 88), (50, 124, -68, 84),
    (0, 120, -62, 80), (-40, 104, -70, 72), (-80, 72, -72, 58), (-105, 56, -62, 44), (-128, 40, -50, 28),
]  # fmt: skip

THIGH = [
    (-460, 58, -62, 56), (-300, 70, -76, 66), (-220, 76, -84, 68), (-160, 76, -88, 62), (-120, 66, -78, 48),
    (-96, 54, -66, 36), (-72, 34, -44, 24),
]  # fmt: skip
NECK = [
    (600, 56, -74, 40), (560, 58, -72, 42), (530, 59, -74, 44), (505, 59, -76, 44), (485, 64, -82, 44),
    (465, 82, -94, 42),
]  # fmt: skip
VAULT_CENTRE = (0.0, -6.0, 664.0)
EAR = Ellipsoid((73, -4, 604), (6, 12, 26))


@cache
def lean_trunk() -> Loft:
    return Loft(LEAN, square=0.3)


def skin_trunk(patient: Patient) -> Loft:
    """The muscles' surface, with fat on it according to the patient's build."""
    share = np.array(sorted(FAT), float)
    rows = []
    for z, half, back, front in LEAN:
        side, behind, before = (
            float(np.interp(z, share[:, 0], share[:, k])) * patient.fat_mm for k in (1, 2, 3)
        )
        rows.append((z, half + side, back - behind - 2, front + before + 2))
    return Loft(rows, square=0.3)


@cache
def belly() -> Loft:
    """The abdominal and pelvic cavity."""
    return Loft(BELLY, square=0.25)


def _thigh(grow: float) -> Solid:
    return Loft(THIGH, centre_x=[84, 86, 87, 88, 88, 90, 94], grow=grow)


def _shoulder(arms: str, grow: float) -> Solid:
    """Upper arm, deltoid and the muscles that join the arm to chest and back."""
    line = arm_line(arms)
    x, y, z = line[0]
    rows = [(p[2], r, p[1] - r, p[1] + r) for p, r in zip(line, (43, 42, 38, 36), strict=True)]
    middle = [p[0] for p in sorted(line, key=lambda p: p[2])]
    arm = Loft(rows, centre_x=middle, grow=grow)
    deltoid = Ellipsoid((x, y, z + 2), (46 + grow, 46 + grow, 46 + grow))
    top = Ellipsoid((100, -40, 440), (74 + grow, 54 + grow, 26 + grow), (0, 6, 0))
    blade = Ellipsoid((112, -88, 424), (62 + grow, 40 + grow, 50 + grow))
    chest_muscle = Ellipsoid((96, 26, 392), (66 + grow, 30 + grow, 44 + grow), (0, -12, -28))
    back_muscle = Ellipsoid((114, -82, 384), (48 + grow, 36 + grow, 66 + grow), (0, 18, 28))
    return Union([arm, deltoid, top, blade, chest_muscle, back_muscle])


def head_outline() -> Solid:
    return Union([cranial_cavity(13.0), face(), EAR, EAR.mirrored()])


def cranial_cavity(grow: float = 0.0) -> Solid:
    """Brain space: a vault, the middle fossae for the temporal lobes and the hind one for the cerebellum."""
    vault = Ellipsoid(VAULT_CENTRE, (65.5 + grow, 84 + grow, 60 + grow))
    fore_base = HalfSpace((0, 40, 634 - grow), (0, -0.15, -1))
    middle_base = HalfSpace((0, 28, 634 - grow), (0, 0.6, -1))
    temporal = Ellipsoid((41, 4, 628), (24 + grow, 36 + grow, 24 + grow))
    hind = Ellipsoid((0, -47, 620), (51 + grow, 35 + grow, 28 + grow))
    stem = Ellipsoid((0, -20, 620), (25 + grow, 34 + grow, 30 + grow))
    upper = vault & (fore_base | middle_base) & Block(z=(612 - grow, None))
    return Union([upper, temporal, temporal.mirrored(), hind, stem])


@cache
def face() -> Solid:
    """Outer shape of face and jaw, without the cranium."""
    upper = Ellipsoid((0, 30, 600), (63, 63, 56))
    lower = Ellipsoid((0, 34, 552), (54, 52, 40))
    nose = Ellipsoid((0, 92, 598), (13, 17, 22), (-20, 0, 0))
    side = Ellipsoid((0, 4, 585), (70, 62, 56))
    return Union([upper, lower, nose, side])


def neck(grow: float = 0.0) -> Loft:
    return Loft(NECK, grow=grow)


def body_structures(patient: Patient) -> list[Structure]:
    """From outside in: skin over fat, muscle, the fat of chest and belly."""
    fat = 0.45 * patient.fat_mm
    thigh_fat, thigh_lean = _thigh(fat), _thigh(0)
    arm_fat, arm_lean = _shoulder(patient.arms, 0.35 * patient.fat_mm), _shoulder(patient.arms, -4)
    outer = [
        head_outline(),
        skin_trunk(patient),
        neck(0.12 * patient.fat_mm),
        arm_fat,
        arm_fat.mirrored(),
        thigh_fat,
        thigh_fat.mirrored(),
    ]
    inner = [lean_trunk(), neck(-5), arm_lean, arm_lean.mirrored(), thigh_lean, thigh_lean.mirrored()]
    if patient.sex == "female":
        breast = Ellipsoid((72, 92, 330), (50, 34 + 0.5 * patient.fat_mm, 55)) - cavity(12)
        outer += [breast, breast.mirrored()]
    found = [
        Structure("fat", Union(outer), "skin", "fat", 2.0, outline=True),
        Structure("muscle", Union(inner), "muscle"),
    ]
    # between the wall of the belly and the labelled muscles of back and hips, painted later, is fat
    legs = thigh_lean | thigh_lean.mirrored()
    between = ((lean_trunk() & Block(z=(-165, 150))) - belly().grown(12.0)) - legs
    found.append(Structure("fat", between.grown(-2.0) | _cleft(), "fat"))
    found.append(Structure("belly", belly(), "visceral_fat"))
    found.append(Structure("muscle", _flank_muscle(), "muscle"))
    found.append(Structure("muscle", _flank_muscle().mirrored(), "muscle"))
    return found


def _cleft() -> Solid:
    """Fat between and below the buttocks."""
    return Ellipsoid((0, -112, -95), (20, 34, 72)) | Ellipsoid((0, -60, -150), (34, 40, 26))


def _flank_muscle() -> Solid:
    """Quadratus lumborum, between the last rib and the pelvis."""
    return Tube(
        [(58, -62, 178, 8, 16), (66, -58, 120, 11, 22), (72, -54, 50, 11, 24)], axis=(1, 0, 0)
    ) & Block(x=(20, None))
