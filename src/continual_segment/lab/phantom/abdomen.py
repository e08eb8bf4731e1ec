"""Abdominal and pelvic organs, placed against spine and diaphragm."""

from __future__ import annotations

import numpy as np

from continual_segment.lab.phantom.body import belly
from continual_segment.lab.phantom.chest import STOMACH_MOUTH, dome
from continual_segment.lab.phantom.patient import Patient
from continual_segment.lab.phantom.solids import Block, Ellipsoid, HalfSpace, Solid, Union
from continual_segment.lab.phantom.structure import KEEP, Structure
from continual_segment.lab.phantom.sweeps import Tube
from continual_segment.lab.phantom.thorax import cavity

PYLORUS = (30.0, 50.0, 140.0)


def _liver(patient: Patient) -> Solid:
    """Fills the right dome down to a slanting lower face; a thinner left lobe reaches across the midline."""
    size = patient.scale_of("liver")
    x, y, z = patient.shift_of("liver")
    under_dome = dome("right", patient, inside_mm=3.5)
    flank = Ellipsoid((66, -8, 160), (69, 84, 100 * size))
    lower_face = HalfSpace((70 + x, 0, 122 + z - 60 * (size - 1)), (-0.62, 0.10, -0.78))
    right = (under_dome | flank) & lower_face & Block(z=(88, None))
    middle = (-2 + x, 44 + y, 206 + z + 0.7 * patient.breath_mm)
    left = Ellipsoid(middle, (72 * size, 40 * size, 36 * size), (0, -14, 8))
    left_lobe = left & HalfSpace((0, 40, 184 + z), (0.12, -0.25, -1.0))
    hollow = Ellipsoid((14, -46, 170), (44, 56, 74)) | Ellipsoid((76, -40, 112), (40, 44, 60))
    return ((right | left_lobe) - hollow) & belly_space(patient)


def belly_space(patient: Patient) -> Solid:
    """Under the diaphragm, inside ribs and abdominal wall."""
    return (dome("right", patient, 3.0) | dome("left", patient, 3.0) | belly()) & cavity(-4.0)


def _kidney(side: str, patient: Patient) -> tuple[Solid, Solid]:
    """The kidney and the fat of its sinus, built on the right."""
    low = -12 if side == "right" else 0  # the liver pushes the right one down
    size = patient.scale_of(f"kidney_{side}")
    shift = patient.shift_of(f"kidney_{side}")
    whole = Ellipsoid((72, -24, 133 + low), (28.5, 26, 54), (8, 14, -30))
    sinus = Tube([(47, -12, 131 + low, 10, 15), (64, -20, 133 + low, 7, 14), (72, -24, 133 + low, 4, 18)])
    return whole.moved(shift, size), sinus.moved(shift, size)


def kidney_structures(patient: Patient) -> list[Structure]:
    found = []
    for side in ("right", "left"):
        kidney, sinus = _kidney(side, patient)
        if side == "left":
            kidney, sinus = kidney.mirrored(), sinus.mirrored()
        name = f"kidney_{side}"
        found.append(Structure(name, kidney, "kidney_cortex", "kidney_medulla", 8.0))
        found.append(Structure("sinus_fat", sinus, "visceral_fat", only_over=frozenset({name})))
    return found


def _adrenal(side: str, patient: Patient) -> Solid:
    """Two thin limbs meeting in a ridge, like an upside-down Y."""
    x, y, z = (38, -8, 174) if side == "right" else (42, -6, 172)
    ridge = Ellipsoid((x, y + 8, z + 3), (4.0, 9, 13), (10, 0, 0))
    inner = Ellipsoid((x - 4, y - 4, z - 2), (3.6, 11, 15), (0, 0, -24))
    outer = Ellipsoid((x + 6, y - 3, z - 3), (3.6, 11, 15), (0, 0, 34))
    return Union([ridge, inner, outer]).moved(
        patient.shift_of(f"adrenal_{side}"), patient.scale_of(f"adrenal_{side}")
    )


