"""One imagined patient: everything that makes a body differ from the next, drawn from a seed.

Numbers follow adult ranges: stature and build depend on sex, organs follow the body and then vary on their
own. The reference body (every number zero or one) is a man of 1750 mm; the map to and from him is in
`body_map.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import numpy as np

REFERENCE_HEIGHT_MM = 1750.0

ORGAN_VARIATION: dict[str, tuple[float, float]] = {
    # organ: (spread of its linear scale, spread of its place in mm along each axis)
    "liver": (0.05, 3.0),
    "spleen": (0.09, 4.0),
    "kidney_left": (0.06, 4.0),
    "kidney_right": (0.06, 4.0),
    "adrenal_left": (0.08, 1.5),
    "adrenal_right": (0.08, 1.5),
    "gallbladder": (0.15, 4.0),
    "pancreas": (0.08, 2.0),
    "stomach": (0.06, 3.0),
    "duodenum": (0.07, 1.5),
    "colon": (0.10, 3.0),
    "small_bowel": (0.06, 4.0),
    "heart": (0.06, 2.0),
    "myocardium": (0.12, 0.0),
    "aorta": (0.08, 0.0),
    "arteries": (0.08, 0.0),
    "veins": (0.10, 0.0),
    "thyroid": (0.12, 1.0),
    "parotid": (0.08, 1.5),
    "eyes": (0.03, 0.7),
    "brainstem": (0.05, 0.5),
    "prostate": (0.12, 1.0),
    "muscles": (0.09, 0.0),
    "ribs": (0.08, 0.0),
}


@dataclass(frozen=True)
class EsophagusTumour:
    """A growth in the wall of the esophagus."""

    level: float
    """Position of its middle along the thoracic esophagus, 0 at the thoracic inlet, 1 at the stomach."""
    length_mm: float
    thickness_mm: float
    """Radius of the diseased esophagus; a healthy one has some 8 mm."""
    bulge_mm: tuple[float, float]
    """How far the growth pushes the esophagus off its line, to the right and to the front."""


@dataclass(frozen=True)
class LungTumour:
    """A mass in one lung."""

    side: Literal["left", "right"]
    place: tuple[float, float, float]
    """Share of the lung's half-extent outwards, forwards and upwards from its middle, each -1 to 1."""
    radius_mm: float


SoftSite = Literal["liver", "kidney", "brain", "neck"]


@dataclass(frozen=True)
class SoftTumour:
    """A mass in an organ of soft tissue, or between the muscles of the neck."""

    site: SoftSite
    side: Literal["left", "right"]
    """Of sites that come in two."""
    place: tuple[float, float, float]
    """Share of the site's half-extent outwards, forwards and upwards from its middle, each -1 to 1."""
    radius_mm: float


Tumour = EsophagusTumour | LungTumour | SoftTumour


@dataclass(frozen=True)
class Patient:
    """What a body is drawn from."""

    seed: int
    """Drives the smooth deformation and bowel loops."""
    sex: Literal["female", "male"] = "male"
    height_mm: float = REFERENCE_HEIGHT_MM
    bmi: float = 24.0
    """Weight over squared height: subcutaneous fat, belly depth and image noise follow it."""
    head_scale: float = 1.0
    kyphosis_mm: float = 0.0
    """Extra backward bow of the chest spine."""
    lordosis_mm: float = 0.0
    """Extra forward bow of the lower spine."""
    scoliosis_mm: float = 0.0
    """Sideways bow, to the right at the chest."""
    head_tilt: float = 0.0
    """Chin down (positive) or up, as a shear of the head against the neck."""
    breath_mm: float = 0.0
    """Height of the diaphragm above its usual place."""
    arms: Literal["up", "down"] = "up"
    bladder: float = 0.5
    """Filling, 0 empty to 1 full."""
    stomach: float = 0.5
    """Filling, 0 empty to 1 full."""
    phase: Literal["native", "arterial", "venous"] = "venous"
    """Contrast phase of the scan."""
    scale: Mapping[str, float] = field(default_factory=dict)
    """Own linear scale of an organ on top of the body's."""
    shift: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    """Own displacement of an organ in mm right, anterior, superior."""
    deformation_mm: float = 3.0
    """Root mean square of the smooth random deformation, along each axis."""
    tumours: tuple[Tumour, ...] = ()

    def scale_of(self, organ: str) -> float:
        return self.scale.get(organ, 1.0)

    def shift_of(self, organ: str) -> tuple[float, float, float]:
        return self.shift.get(organ, (0.0, 0.0, 0.0))

    @property
    def fat_mm(self) -> float:
        """Subcutaneous fat at the belly."""
        more_in_women = 1.25 if self.sex == "female" else 1.0
        return float(np.clip(6.0 + 1.7 * (self.bmi - 20.0), 4.0, 45.0) * more_in_women)


