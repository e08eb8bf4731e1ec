"""Anatomical facts that hold in every phantom patient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import ndimage

from continual_segment.lab.phantom.anatomy import paint_patient
from continual_segment.lab.phantom.landmarks import VERTEBRAE
from continual_segment.lab.phantom.organ_lists import (
    CHEST,
    ESOPHAGUS,
    HEADNECK,
    MADE_OF,
    TOTALSEG,
    label_voxels,
)
from continual_segment.lab.phantom.patient import REFERENCE, EsophagusTumour, SoftTumour, draw_patient
from continual_segment.lab.phantom.structure import Body
from continual_segment.lab.phantom.tumours import SOFT

ALL_ORGANS = tuple(dict.fromkeys((*TOTALSEG, *CHEST, *HEADNECK, *ESOPHAGUS)))
ADULT_ML = {  # published adult ranges, widened to the extremes of build
    "liver": (900, 2300), "spleen": (70, 370), "kidney_left": (80, 260), "kidney_right": (80, 260),
    "pancreas": (30, 130), "stomach": (80, 1000), "gallbladder": (5, 75), "brain": (1050, 1650),
    "brainstem": (18, 48), "eye_left": (4.5, 10), "parotid_left": (9, 45), "thyroid_left": (4, 20),
    "heart_ventricle_left": (60, 220), "heart_ventricle_right": (60, 240), "heart_atrium_left": (30, 130),
    "heart_atrium_right": (40, 180), "heart_myocardium": (80, 260), "trachea": (18, 60), "aorta": (90, 400),
    "urinary_bladder": (25, 600), "adrenal_gland_left": (2, 11), "gluteus_maximus_left": (300, 1200),
    "hip_left": (150, 480), "vertebrae_L3": (25, 95), "esophagus": (20, 90), "spinal_cord": (18, 55),
}  # fmt: skip

SPACING_MM = 4.0  # of the bodies in conftest.py


def of(body: Body, organ: str) -> np.ndarray:
    return body.mask(*MADE_OF.get(organ, (organ,)))


def middle(mask: np.ndarray) -> np.ndarray:
    """(z, y, x) of a mask's centre, in voxels."""
    return np.argwhere(mask).mean(0)


def volume_ml(mask: np.ndarray) -> float:
    return float(mask.sum()) * SPACING_MM**3 / 1000


def touching(first: np.ndarray, second: np.ndarray, voxels: int = 1) -> bool:
    (window,) = ndimage.find_objects(first.astype(np.uint8))
    window = tuple(slice(max(s.start - voxels, 0), s.stop + voxels) for s in window)
    grown = ndimage.binary_dilation(first[window], np.ones((3, 3, 3)), iterations=voxels)
    return bool((grown & second[window]).any())


def connected_share(mask: np.ndarray) -> float:
    """Share of the mask in its largest connected part."""
    parts, _ = ndimage.label(mask, np.ones((3, 3, 3)))
    return float(np.bincount(parts.ravel())[1:].max() / mask.sum())


def test_every_organ_is_present(drawn_body):
    missing = [organ for organ in ALL_ORGANS if not of(drawn_body, organ).any()]
    assert missing == []


def test_left_organs_lie_left_of_right_ones(drawn_body):
    rights = [organ for organ in ALL_ORGANS if "right" in organ]
    lefts = [organ.replace("right", "left") for organ in rights]
    pairs = [(a, b) for a, b in zip(rights, lefts, strict=True) if b in ALL_ORGANS]
    assert len(pairs) > 40
    for right, left in pairs:  # x runs to the patient's right
        assert middle(of(drawn_body, right))[2] > middle(of(drawn_body, left))[2], right


@pytest.mark.parametrize(
    ("organ", "side"), [("liver", 1), ("gallbladder", 1), ("spleen", -1), ("stomach", -1)]
)
def test_unpaired_organs_lie_on_their_side(drawn_body, organ, side):
    spine = middle(of(drawn_body, "vertebrae_T12"))[2]
    assert (middle(of(drawn_body, organ))[2] - spine) * side > 0


def test_vertebrae_follow_each_other_upwards(drawn_body):
    heights = [middle(of(drawn_body, f"vertebrae_{name}"))[0] for name in VERTEBRAE]
    assert (np.diff(heights) > 0).all()


@pytest.mark.parametrize("side", ["left", "right"])
def test_each_rib_starts_at_its_own_vertebra_and_comes_round_to_the_front(drawn_body, side):
    for number in range(1, 13):
        rib = of(drawn_body, f"rib_{side}_{number}")
        assert touching(rib, of(drawn_body, f"vertebrae_T{number}")), f"rib {number}"
        if number <= 10:
            front = np.argwhere(rib)[:, 1].max()
            assert front > middle(of(drawn_body, f"vertebrae_T{number}"))[1] + 60 / SPACING_MM