def _spleen(patient: Patient) -> Solid:
    whole = Ellipsoid((-103, -34, 186), (28, 43, 60), (-24, 12, -28))
    dent = Ellipsoid((-66, 6, 180), (38, 44, 60))
    return (whole - dent).moved(patient.shift_of("spleen"), patient.scale_of("spleen"))


def _pancreas(patient: Patient) -> Solid:
    line = [
        (36, 30, 112, 11),
        (30, 34, 130, 14),
        (14, 42, 146, 10.5),
        (-12, 38, 156, 10.5),
        (-42, 20, 164, 10),
        (-70, -8, 170, 8.5),
        (-86, -24, 174, 6),
    ]
    size = patient.scale_of("pancreas")
    return Tube([(x, y, z, r * size, 1.35 * r * size) for x, y, z, r in line]).moved(
        patient.shift_of("pancreas")
    )


def _stomach(patient: Patient) -> Solid:
    """From the fundus under the left dome down and across to the pylorus; filling widens it."""
    wide = patient.scale_of("stomach") * (0.66 + 0.52 * patient.stomach)
    rise = 0.7 * patient.breath_mm
    line = [
        (-62, -14, 238 + rise, 27),
        (-68, 4, 220 + rise, 34),
        (-68, 42, 192, 31),
        (-54, 60, 164, 27),
        (-26, 68, 146, 22),
        (4, 64, 138, 18),
    ]
    body = Tube([(x, y, z, r * wide) for x, y, z, r in line] + [(*PYLORUS, 9.0)])
    mouth = Tube([(*STOMACH_MOUTH, 9.0), (-46, 6, 214 + rise, 14 * wide)])
    return (body | mouth) & belly_space(patient)


def _duodenum(patient: Patient) -> Solid:
    size = patient.scale_of("duodenum")
    line = [
        (*PYLORUS, 10),
        (44, 42, 146, 13),
        (54, 30, 132, 13),
        (55, 26, 108, 13),
        (48, 28, 88, 13),
        (26, 36, 80, 12),
        (2, 44, 80, 11),
        (-24, 42, 92, 12),
        (-34, 44, 112, 12),
    ]
    return Tube([(x, y, z, r * size) for x, y, z, r in line], beads=(16, 0.06))


def _colon(patient: Patient) -> Tube:
    rng = np.random.default_rng([patient.seed, 6])
    sag = rng.normal(0, 14)
    loop = rng.normal(0, 12)
    size = patient.scale_of("colon")
    line = [
        (84, 30, -4, 20), (90, 22, 16, 27), (96, 12, 48, 26), (100, 8, 84, 25), (98, 20, 112, 24),
        (84, 48, 124, 22), (52, 70, 112 + 0.5 * sag, 21), (14, 78, 102 + sag, 21), (-24, 76, 106 + sag, 21),
        (-66, 60, 130 + 0.5 * sag, 20), (-94, 36, 156, 20), (-108, 10, 156, 20), (-112, -8, 134, 19),
        (-110, -16, 104, 18), (-104, -14, 60, 18), (-96, 2, 16, 17), (-76, 20, -18, 17), (-44, 26, -34, 17),
        (-10, 30, -22 + loop, 17), (16, 14, -18 + loop, 17), (14, -14, -40, 18), (2, -36, -62, 20),
        (0, -42, -88, 21), (0, -34, -110, 18), (0, -30, -128, 10),
    ]  # fmt: skip
    return Tube([(x, y, z, r * size) for x, y, z, r in line], beads=(24, 0.14))


