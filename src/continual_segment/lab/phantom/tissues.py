"""Hounsfield values of the tissues, and how they change with contrast and from patient to patient."""

from __future__ import annotations

import numpy as np

from continual_segment.lab.phantom.patient import Patient

TISSUES: dict[str, tuple[float, float]] = {
    # tissue: (usual HU without contrast, spread between patients)
    "air": (-1000, 0), "air_inside": (-995, 0), "gas": (-980, 5), "skin": (30, 8), "fat": (-105, 6),
    "visceral_fat": (-98, 6), "pericardial_fat": (-70, 10), "orbital_fat": (-85, 6), "muscle": (52, 6),
    "lung": (-830, 30), "lung_vessel": (30, 10), "airway_wall": (-150, 40), "cartilage": (105, 20),
    "cortical_bone": (820, 110), "spongy_bone": (210, 55), "diploe": (420, 80), "tooth": (1500, 150),
    "disc": (85, 10), "csf": (12, 4), "cord": (36, 4), "grey_matter": (38, 2), "white_matter": (28, 2),
    "brainstem": (33, 3), "nerve": (42, 6), "vitreous": (12, 4), "lens": (95, 12), "parotid": (5, 16),
    "joint": (160, 30), "thyroid": (105, 18), "larynx": (90, 25), "esophagus_wall": (42, 5),
    "esophagus_content": (-180, 160), "stomach_wall": (45, 5), "stomach_content": (22, 14),
    "bowel_wall": (42, 5), "bowel_content": (18, 10), "stool": (28, 18), "liver": (58, 8),
    "spleen": (50, 4), "pancreas": (40, 6), "kidney_cortex": (32, 3), "kidney_medulla": (30, 3),
    "adrenal": (28, 6), "gallbladder_wall": (36, 5), "bile": (8, 5), "bladder_wall": (34, 4),
    "urine": (4, 4), "prostate": (40, 5), "uterus": (44, 5), "myocardium": (46, 3),
    "arterial_blood": (42, 3), "venous_blood": (42, 3), "portal_blood": (42, 3), "left_blood": (42, 3),
    "right_blood": (42, 3), "esophagus_tumour": (48, 6), "lung_tumour": (38, 8), "liver_tumor": (36, 8),
    "kidney_tumour": (36, 6), "brain_tumour": (46, 4), "neck_tumour": (46, 6),
}  # fmt: skip

ENHANCEMENT: dict[str, tuple[float, float]] = {
    # tissue: (HU gained in the arterial, in the venous phase)
    "arterial_blood": (270, 110), "left_blood": (260, 108), "right_blood": (190, 108),
    "venous_blood": (60, 115), "portal_blood": (50, 130), "lung_vessel": (190, 100), "myocardium": (65, 60),
    "liver": (18, 55), "spleen": (75, 70), "pancreas": (65, 50), "kidney_cortex": (130, 150),
    "kidney_medulla": (35, 130), "adrenal": (45, 40), "thyroid": (80, 70), "bowel_wall": (35, 45),
    "stomach_wall": (30, 40), "muscle": (6, 12), "esophagus_wall": (15, 22), "esophagus_tumour": (30, 38),
    "lung_tumour": (25, 40), "prostate": (20, 30), "uterus": (40, 55), "parotid": (25, 30),
    "gallbladder_wall": (15, 25), "bladder_wall": (12, 20), "grey_matter": (4, 6), "white_matter": (2, 3),
    "brainstem": (3, 5), "liver_tumor": (14, 24), "kidney_tumour": (70, 45), "brain_tumour": (26, 34),
    "neck_tumour": (26, 34),
}  # fmt: skip

TEXTURE: dict[str, float] = {
    # tissue: spread of its values within one patient
    "air": 0, "air_inside": 0, "gas": 10, "lung": 38, "stool": 34, "bowel_content": 14,
    "stomach_content": 14, "spongy_bone": 45, "cortical_bone": 70, "diploe": 60, "muscle": 9, "fat": 7,
    "visceral_fat": 10, "parotid": 14, "pancreas": 9, "esophagus_content": 80, "lung_tumour": 12,
    "esophagus_tumour": 10, "larynx": 40, "joint": 60, "airway_wall": 30, "thyroid": 12, "prostate": 7,
    "uterus": 8, "liver_tumor": 12, "kidney_tumour": 12, "brain_tumour": 8, "neck_tumour": 10,
}  # fmt: skip
"""Tissues that are not listed: 3 HU."""


def tissue_values(
    names: tuple[str, ...], patient: Patient, contrast: float, rng: np.random.Generator
) -> np.ndarray:
    """HU of each tissue in this scan; `contrast` scales how much agent was given."""
    column = {"arterial": 0, "venous": 1}.get(patient.phase)
    found = []
    bone = rng.normal(1.0, 0.14)  # density goes with age: one factor for all bone
    for name in names:
        usual, spread = TISSUES[name]
        value = usual + spread * float(np.clip(rng.normal(), -2, 2))
        if "bone" in name or name == "diploe":
            value = usual * bone
        if column is not None and name in ENHANCEMENT:
            value += ENHANCEMENT[name][column] * contrast * float(rng.normal(1.0, 0.08))
        found.append(value)
    return np.array(found, np.float32)