def test_upper_ribs_reach_the_sternum_through_their_cartilage(reference_body):
    cartilage, parts = of(reference_body, "costal_cartilage"), ("sternum", "rib_left_2", "rib_right_5")
    assert all(touching(cartilage, of(reference_body, part)) for part in parts)


def test_lobes_lie_inside_the_chest_wall(drawn_body):
    cage = drawn_body.mask(*(f"rib_{side}_{n}" for side in ("left", "right") for n in range(1, 13)))
    lungs = drawn_body.mask(*(name for name in TOTALSEG if name.startswith("lung")))
    left, right = (np.argwhere(cage)[:, 2].min(), np.argwhere(cage)[:, 2].max())
    lung_x = np.argwhere(lungs)[:, 2]
    assert left < lung_x.min()
    assert lung_x.max() < right
    skin_distance = ndimage.distance_transform_edt(drawn_body.structures > 0, sampling=SPACING_MM)
    assert skin_distance[lungs].min() > 8  # never in the chest wall itself


def test_lobes_lie_above_each_other_as_the_fissures_part_them(drawn_body):
    height = {name: middle(of(drawn_body, name)) for name in TOTALSEG if name.startswith("lung")}
    for side in ("left", "right"):
        assert height[f"lung_upper_lobe_{side}"][0] > height[f"lung_lower_lobe_{side}"][0]
    assert height["lung_middle_lobe_right"][1] > height["lung_lower_lobe_right"][1]  # in front of it
    assert height["lung_middle_lobe_right"][0] < height["lung_upper_lobe_right"][0]


CHAINS = {
    "arteries": (
        "heart_ventricle_left", "aorta", "iliac_artery_left", "iliac_artery_right", "brachiocephalic_trunk",
        "common_carotid_artery_left", "common_carotid_artery_right", "subclavian_artery_left",
        "subclavian_artery_right", "vertebral_artery_left", "vertebral_artery_right",
    ),
    "veins": (
        "heart_atrium_right", "superior_vena_cava", "inferior_vena_cava", "azygos_vein", "iliac_vena_left",
        "iliac_vena_right", "brachiocephalic_vein_left", "brachiocephalic_vein_right",
        "internal_jugular_vein_left", "internal_jugular_vein_right", "subclavian_vein_left",
        "subclavian_vein_right",
    ),
    "lung circulation": ("heart_ventricle_right", "pulmonary_artery"),
    "lung veins": ("heart_atrium_left", "pulmonary_vein"),
    "airways": ("trachea", "bronchus_left", "bronchus_right"),
    "gut": ("esophagus", "stomach", "duodenum", "small_bowel", "colon"),
    "sight": ("eye_left", "eye_right", "optic_nerve_left", "optic_nerve_right", "optic_chiasm"),
    "nerves": ("brain", "spinal_cord"),
}  # fmt: skip


@pytest.mark.parametrize("chain", CHAINS)
def test_what_is_one_tree_in_life_is_connected_end_to_end(drawn_body, chain):
    parts = [of(drawn_body, name) for name in CHAINS[chain]]
    assert connected_share(np.logical_or.reduce(parts)) > 0.97


@pytest.mark.parametrize(
    ("vessel", "origin"),
    [
        ("aorta_arch", "ascending_aorta"),
        ("descending_aorta", "aorta_arch"),
        ("iliac_artery_left", "descending_aorta"),
        ("common_carotid_artery_left", "aorta_arch"),
        ("subclavian_artery_left", "aorta_arch"),
        ("common_carotid_artery_right", "brachiocephalic_trunk"),
        ("subclavian_artery_right", "brachiocephalic_trunk"),
        ("vertebral_artery_left", "subclavian_artery_left"),
        ("vertebral_artery_right", "subclavian_artery_right"),
        ("azygos_vein", "superior_vena_cava"),
        ("superior_vena_cava", "heart_atrium_right"),
        ("inferior_vena_cava", "heart_atrium_right"),
        ("pulmonary_artery", "heart_ventricle_right"),
    ],
)
def test_vessels_leave_from_their_origin(drawn_body, vessel, origin):
    assert touching(of(drawn_body, vessel), of(drawn_body, origin))


def test_the_esophagus_runs_behind_the_trachea(drawn_body):
    trachea, esophagus = of(drawn_body, "trachea"), of(drawn_body, "esophagus")
    for z in np.flatnonzero(trachea.any((1, 2)) & esophagus.any((1, 2)))[2:-2]:
        assert np.argwhere(esophagus[z])[:, 0].mean() < np.argwhere(trachea[z])[:, 0].mean()


