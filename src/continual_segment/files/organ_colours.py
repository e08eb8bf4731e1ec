"""Colours of organs: near to what a reader of anatomy expects, and saturated enough to be seen on a CT.

Arteries are red, veins blue, bones golden, muscles brick red, airways turquoise. Organs of one kind differ in
hue, saturation and brightness, neighbours in a row such as ribs most of all. An organ has the same colour in
label maps, DICOM objects, previews, reports and the viewer.

In:  the value of a label, which is an organ's id in all that this package writes
Out: red, green, blue from 0 to 1
"""

from __future__ import annotations

import colorsys
import re
from dataclasses import dataclass
from functools import cache

from continual_segment.organs import Organ, known_organs

GOLDEN_RATIO = 0.618033988749895
Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Kind:
    """Organs that look alike."""

    words: str
    """Regular expression for names of organs."""
    hue: float
    """0 red, 1/3 green, 2/3 blue."""
    saturation: float
    brightness: float
    spread: float = 0.02
    """How far hues differ to either side."""


KINDS = (
    Kind(r"tumou?r|nodules|cyst|hemorrhage|effusion|false_lumen", 0.88, 0.75, 0.95),
    Kind(r"vein|vena|portal|sinuses", 0.61, 0.65, 0.85, 0.04),
    Kind(r"arter|aorta|celiac|brachiocephalic_trunk|carotid|vessels", 0.995, 0.78, 0.88, 0.03),
    Kind(r"^heart|^atrial", 0.95, 0.6, 0.82, 0.045),
    Kind(r"trachea|bronchus|airway|larynx|pharynx|nasal|^sinus|canal|air$", 0.47, 0.55, 0.85, 0.03),
    Kind(r"^lung", 0.54, 0.42, 0.85, 0.055),
    Kind(r"liver", 0.055, 0.68, 0.74, 0.02),
    Kind(r"spleen", 0.77, 0.48, 0.78),
    Kind(r"kidney|ureter", 0.075, 0.75, 0.92, 0.015),
    Kind(r"stomach", 0.92, 0.42, 0.88),
    Kind(r"esophagus", 0.135, 0.75, 0.85),
    Kind(r"duodenum|small_bowel|colon|rectum", 0.03, 0.42, 0.92, 0.04),
    Kind(r"pancreas|adrenal", 0.145, 0.62, 0.95),
    Kind(r"gallbladder|bile", 0.3, 0.6, 0.72),
    Kind(r"bladder|prostate|uterus|seminal|test[ie]s|ovary", 0.17, 0.55, 0.85, 0.03),
    Kind(r"brainstem|cerebellum|thalamus|hippocampus|nucleus|capsule", 0.78, 0.5, 0.88, 0.05),
    Kind(r"cord|plexus|optic|nerve", 0.17, 0.8, 0.98, 0.02),
    Kind(r"eye|lens|cochlea|lacrimal", 0.56, 0.5, 0.98, 0.04),
    Kind(r"brain|lobe|cortex|sulcus|ventricle|septum|subarachnoid", 0.9, 0.38, 0.9, 0.05),
    Kind(r"parotid|submandibular|gland|thyroid|thymus|tongue", 0.36, 0.45, 0.82, 0.05),
    Kind(r"rib|vertebra|spine|disc|skull|mandible|teeth|joint|hyoid|palate|zygomatic|styloid|cartilage",
         0.115, 0.58, 0.92, 0.05),
)  # fmt: skip
"""The first that fits."""
GROUPS = {
    "other_bones": Kind("", 0.115, 0.5, 0.9, 0.05),
    "muscles": Kind("", 0.02, 0.55, 0.72, 0.04),
    "tissue": Kind("", 0.14, 0.35, 0.85),
}


def label_colour(label: int) -> Colour:
    """The colour of a label; of one that is no organ of the table, any that is far from its neighbours'."""
    organ = _by_id().get(label)
    kind = organ and _kind(organ)
    return _shade(kind, label) if kind else _any_colour(label)


def _kind(organ: Organ) -> Kind | None:
    fits = (kind for kind in KINDS if re.search(kind.words, organ.name))
    return GROUPS.get(organ.group) or next(fits, None)


def _shade(kind: Kind, label: int) -> Colour:
    """Three numbers from -1 to 1 that jump from each label to the next."""
    hue, saturation, brightness = (2 * (label * GOLDEN_RATIO**power % 1) - 1 for power in (1, 2, 3))
    return colorsys.hsv_to_rgb(
        (kind.hue + kind.spread * hue) % 1,
        min(1.0, kind.saturation + 0.12 * saturation),
        min(1.0, kind.brightness + 0.09 * brightness),
    )


def _any_colour(label: int) -> Colour:
    hue = label * GOLDEN_RATIO % 1
    return colorsys.hsv_to_rgb(hue, (0.85, 0.6, 1.0)[label % 3], (0.95, 1.0, 0.75)[label // 3 % 3])


@cache
def _by_id() -> dict[int, Organ]:
    return {organ.id: organ for organ in known_organs()}
