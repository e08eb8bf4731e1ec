"""Skull, brain, brainstem, eyes with optic pathway, glands, jaw, and the soft parts of the neck."""

from __future__ import annotations

from continual_segment.lab.phantom.body import VAULT_CENTRE, cranial_cavity, face, neck
from continual_segment.lab.phantom.patient import Patient
from continual_segment.lab.phantom.solids import Block, Ellipsoid, Solid, Union
from continual_segment.lab.phantom.structure import Structure
from continual_segment.lab.phantom.sweeps import Tube

EYE = (31.5, 65.0, 622.0)
JAW_JOINT = (51.0, 8.0, 600.0)


def _jaw() -> Solid:
    x, y, z = JAW_JOINT
    half = Tube(
        [
            (x, y, z - 6, 4.5, 8),
            (x - 1, y + 2, z - 30, 4, 13),
            (x - 3, y + 8, z - 56, 4.5, 13),
            (x - 12, y + 34, z - 66, 6, 12),
            (22, 72, z - 70, 6.5, 12),
            (0, 82, z - 70, 7, 12),
        ]
    )
    beak = Tube([(x - 3, y + 22, z - 34, 3.5), (x - 5, y + 24, z - 12, 2.5)])
    return Union([half, beak])


def _skull_parts() -> Solid:
    cheek = Tube([(58, 18, 606, 4.5), (61, 38, 606, 4.5), (52, 58, 606, 6), (40, 68, 598, 7)])
    palate = Tube([(0, 76, 580, 7, 18), (0, 56, 582, 5, 24), (0, 36, 584, 4, 22)], axis=(1, 0, 0))
    upper_jaw = Tube([(36, 44, 582, 9, 12), (28, 66, 582, 8, 12), (0, 80, 582, 7, 12)])
    sphenoid = Ellipsoid((0, 22, 612), (26, 20, 14))
    petrous = Tube([(60, -8, 603, 15), (44, 0, 605, 11), (22, 8, 608, 8)])
    mastoid = Ellipsoid((56, -20, 592), (12, 15, 20))
    orbit_floor = Tube([(16, 72, 606, 4), (32, 76, 604, 4), (48, 66, 608, 5)])
    brow = Tube([(8, 82, 638, 6), (30, 80, 640, 5.5), (50, 64, 632, 5.5), (53, 56, 616, 5)])
    pterygoid = Tube([(14, 30, 606, 4), (16, 32, 584, 4)])
    halves = [cheek, upper_jaw, petrous, mastoid, orbit_floor, brow, pterygoid]
    return Union([palate, sphenoid, *halves, *(h.mirrored() for h in halves)])


def _air_spaces() -> list[Solid]:
    nasal = Tube(
        [(7, 84, 592, 5, 10), (7, 60, 598, 5, 16), (7, 38, 598, 5, 14), (5, 24, 594, 6, 10)], axis=(0, 0, 1)
    )
    sinus = Ellipsoid((30, 54, 596), (11, 15, 13))
    frontal = Ellipsoid((10, 80, 646), (9, 5, 8))
    cells = Ellipsoid((8, 56, 616), (7, 20, 9))
    sphenoid = Ellipsoid((7, 26, 614), (8, 11, 9))
    mastoid = Ellipsoid((56, -16, 600), (6, 8, 9))
    ear = Tube([(72, 0, 604, 3), (56, -1, 604, 3)])
    halves = [nasal, sinus, frontal, cells, sphenoid, mastoid, ear]
    throat = Tube(
        [
            (0, 22, 592, 8, 12),
            (0, 10, 574, 6, 12),
            (0, 9, 552, 6, 12),
            (0, 12, 530, 7, 13),
            (0, 14, 510, 6, 8),
            (0, 10, 490, 8, 8),
        ],
        axis=(1, 0, 0),
    )
    return [throat, *halves, *(h.mirrored() for h in halves)]


def _brainstem(patient: Patient) -> Solid:
    stem = Tube(
        [
            (0, 4, 645, 13, 16),
            (0, 4, 634, 11, 15),
            (0, 6, 622, 13, 17),
            (0, 2, 612, 11, 14),
            (0, -14, 602, 7.5, 9),
            (0, -28, 592, 6.5, 7),
        ],
        axis=(1, 0, 0),
    )
    return stem.moved(scale=patient.scale_of("brainstem"))