def _small_bowel(patient: Patient) -> Tube:
    """Loops that fill the middle of the belly, row upon row."""
    rng = np.random.default_rng([patient.seed, 7])
    size = patient.scale_of("small_bowel")
    points: list[tuple[float, ...]] = [(-34, 44, 112, 12)]
    for row, z in enumerate(np.arange(88, -46, -25.0)):
        ends = np.linspace(-72, 72, 6) if row % 2 == 0 else np.linspace(72, -72, 6)
        narrow = np.interp(z, [-50, 10, 90], [0.62, 1.0, 0.85])
        for k, x in enumerate(ends):
            y = 52 + (22 if (k + row // 2) % 2 == 0 else -18)
            jitter = rng.normal(0, [8, 6, 7])
            points.append((x * narrow + jitter[0], y + jitter[1], z + jitter[2], 12.8 * size))
    points.append((70, 34, 4, 11 * size))  # ends at the caecum
    return Tube(points, beads=(30, 0.07))


def _colon_structures(patient: Patient) -> list[Structure]:
    rng = np.random.default_rng([patient.seed, 8])
    colon = _colon(patient)
    found = [Structure("colon", colon, "bowel_wall", "stool", 2.5)]
    for place in rng.choice(20, size=int(rng.integers(4, 11)), replace=False):
        at = colon.line[int((0.04 + 0.042 * place) * len(colon.line))]
        front = np.array([0.0, 8.0, 0.0]) + at  # where gas rises to in a patient on the back
        pocket = colon.grown(-3.0) & Ellipsoid(front, rng.uniform(14, 34, 3))
        found.append(Structure(KEEP, pocket, "gas", only_over=frozenset({"colon"})))
    return found


def _stomach_structures(patient: Patient) -> list[Structure]:
    stomach = _stomach(patient)
    gas_level = float(np.interp(patient.stomach, [0, 1], [60, 40])) + 0.4 * patient.shift_of("stomach")[1]
    gas = stomach.grown(-4.0) & Block(y=(gas_level, None))
    return [
        Structure("stomach", stomach, "stomach_wall", "stomach_content", 4.0),
        Structure(KEEP, gas, "gas", only_over=frozenset({"stomach"})),
    ]


def _bladder(patient: Patient) -> Solid:
    wide = 26 + 22 * patient.bladder
    high = 17 + 24 * patient.bladder
    return Ellipsoid((0, 16, -106 + high), (wide, 0.86 * wide, high), (-12, 0, 0))


def pelvic_structures(patient: Patient) -> list[Structure]:
    size = patient.scale_of("prostate")
    top = -106 + 2 * (17 + 24 * patient.bladder)
    if patient.sex == "male":
        below = Ellipsoid((0, 8, -116), (22 * size, 15 * size, 16 * size))
        behind = Ellipsoid((0, -12, -98), (26, 7, 9))
        other = [Structure("prostate", below, "prostate"), Structure("seminal_vesicle", behind, "prostate")]
    else:
        womb = Ellipsoid((0, -4, min(top - 8, -62)), (24 * size, 17 * size, 34 * size), (35, 0, 0))
        other = [
            Structure("uterus", womb, "uterus"),
            Structure("uterus", Ellipsoid((0, -16, -104), (15, 11, 22)), "uterus"),
        ]
    return [*other, Structure("urinary_bladder", _bladder(patient), "bladder_wall", "urine", 2.5)]


def abdomen_structures(patient: Patient) -> list[Structure]:
    """In order: soft loops first, then what presses into them."""
    loops = _small_bowel(patient) & belly().grown(-2.0)
    return [
        Structure("small_bowel", loops, "bowel_wall", "bowel_content", 2.5),
        *_stomach_structures(patient),
        Structure("pancreas", _pancreas(patient), "pancreas"),
        Structure("liver", _liver(patient), "liver"),
        *_colon_structures(patient),
        Structure("spleen", _spleen(patient), "spleen"),
        Structure("duodenum", _duodenum(patient), "bowel_wall", "bowel_content", 2.8),
        Structure("gallbladder", _gallbladder(patient), "gallbladder_wall", "bile", 1.5),
        *kidney_structures(patient),
        Structure("adrenal_gland_right", _adrenal("right", patient), "adrenal"),
        Structure("adrenal_gland_left", _adrenal("left", patient).mirrored(), "adrenal"),
        *pelvic_structures(patient),
    ]


def _gallbladder(patient: Patient) -> Solid:
    pear = Tube([(58, 40, 158, 6), (66, 52, 146, 12), (72, 62, 132, 15)])
    return pear.moved(patient.shift_of("gallbladder"), patient.scale_of("gallbladder"))
