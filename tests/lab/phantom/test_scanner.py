"""What the scanner makes of a body."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from continual_segment.lab.phantom.body_map import BodyMap
from continual_segment.lab.phantom.organ_lists import TOTALSEG, label_voxels
from continual_segment.lab.phantom.patient import REFERENCE, Patient, draw_patient
from continual_segment.lab.phantom.scanner import Scan, Scanner, majority, place_patient, scan_patient

STILL = Scanner(offset_hu=0.0, turn_degrees=0.0)


def scanned(
    patient: Patient, low: float = 130, high: float = 230, mm: float = 6.0, scanner: Scanner = STILL
) -> Scan:
    rng = np.random.default_rng(4)
    view = place_patient(patient, low, high, 190.0, (mm, mm, mm), scanner, rng)
    return scan_patient(patient, view, scanner, rng)


def organ_hu(scan: Scan, organ: str) -> np.ndarray:
    labels = majority(label_voxels(scan.body, TOTALSEG), scan.split)
    return scan.hu[labels == TOTALSEG.index(organ) + 1]


@pytest.fixture(scope="module")
def belly_scan() -> Scan:
    return scanned(REFERENCE)


def test_tissues_have_their_hounsfield_values(belly_scan):
    assert 60 < np.median(organ_hu(belly_scan, "liver")) < 160
    assert np.median(organ_hu(belly_scan, "lung_lower_lobe_right")) < -500
    assert np.median(organ_hu(belly_scan, "vertebrae_T12")) > 120
    assert belly_scan.hu.dtype == np.int16
    assert np.percentile(belly_scan.hu, 1) < -950


@pytest.mark.parametrize("organ", ["aorta", "spleen", "kidney_left"])
def test_contrast_agent_lights_up_vessels_and_organs(belly_scan, organ):
    native = scanned(replace(REFERENCE, phase="native"))
    assert np.median(organ_hu(belly_scan, organ)) > np.median(organ_hu(native, organ)) + 30


def test_noise_grows_with_the_width_of_the_body():
    slim, stout = (replace(REFERENCE, bmi=bmi) for bmi in (20.0, 36.0))
    noise = [np.median(np.abs(np.diff(organ_hu(scanned(p), "liver").astype(float)))) for p in (slim, stout)]
    assert noise[1] > 1.2 * noise[0]


def test_a_table_lies_under_the_back(belly_scan):
    outside = majority(belly_scan.body.structures, belly_scan.split) == 0
    below = belly_scan.hu[:, : belly_scan.hu.shape[1] // 4]
    assert (below[outside[:, : below.shape[1]]] > -950).sum() > 100


@pytest.mark.parametrize("mm", [2.7, 5.0, 9.0])
def test_any_voxel_size_shows_the_same_liver(mm):
    scan = scanned(REFERENCE, 150, 210, mm)
    labels = majority(label_voxels(scan.body, TOTALSEG), scan.split)
    assert scan.grid.spacing_mm == pytest.approx((mm, mm, mm))
    volume = (labels == TOTALSEG.index("liver") + 1).sum() * mm**3 / 1000
    assert volume == pytest.approx(830, rel=0.25)


def test_partial_volume_leaves_values_between_those_of_the_tissues(belly_scan):
    share = ((belly_scan.hu > -700) & (belly_scan.hu < -300)).mean()
    assert share > 0.005  # borders of lung and skin


def test_body_parts_start_in_order_from_below():
    scan = scanned(draw_patient(2), -100, 500, 10.0)
    starts = list(scan.region_starts_mm.values())
    assert list(scan.region_starts_mm) == ["hip_thigh", "abdomen", "chest", "head_neck"]
    assert starts == sorted(starts)


def test_body_parts_part_at_the_lower_end_plates_of_l5_t11_and_t2():
    scan = scanned(REFERENCE, -60, 480, 6.0)
    labels = majority(label_voxels(scan.body, TOTALSEG), scan.split)
    heights = scan.grid.affine[2, 3] + 6.0 * np.arange(len(labels))
    for part, vertebra in (("abdomen", "L5"), ("chest", "T11"), ("head_neck", "T2")):
        bone = labels == TOTALSEG.index(f"vertebrae_{vertebra}") + 1
        middle = heights[np.argwhere(bone)[:, 0]].mean()
        assert 0 < middle - scan.region_starts_mm[part] < 30


def test_the_map_to_the_reference_body_has_an_inverse():
    points = np.array([[0.0, -20, 0], [80, 10, 200], [-60, -40, 440], [10, 60, 620]])
    body = BodyMap(draw_patient(3))
    assert np.abs(body.to_atlas(body.to_patient(points)) - points).max() < 0.5


def test_most_of_a_voxel_decides_its_label():
    fine = np.zeros((2, 2, 4), np.uint8)
    fine[:, :, 0] = 3  # half of the first voxel
    fine[0, 0, 2] = 5  # an eighth of the second
    assert majority(fine, (2, 2, 2)).tolist() == [[[3, 0]]]