def test_the_cord_lies_behind_the_vertebral_bodies_and_inside_the_spine(drawn_body):
    cord = of(drawn_body, "spinal_cord")
    for name in ("T3", "T8", "C5"):
        vertebra = of(drawn_body, f"vertebrae_{name}")
        z = round(middle(vertebra)[0])
        assert np.argwhere(cord[z])[:, 0].mean() < np.argwhere(vertebra[z])[:, 0].max() - 15 / SPACING_MM
        assert np.argwhere(cord[z])[:, 0].min() > np.argwhere(vertebra[z])[:, 0].min()


@pytest.mark.parametrize("organ", ADULT_ML)
def test_volumes_are_those_of_adults(drawn_body, organ):
    low, high = ADULT_ML[organ]
    assert low < volume_ml(of(drawn_body, organ)) < high


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_lung_holds_between_one_and_four_litres(drawn_body, side):
    lung = drawn_body.mask(*(name for name in TOTALSEG if name.startswith("lung") and name.endswith(side)))
    assert 1100 < volume_ml(lung) < 4000


def test_all_datasets_label_one_anatomy(drawn_body):
    total, chest, head = (label_voxels(drawn_body, organs) for organs in (TOTALSEG, CHEST, HEADNECK))
    for shared in set(TOTALSEG) & set(CHEST):
        assert ((total == TOTALSEG.index(shared) + 1) == (chest == CHEST.index(shared) + 1)).all()
    parts = [CHEST.index(f"{part}") + 1 for part in ("ascending_aorta", "aorta_arch", "descending_aorta")]
    assert (np.isin(chest, parts) == (total == TOTALSEG.index("aorta") + 1)).all()
    stem = head == HEADNECK.index("brainstem") + 1
    assert stem.any()
    assert (total[stem] == TOTALSEG.index("brain") + 1).all()


def test_arms_go_up_or_down(box_grid):
    grid = box_grid((120, -120, 250), (260, 120, 700), 8.0)
    heights = {}
    for arms in ("up", "down"):
        body = paint_patient(replace(REFERENCE, arms=arms), grid)
        heights[arms] = middle(of(body, "humerus_right"))[0]
    assert heights["up"] > heights["down"] + 10


@pytest.mark.parametrize(("organ", "field"), [("urinary_bladder", "bladder"), ("stomach", "stomach")])
def test_filling_widens_bladder_and_stomach(organ, field, box_grid):
    grid = box_grid((-130, -100, -140), (130, 110, 290), 6.0)
    empty, full = (
        of(paint_patient(replace(REFERENCE, **{field: share}), grid), organ).sum() for share in (0.0, 1.0)
    )
    assert full > 1.7 * empty


def test_a_tumour_thickens_and_displaces_the_esophagus(box_grid):
    grid = box_grid((-60, -90, 240), (60, 60, 440), 3.0)
    tumour = EsophagusTumour(level=0.5, length_mm=60, thickness_mm=18, bulge_mm=(9.0, 3.0))
    healthy, diseased = (
        paint_patient(patient, grid) for patient in (REFERENCE, replace(REFERENCE, tumours=(tumour,)))
    )
    z = int((337 - 240) / 3)
    areas = [of(body, "esophagus")[z].sum() for body in (healthy, diseased)]
    assert areas[1] > 2 * areas[0]
    assert "esophagus_tumour" not in healthy.tissue_names
    mass = diseased.tissues == diseased.tissue_names.index("esophagus_tumour")
    assert (of(diseased, "esophagus")[mass]).all()  # the tumour is esophagus to those who contour it


@pytest.mark.parametrize(
    ("site", "organ", "tissue"),
    [
        ("liver", "liver", "liver_tumor"),
        ("kidney", "kidney_left", "kidney_tumour"),
        ("brain", "brain", "brain_tumour"),
        ("neck", "neck_fat", "neck_tumour"),
    ],
)
def test_a_tumour_replaces_tissue_and_the_organ_stays(site, organ, tissue, box_grid):
    middle = SOFT[site].middle if organ == "liver" else np.array(SOFT[site].middle) * (-1, 1, 1)
    grid = box_grid(np.array(middle) - 40, np.array(middle) + 40, 4.0)
    tumour = SoftTumour(site, "left", (0.0, 0.0, 0.0), radius_mm=14)
    healthy, diseased = (
        paint_patient(patient, grid) for patient in (REFERENCE, replace(REFERENCE, tumours=(tumour,)))
    )
    mass = diseased.tissues == diseased.tissue_names.index(tissue)
    assert mass.sum() * 4.0**3 > 3000  # cubic millimetres; some of the lump is outside the organ
    assert (of(healthy, organ) == of(diseased, organ)).all()
    assert (of(diseased, organ) & mass).any()


def test_patients_differ_and_a_seed_gives_one_patient():
    assert draw_patient(5) == draw_patient(5)
    heights = [draw_patient(seed).height_mm for seed in range(20)]
    assert np.std(heights) > 30
