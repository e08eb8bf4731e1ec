"""The phantom datasets: what each one shows, labels and suffers from.

Four datasets are learned one after the other, as in the paper: a broad one of random body parts, one of the
chest that shares four organs with it, one of head and neck that shares none, and the esophagus again in
patients who all have a tumour there. A fifth holds masks of tumours in six places, for the anomaly head; a
patient may have several, or none in the scanned part of the body. Every dataset comes from its own scanners:
kernel, noise, contrast and the way patients lie differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np

from continual_segment.lab.phantom import organ_lists
from continual_segment.lab.phantom.patient import (
    Patient,
    SoftSite,
    Tumour,
    draw_esophagus_tumour,
    draw_lung_tumour,
    draw_patient,
    draw_soft_tumour,
)
from continual_segment.lab.phantom.scanner import FieldOfView, Scanner, place_patient

Range = tuple[float, float]
Disease = Literal["usual", "none", "esophagus"]
"""Tumours as a dataset's patients have them; none; or one of the esophagus in every patient and no other."""
DISEASES: tuple[Disease, ...] = get_args(Disease)


@dataclass(frozen=True)
class PhantomDataset:
    """What one dataset shows and labels."""

    number: int
    """DatasetNNN: 900 plus this."""
    organs: tuple[str, ...]
    demo_organs: tuple[str, ...]
    views: tuple[tuple[float, Range, Range], ...]
    """(share of the scans, range of the lower end, range of the upper end) in atlas mm: see landmarks.py."""
    demo_views: tuple[tuple[float, Range, Range], ...] = ()
    """The same for a demonstration; none: as always."""
    scanner: Scanner = field(default_factory=Scanner)
    arms_down_share: float = 0.15
    phases: tuple[float, float, float] = (0.25, 0.2, 0.55)
    """Shares of native, arterial and venous scans."""
    esophagus_tumour_share: float = 0.0
    lung_tumour_share: float = 0.0
    soft_tumour_shares: Mapping[SoftSite, float] = field(default_factory=dict)

    def with_disease(self, disease: Disease) -> PhantomDataset:
        """Other patients on the same scanner: this separates the effects of disease and scanner."""
        if disease == "usual":
            return self
        esophagus = 1.0 if disease == "esophagus" else 0.0
        return replace(self, esophagus_tumour_share=esophagus, lung_tumour_share=0.0, soft_tumour_shares={})

    @property
    def demo(self) -> PhantomDataset:
        """The same patients on the same scanner for a demonstration of minutes: fewer organs, fewer views."""
        return replace(self, organs=self.demo_organs, views=self.demo_views or self.views)

    @property
    def tumour(self) -> bool:
        """Whether every patient is diseased."""
        return max(self.esophagus_tumour_share, self.lung_tumour_share) >= 1

    def draw(self, seed: int) -> Patient:
        """A patient of this dataset."""
        rng = np.random.default_rng([seed, 10])
        phases = dict(zip(("native", "arterial", "venous"), self.phases, strict=True))
        return draw_patient(seed, self.arms_down_share, self._draw_tumours(rng), phases)

    def _draw_tumours(self, rng: np.random.Generator) -> tuple[Tumour, ...]:
        found: list[Tumour] = []
        if rng.random() < self.esophagus_tumour_share:
            found.append(draw_esophagus_tumour(rng))
        if rng.random() < self.lung_tumour_share:
            found += [draw_lung_tumour(rng) for _ in range(int(rng.integers(1, 3)))]
        for site, share in self.soft_tumour_shares.items():
            if rng.random() < share:
                found.append(draw_soft_tumour(site, rng))
        return tuple(found)

    def place(
        self, patient: Patient, spacing_mm: tuple[float, float, float], rng: np.random.Generator
    ) -> FieldOfView:
        """The part of the patient that is scanned."""
        shares = np.array([share for share, _, _ in self.views])
        _, lows, highs = self.views[rng.choice(len(self.views), p=shares / shares.sum())]
        low, high = float(rng.uniform(*lows)), float(rng.uniform(*highs))
        if low > 380:
            half_width = float(rng.uniform(135, 195))
        else:
            half_width = 158 * (1 + 0.01 * (patient.bmi - 24)) + patient.fat_mm + float(rng.uniform(8, 34))
        return place_patient(patient, low, high, half_width, spacing_mm, self.scanner, rng)


DATASETS = {
    "totalseg": PhantomDataset(
        1,
        organ_lists.TOTALSEG,
        organ_lists.DEMO["totalseg"],
        views=(
            (0.20, (60, 190), (470, 600)),  # chest
            (0.24, (-130, 20), (230, 330)),  # abdomen
            (0.14, (-190, -120), (100, 250)),  # pelvis
            (0.16, (-190, -100), (430, 520)),  # trunk
            (0.14, (380, 480), (730, 745)),  # head and neck
            (0.06, (120, 300), (730, 745)),  # head to chest
            (0.06, (-230, -170), (735, 745)),  # whole body
        ),
        demo_views=(
            (0.65, (40, 80), (470, 530)),  # chest and upper abdomen
            (0.35, (480, 520), (730, 745)),  # head
        ),
        scanner=Scanner(kernel_mm=0.8, noise_hu=11.0, contrast=1.0),
        arms_down_share=0.2,
        lung_tumour_share=0.05,
    ),
    "chest": PhantomDataset(
        2,
        organ_lists.CHEST,
        organ_lists.DEMO["chest"],
        views=((1.0, (110, 180), (530, 600)),),
        scanner=Scanner(kernel_mm=0.5, noise_hu=16.0, contrast=0.85, offset_hu=9.0),
        arms_down_share=0.35,
        phases=(0.3, 0.1, 0.6),
        lung_tumour_share=0.2,
    ),
    "headneck": PhantomDataset(
        3,
        organ_lists.HEADNECK,
        organ_lists.DEMO["headneck"],
        views=((1.0, (395, 450), (735, 745)),),
        scanner=Scanner(kernel_mm=1.1, noise_hu=13.0, contrast=0.8, offset_hu=14.0, turn_degrees=3.0),
        arms_down_share=1.0,
        phases=(0.5, 0.0, 0.5),
    ),
    "esophagus": PhantomDataset(
        4,
        organ_lists.ESOPHAGUS,
        organ_lists.DEMO["esophagus"],
        views=((1.0, (120, 180), (480, 530)),),
        scanner=Scanner(kernel_mm=1.0, noise_hu=15.0, contrast=1.2, offset_hu=10.0),
        phases=(0.1, 0.5, 0.4),
        esophagus_tumour_share=1.0,
    ),
    "tumour": PhantomDataset(
        5,
        organ_lists.TUMOUR,
        organ_lists.DEMO["tumour"],
        views=(
            (0.5, (120, 180), (480, 530)),  # chest
            (0.25, (-20, 60), (230, 300)),  # abdomen
            (0.25, (440, 490), (735, 745)),  # head and neck
        ),
        scanner=Scanner(kernel_mm=0.8, noise_hu=13.0, contrast=1.0, offset_hu=10.0),
        phases=(0.2, 0.3, 0.5),
        esophagus_tumour_share=0.5,
        lung_tumour_share=0.5,
        soft_tumour_shares={"liver": 0.5, "kidney": 0.4, "brain": 0.5, "neck": 0.4},
    ),
}
