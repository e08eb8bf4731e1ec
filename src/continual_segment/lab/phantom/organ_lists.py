"""Which organs each dataset labels, and of which structures an organ consists.

One anatomy, several label lists: one may name the whole aorta, another its three parts. The names are those
of the package's organ table; orders are the datasets' own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from continual_segment.lab.phantom.landmarks import VERTEBRAE
from continual_segment.lab.phantom.structure import Body


def _sides(*names: str, order: Sequence[str] = ("left", "right")) -> tuple[str, ...]:
    return tuple(f"{name}_{side}" for name in names for side in order)


TOTALSEG = (
    "spleen", "kidney_right", "kidney_left", "gallbladder", "liver", "stomach", "aorta",
    "inferior_vena_cava", "portal_vein_and_splenic_vein", "pancreas", "adrenal_gland_right",
    "adrenal_gland_left", "lung_upper_lobe_left", "lung_lower_lobe_left", "lung_upper_lobe_right",
    "lung_middle_lobe_right", "lung_lower_lobe_right", *(f"vertebrae_{name}" for name in VERTEBRAE),
    "esophagus", "trachea", "heart_myocardium", "heart_atrium_left", "heart_ventricle_left",
    "heart_atrium_right", "heart_ventricle_right", "pulmonary_artery", "brain",
    *_sides("iliac_artery", "iliac_vena"), "small_bowel", "duodenum", "colon",
    *(f"rib_{side}_{number}" for side in ("left", "right") for number in range(1, 13)),
    *_sides("humerus", "scapula", "clavicula", "femur", "hip"), "sacrum",
    *_sides("gluteus_maximus", "gluteus_medius", "gluteus_minimus", "autochthon", "iliopsoas"),
    "urinary_bladder",
)  # fmt: skip
CHEST = (
    "esophagus", "sternum", *_sides("thyroid"), "trachea", *_sides("bronchus"), "anterior_cervical_muscle",
    "scalenus_muscle", "scalenus_anterior_muscle", "sternocleidomastoid_muscle", "ascending_aorta",
    "descending_aorta", "aorta_arch", *_sides("common_carotid_artery"), "pulmonary_artery",
    *_sides("subclavian_artery", "vertebral_artery"), "azygos_vein", *_sides("brachiocephalic_vein"),
    *_sides("internal_jugular_vein"), "pulmonary_vein", *_sides("subclavian_vein"), "inferior_vena_cava",
    "superior_vena_cava",
)  # fmt: skip
HEADNECK = (
    "brainstem", *_sides("eye", "lens", "optic_nerve"), "optic_chiasm", *_sides("parotid"), "spinal_cord",
    *_sides("temporomandibular_joint"),
)  # fmt: skip
ESOPHAGUS = ("esophagus",)
TUMOUR = (
    "esophagus_tumour", "lung_tumour", "liver_tumor", "kidney_tumour", "brain_tumour", "neck_tumour",
)  # fmt: skip

DEMO = {
    "totalseg": (
        "spleen", "liver", "aorta", "lung_upper_lobe_left", "lung_lower_lobe_left", "lung_upper_lobe_right",
        "lung_lower_lobe_right", "esophagus", "trachea", "heart_ventricle_left", "brain",
    ),
    "chest": ("esophagus", "trachea", "sternum", "descending_aorta"),
    "headneck": ("brainstem", "parotid_left", "parotid_right", "spinal_cord"),
    "esophagus": ESOPHAGUS,
    "tumour": TUMOUR,
}  # fmt: skip
"""Large, clear organs for a demonstration of minutes."""

MADE_OF = {
    "aorta": ("ascending_aorta", "aorta_arch", "descending_aorta"),
    "brain": ("brain", "brainstem"),
}
"""Organs that are more than the structure of their own name."""


def label_voxels(body: Body, organs: Sequence[str]) -> np.ndarray:
    """Labels 1, 2, ... in the order of `organs`, 0 elsewhere; a tumour is known by its tissue."""
    table = np.zeros(len(body.structure_names), np.uint8)
    for label, organ in enumerate(organs, start=1):
        table[np.isin(body.structure_names, MADE_OF.get(organ, (organ,)))] = label
    labels = table[body.structures]
    for label, organ in enumerate(organs, start=1):
        if organ in TUMOUR and organ in body.tissue_names:
            labels[body.tissues == body.tissue_names.index(organ)] = label
    return labels