REFERENCE = Patient(seed=0, deformation_mm=0.0)
"""The reference man, undeformed."""


def draw_patient(
    seed: int,
    arms_down_share: float = 0.3,
    tumours: tuple[Tumour, ...] = (),
    phases: Mapping[str, float] = MappingProxyType({"native": 0.25, "arterial": 0.2, "venous": 0.55}),
) -> Patient:
    """A patient from a seed; tumours and the protocol's habits come from the dataset."""
    rng = np.random.default_rng([seed, 1])
    sex: Literal["female", "male"] = "female" if rng.random() < 0.5 else "male"
    usual_height = 1630.0 if sex == "female" else 1750.0
    height_mm = float(np.clip(rng.normal(usual_height, 65.0), usual_height - 150, usual_height + 150))
    bmi = float(np.clip(rng.lognormal(np.log(24.5), 0.15), 18.0, 37.0))
    return Patient(
        seed=seed,
        sex=sex,
        height_mm=height_mm,
        bmi=bmi,
        head_scale=float((0.965 if sex == "female" else 1.0) * np.clip(rng.normal(1, 0.025), 0.94, 1.06)),
        kyphosis_mm=float(np.clip(rng.normal(0, 6), -10, 14)),
        lordosis_mm=float(np.clip(rng.normal(0, 5), -9, 10)),
        scoliosis_mm=float(np.clip(rng.normal(0, 4), -10, 10)),
        head_tilt=float(np.clip(rng.normal(0, 0.05), -0.12, 0.12)),
        breath_mm=float(np.clip(rng.normal(0, 8), -15, 16)),
        arms="down" if rng.random() < arms_down_share else "up",
        bladder=float(rng.beta(1.5, 1.8)),
        stomach=float(rng.beta(1.3, 1.8)),
        phase=str(rng.choice(list(phases), p=list(phases.values()))),  # type: ignore[arg-type]
        scale=_draw_scales(rng, height_mm / REFERENCE_HEIGHT_MM, bmi),
        shift={name: tuple(rng.normal(0, mm, 3).tolist()) for name, (_, mm) in ORGAN_VARIATION.items()},
        deformation_mm=float(rng.uniform(2.0, 3.6)),
        tumours=tumours,
    )


def _draw_scales(rng: np.random.Generator, stature: float, bmi: float) -> dict[str, float]:
    """Organs of one patient are large or small together: a third of the spread is shared.

    They follow the body's size less than in proportion: part of the body map's scaling is taken back.
    """
    together = rng.normal()
    drawn = {
        name: float(
            stature**-0.4 * np.exp(spread * np.clip(0.58 * together + 0.81 * rng.normal(), -2.2, 2.2))
        )
        for name, (spread, _) in ORGAN_VARIATION.items()
    }
    drawn["liver"] *= float(np.clip(1 + 0.006 * (bmi - 24), 0.95, 1.06))
    return drawn


def draw_esophagus_tumour(rng: np.random.Generator) -> EsophagusTumour:
    """Advanced growths: two to three times as thick as the healthy esophagus, off its line."""
    angle = rng.uniform(0, 2 * np.pi)
    push = rng.uniform(4.0, 11.0)
    return EsophagusTumour(
        level=float(rng.uniform(0.2, 0.9)),
        length_mm=float(rng.uniform(40, 90)),
        thickness_mm=float(rng.uniform(13, 21)),
        bulge_mm=(float(push * np.cos(angle)), float(push * abs(np.sin(angle)) * 0.6)),
    )


def draw_lung_tumour(rng: np.random.Generator) -> LungTumour:
    return LungTumour(
        side="left" if rng.random() < 0.45 else "right",
        place=(float(rng.uniform(-0.3, 0.7)), float(rng.uniform(-0.6, 0.5)), float(rng.uniform(-0.3, 0.7))),
        radius_mm=float(rng.uniform(8, 26)),
    )


SOFT_RADIUS_MM: dict[SoftSite, tuple[float, float]] = {
    "liver": (11, 28),
    "kidney": (10, 22),
    "brain": (10, 24),
    "neck": (9, 18),
}
"""Of tumours, from the smallest to the largest."""


def draw_soft_tumour(site: SoftSite, rng: np.random.Generator) -> SoftTumour:
    return SoftTumour(
        site,
        side="left" if rng.random() < 0.5 else "right",
        place=(float(rng.uniform(-0.7, 0.7)), float(rng.uniform(-0.7, 0.7)), float(rng.uniform(-0.7, 0.7))),
        radius_mm=float(rng.uniform(*SOFT_RADIUS_MM[site])),
    )
