"""Lungs with lobes, diaphragm, mediastinum, airways and esophagus."""

from __future__ import annotations

import numpy as np

from continual_segment.lab.phantom.body import belly
from continual_segment.lab.phantom.heart import pericardium
from continual_segment.lab.phantom.landmarks import canal_y, spine_y
from continual_segment.lab.phantom.patient import EsophagusTumour, Patient
from continual_segment.lab.phantom.solids import Block, Ellipsoid, HalfSpace, Solid, Union
from continual_segment.lab.phantom.structure import KEEP, Structure
from continual_segment.lab.phantom.sweeps import Loft, Tube, smooth_path
from continual_segment.lab.phantom.thorax import cavity

CARINA = (5.0, -22.0, 386.0)
STOMACH_MOUTH = (-26.0, 6.0, 222.0)
LOBES = (
    "lung_upper_lobe_left",
    "lung_lower_lobe_left",
    "lung_upper_lobe_right",
    "lung_middle_lobe_right",
    "lung_lower_lobe_right",
)


UPPER_MEDIASTINUM = [  # z, half width, back y, front y
    (470, 34, -60, 30), (440, 38, -64, 42), (410, 36, -66, 52), (385, 34, -66, 58), (360, 34, -68, 64),
    (335, 36, -68, 72),
]  # fmt: skip


def dome(side: str, patient: Patient, inside_mm: float = 0.0) -> Solid:
    """What is under one half of the diaphragm, up into the chest."""
    rise = patient.breath_mm
    if side == "right":
        return Ellipsoid((64, -4, 160), (75 - inside_mm, 97 - inside_mm, 124 + rise - inside_mm))
    return Ellipsoid((-66, -4, 156), (72 - inside_mm, 95 - inside_mm, 112 + rise - inside_mm))


def _under_heart(patient: Patient) -> Solid:
    return Ellipsoid((-5, 22, 158), (80, 74, 104 + 0.8 * patient.breath_mm))


def _mediastinum(patient: Patient) -> Solid:
    """Everything between the lungs that is no lung: fat around heart, vessels and spine."""
    upper = Loft(UPPER_MEDIASTINUM)
    spine = Tube([(0, spine_y(z) + 3, z, 27 if z < 330 else 24) for z in np.linspace(150, 475, 14)])
    back = Tube([(-12, spine_y(z) + 22, z, 20) for z in np.linspace(200, 400, 9)])
    front = Tube(
        [(-6, 84, 262, 14, 34), (-4, 76, 300, 12, 24), (0, 62, 345, 10, 14), (0, 52, 395, 10, 26)],
        axis=(1, 0, 0),
    )
    return Union([upper, spine, back, front, pericardium(patient).grown(3.0)])


# ---- lungs ------------------------------------------------------------------------------------------------
def lung_structures(patient: Patient) -> list[Structure]:
    rng = np.random.default_rng([patient.seed, 3])
    space = cavity(-1.0)
    tilt = rng.normal(0, 0.06, 3)
    level = rng.normal(0, 7, 3)
    under = [dome("right", patient), dome("left", patient), _under_heart(patient)]
    lungs: list[Structure] = []
    # oblique fissures run from behind and above to the front and below
    left_cut = HalfSpace((-70, -10, 322 + level[0]), (0.12, -0.80 - tilt[0], -0.60))
    right_cut = HalfSpace((70, -10, 318 + level[1]), (-0.12, -0.78 - tilt[1], -0.62))
    middle_cut = HalfSpace((70, 40, 338 + level[2]), (-0.05, -0.05 - tilt[2], -1.0))
    extent = Block(x=(-145, 145), y=(-110, 98), z=(128, 480))
    left_half = extent & HalfSpace((0, 0, 0), (1, 0, 0))
    # one lobe everywhere, then each cut gives the part beyond it to the next lobe
    lungs.append(Structure("lung_lower_lobe_right", space, "lung"))
    for name, part, of in (
        ("lung_lower_lobe_left", left_half, "lung_lower_lobe_right"),
        ("lung_upper_lobe_left", extent & left_cut, "lung_lower_lobe_left"),
        ("lung_middle_lobe_right", extent & right_cut, "lung_lower_lobe_right"),
        ("lung_upper_lobe_right", extent & middle_cut, "lung_middle_lobe_right"),
    ):
        lungs.append(Structure(name, part, "lung", only_over=frozenset({of})))
    # the diaphragm is fixed higher in front (xiphoid) than behind (last ribs): no lung below that plane
    below = HalfSpace((0, -95, 186 + 0.5 * patient.breath_mm), (0, -0.42, 1)) & Block(z=(100, None))
    vault = Union(under) & Block(z=(150, None))
    lungs.append(Structure("diaphragm", (vault.grown(2.5) | below) & space, "muscle"))
    lungs.append(Structure("belly", (vault.grown(-1.0) | (belly() & below)) & cavity(-4.0), "visceral_fat"))
    behind = Tube([(0, canal_y(z) - 14, z, 27) for z in np.linspace(150, 480, 12)])
    lungs.append(Structure("muscle", behind, "muscle", only_over=frozenset(LOBES)))
    lungs.append(
        Structure(
            "mediastinum",
            _mediastinum(patient),
            "visceral_fat",
            only_over=frozenset((*LOBES, "muscle", "diaphragm", "belly")),
        )
    )
    return lungs