def head_structures(patient: Patient) -> list[Structure]:
    """From the scalp inwards; the small organs at risk come last."""
    cavity, bone = cranial_cavity(), "cortical_bone"
    found = [
        Structure("muscle", (face().grown(-5.0) | neck(-5.0)) & Block(z=(500, 640)), "muscle"),
        Structure("fat", _cheek_fat(), "fat"),
        Structure("fat", _cheek_fat().mirrored(), "fat"),
        Structure("skull", cranial_cavity(7.5), bone, "diploe", 2.6),
        Structure("skull", _skull_parts(), bone, "spongy_bone", 3.0),
    ]
    found += [
        Structure("teeth", Tube([(x, y, z, 5, 8) for x, y, z in _tooth_row(z0)]), "tooth")
        for z0 in (568, 556)
    ]
    found += [Structure("orbit", _orbit(side), "orbital_fat") for side in (1, -1)]
    found += [
        Structure("mandible", _jaw(), bone, "spongy_bone", 2.5),
        Structure("mandible", _jaw().mirrored(), bone, "spongy_bone", 2.5),
    ]
    found.append(Structure("tongue", Ellipsoid((0, 42, 562), (24, 32, 17)), "muscle"))
    found += [Structure("airspace", solid, "air_inside") for solid in _air_spaces()]
    found += brain_structures(patient, cavity)
    found += small_organ_structures(patient)
    return found


def _cheek_fat() -> Solid:
    return Ellipsoid((46, 46, 578), (8, 18, 22)) | Ellipsoid((50, 30, 560), (10, 12, 10))


def _tooth_row(z: float) -> list[tuple[float, float, float]]:
    right = [(30.0, 46.0, z), (26.0, 62.0, z), (14.0, 75.0, z)]
    return [*right, (0.0, 79.0, z), *[(-a, b, c) for a, b, c in reversed(right)]]


def _orbit(side: int) -> Solid:
    x, y, z = EYE
    return Tube([(side * x, y, z, 16.5), (side * (x - 4), y - 16, z, 14), (side * 17, 36, 628, 7)])


def brain_structures(patient: Patient, cavity: Solid) -> list[Structure]:
    brain = cavity.grown(-1.5)
    fissure = Block(x=(-1.4, 1.4), z=(668, None)) & Ellipsoid(VAULT_CENTRE, (65, 82, 58))
    ventricle = Tube([(10, 34, 668, 4, 8), (10, 6, 676, 5, 8), (14, -22, 674, 6, 9), (20, -44, 664, 5, 8)])
    fourth = Ellipsoid((0, -14, 614), (5, 4, 10))
    deep = Ellipsoid((18, 8, 664), (11, 24, 14))
    white = [
        Ellipsoid((32, 0, 672), (20, 58, 34)),
        Ellipsoid((38, 4, 632), (9, 22, 9)),
        Ellipsoid((20, -52, 614), (16, 14, 10)),
    ]
    found = [
        Structure("cranial_space", cavity, "csf"),
        Structure("brain", brain, "grey_matter"),
    ]
    found.append(Structure("brain", fissure, "csf"))
    for solid in white:
        found += [Structure("brain", s, "white_matter") for s in (solid, solid.mirrored())]
    found += [Structure("brain", s, "grey_matter") for s in (deep, deep.mirrored())]
    found.append(Structure("brain", fourth, "csf"))
    found += [Structure("brain", s, "csf") for s in (ventricle, ventricle.mirrored())]
    found.append(Structure("brainstem", _brainstem(patient), "brainstem"))
    return found


def small_organ_structures(patient: Patient) -> list[Structure]:
    """Eyes, lenses, optic nerves, chiasm, parotids and jaw joints.

    Lens, nerve and chiasm are some 1 mm thicker than in life, so that a scan of 4 mm voxels still shows them.
    """
    size = patient.scale_of("eyes")
    x, y, z = EYE
    shift = patient.shift_of("eyes")
    eye = Ellipsoid(EYE, (12.1, 12.1, 12.1)).moved(shift, size)
    lens = Ellipsoid((x, y + 8.4, z), (5.6, 4.0, 5.6)).moved(shift, size)
    nerve = Tube([(x - 1, y - 11, z, 3.0), (26, 44, 625, 3.0), (16, 33, 629, 3.0), (7, 24, 631.5, 3.0)])
    chiasm = Tube([(-8, 25, 631.5, 3.0, 3.4), (0, 20.5, 632.5, 3.6, 3.6), (8, 25, 631.5, 3.0, 3.4)])
    tract = Tube([(-7, 15, 634, 2.6), (0, 20, 632.5, 3.4), (7, 15, 634, 2.6)])
    parotid = _parotid(patient)
    a, b, c = JAW_JOINT
    joint = Ellipsoid((a, b, c + 1), (10, 8.5, 9))
    rows: list[tuple[str, Solid, str]] = [
        ("parotid", parotid, "parotid"),
        ("temporomandibular_joint", joint, "joint"),
        ("eye", eye, "vitreous"),
        ("lens", lens, "lens"),
        ("optic_nerve", nerve, "nerve"),
    ]
    found = []
    for name, solid, tissue in rows:
        for side, placed in (("right", solid), ("left", solid.mirrored())):
            found.append(Structure(f"{name}_{side}", placed, tissue))
        if name == "temporomandibular_joint":  # the jaw's head inside the joint is bone
            head = Ellipsoid((a, b, c - 3), (7, 5, 6))
            for side, placed in (("right", head), ("left", head.mirrored())):
                found.append(Structure(f"{name}_{side}", placed, "cortical_bone", "spongy_bone", 2.0))
    return [*found, Structure("optic_chiasm", chiasm | tract, "nerve")]