# ---- airways ----------------------------------------------------------------------------------------------
AIRWAYS: dict[str, list[tuple[float, ...]]] = {  # x, y, z, radius of the air
    "bronchus_right": [(*CARINA, 8), (18, -24, 370, 7.2), (34, -25, 357, 6.8), (46, -27, 344, 5.5)],
    "bronchus_left": [(*CARINA, 7.5), (-16, -24, 373, 6.4), (-36, -26, 360, 6.2), (-50, -30, 348, 5)],
    "trachea": [(0, 10, 492, 8.5), (0, 4, 470, 9), (2, -6, 440, 9), (6, -16, 410, 9.2), (*CARINA, 9.5)],
}
TWIGS: list[list[tuple[float, ...]]] = [  # smaller airways inside the right lung; mirrored for the left
    [(46, -27, 346, 5), (56, -30, 325, 4), (66, -36, 295, 3), (76, -45, 265, 2)],
    [(40, -25, 352, 5), (56, -14, 368, 3.8), (68, -4, 390, 2.8), (72, 2, 415, 2)],
    [(50, -24, 338, 4), (66, 0, 322, 3), (80, 24, 308, 2)],
]


def airway_structures(patient: Patient) -> list[Structure]:
    found = []
    for twig in (Tube(rows) for rows in TWIGS):
        for side in (twig, twig.mirrored()):
            found.append(Structure(KEEP, side, "airway_wall", "air_inside", 1.2, frozenset(LOBES)))
    for name, rows in AIRWAYS.items():
        walled = Tube([(x, y, z, radius + 1.2) for x, y, z, radius in rows])
        found.append(Structure(name, walled, "airway_wall", "air_inside", 1.5))
    return found


# ---- esophagus --------------------------------------------------------------------------------------------
ESOPHAGUS = [  # x, y, z, radius
    (-1, -6, 492, 7.0), (-4, -13, 465, 7.2), (-6, -22, 435, 7.4), (-5, -31, 405, 7.4), (-5, -38, 375, 7.4),
    (-3, -40, 345, 7.4), (-2, -40, 315, 7.6), (-5, -35, 285, 8.0), (-11, -22, 258, 8.2),
    (-18, -7, 238, 8.6), (*STOMACH_MOUTH, 10.0),
]  # fmt: skip


def esophagus_structures(patient: Patient) -> list[Structure]:
    """Healthy: a collapsed tube with some air. Diseased: a thick, displaced stretch, wide above it."""
    samples, _ = smooth_path(np.array(ESOPHAGUS), 4.0)
    samples = samples[:, :4].copy()
    samples[:, 3] *= patient.scale_of("duodenum")
    lumen = np.full(len(samples), 2.4)
    growths = []
    for tumour in (t for t in patient.tumours if isinstance(t, EsophagusTumour)):
        growth, share = _growth(samples, tumour)
        lumen = np.where(share > 0.3, 1.2, lumen)
        above = np.arange(len(samples)) < int(np.argmax(share > 0.3))
        near = above & (np.cumsum(above[::-1])[::-1] <= 16)  # up to 64 mm above the narrow stretch
        samples[near, 3] += 3.0
        lumen = np.where(near, samples[:, 3] - 4.0, lumen)
        growths.append(growth)
    found = [Structure("esophagus", Tube(samples), "esophagus_wall")]
    found += [Structure("esophagus", growth, "esophagus_tumour") for growth in growths]
    found.append(Structure("esophagus", Tube(np.column_stack([samples[:, :3], lumen])), "esophagus_content"))
    return found


def _growth(samples: np.ndarray, tumour: EsophagusTumour) -> tuple[Solid, np.ndarray]:
    """Pushes the line of the esophagus aside; returns the growth around it and its profile along the line."""
    height = samples[:, 2]
    middle = np.interp(tumour.level, [0, 1], [440, 235])
    share = np.exp(-(((height - middle) / (0.5 * tumour.length_mm)) ** 4))
    samples[:, 0] += tumour.bulge_mm[0] * share
    samples[:, 1] += tumour.bulge_mm[1] * share
    samples[:, 3] = np.maximum(samples[:, 3], share * tumour.thickness_mm)
    inside = np.flatnonzero(share > 0.3)
    inside = inside if len(inside) > 3 else np.arange(len(samples) - 4, len(samples))
    return Tube(samples[inside]), share