def _parotid(patient: Patient) -> Solid:
    lateral = Ellipsoid((60, 6, 574), (9, 17, 25), (0, 8, -12))
    deep = Ellipsoid((50, -4, 576), (11, 9, 17))
    return (lateral | deep).moved(patient.shift_of("parotid"), patient.scale_of("parotid"))


def neck_structures(patient: Patient) -> list[Structure]:
    """Labelled neck muscles, larynx and thyroid."""
    m, t = patient.scale_of("muscles"), patient.scale_of("thyroid")
    sternomastoid = Tube(
        [
            (57, -20, 590, 6, 12 * m),
            (54, -10, 560, 7, 13 * m),
            (47, 6, 520, 7.5, 14 * m),
            (34, 24, 475, 7, 13 * m),
            (20, 38, 440, 5, 9),
        ],
        axis=(0.4, 1, 0),
    )
    front_scalene = Tube([(22, -12, 528, 4), (31, -8, 500, 6.5 * m), (38, -4, 475, 7 * m), (42, 4, 453, 5)])
    back_scalene = Tube(
        [(25, -22, 545, 5), (36, -24, 515, 8 * m), (45, -26, 485, 9.5 * m), (54, -26, 464, 8 * m)]
    )
    straps = Tube(
        [(10, 36, 520, 4, 9), (14, 34, 495, 4.5 * m, 10), (16, 32, 465, 4.5 * m, 12), (14, 36, 436, 4, 10)],
        axis=(1, -0.3, 0),
    )
    trapezius = Tube([(20, -64, 560, 6, 14), (26, -68, 510, 7, 18), (46, -80, 474, 8, 26)], axis=(1, 0, 0))
    thyroid = Ellipsoid((19, 12, 470), (8.5 * t, 10.5 * t, 24 * t), (0, -6, 0)) | Tube(
        [(14, 18, 462, 5), (0, 20, 459, 4)]
    )
    spaces = Ellipsoid((34, 4, 515), (13, 18, 50)), Ellipsoid((40, -36, 500), (14, 14, 42))
    larynx = Tube([(0, 16, 520, 15, 17), (0, 14, 504, 14, 16), (0, 11, 492, 12, 13)], axis=(1, 0, 0))
    hyoid = Tube([(-20, 10, 530, 3.5), (-12, 28, 528, 3.5), (12, 28, 528, 3.5), (20, 10, 530, 3.5)])
    found = [Structure("neck_fat", s, "fat") for space in spaces for s in (space, space.mirrored())]
    for name, solid in (
        ("trapezius", trapezius),
        ("scalenus_muscle", back_scalene),
        ("scalenus_anterior_muscle", front_scalene),
        ("sternocleidomastoid_muscle", sternomastoid),
        ("anterior_cervical_muscle", straps),
    ):
        found += [Structure(name, s, "muscle") for s in (solid, solid.mirrored())]
    found += [Structure("larynx", larynx, "larynx"), Structure("hyoid", hyoid, "cortical_bone")]
    thyroid = (thyroid & Block(x=(0, None))).moved(patient.shift_of("thyroid"))
    found += [
        Structure("thyroid_right", thyroid, "thyroid"),
        Structure("thyroid_left", thyroid.mirrored(), "thyroid"),
    ]
    submandibular = Ellipsoid((34, 24, 540), (10, 14, 13))
    return found + [
        Structure("submandibular", s, "parotid") for s in (submandibular, submandibular.mirrored())
    ]
