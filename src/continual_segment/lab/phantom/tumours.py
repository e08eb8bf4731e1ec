"""Tumours of lungs, liver, kidneys, brain and neck: lumps that change the tissue of what they grow in.

Those of the esophagus change its shape as well and are painted with it (chest.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from continual_segment.lab.phantom.chest import LOBES
from continual_segment.lab.phantom.patient import LungTumour, Patient, SoftSite, SoftTumour
from continual_segment.lab.phantom.solids import Ellipsoid, Solid, Union
from continual_segment.lab.phantom.structure import KEEP, Structure


@dataclass(frozen=True)
class Site:
    """Where tumours of one kind grow, given on the right."""

    middle: tuple[float, float, float]
    half_extent: tuple[float, float, float]
    over: frozenset[str]
    """Structures whose tissue they replace."""
    tissue: str
    """What they consist of; also the name of their label."""
    paired: bool = True
    """Whether there is one on the left, too."""

    def centre(self, tumour: LungTumour | SoftTumour) -> np.ndarray:
        centre = np.array(self.middle) + np.array(self.half_extent) * tumour.place
        mirrored = self.paired and tumour.side == "left"
        return centre * (-1.0 if mirrored else 1.0, 1.0, 1.0)


LUNG = Site((78, -18, 355), (40, 55, 70), frozenset(LOBES), "lung_tumour")
SOFT: dict[SoftSite, Site] = {
    "liver": Site((62, 0, 172), (42, 45, 40), frozenset({"liver"}), "liver_tumor", paired=False),
    "kidney": Site((72, -24, 130), (20, 16, 38), frozenset({"kidney_left", "kidney_right"}), "kidney_tumour"),
    "brain": Site((34, 0, 665), (22, 45, 28), frozenset({"brain"}), "brain_tumour"),
    "neck": Site((38, -4, 508), (9, 20, 34), frozenset({"neck_fat", "fat", "muscle"}), "neck_tumour"),
}


def lung_tumour_structures(patient: Patient) -> list[Structure]:
    lumps = [(LUNG, tumour) for tumour in patient.tumours if isinstance(tumour, LungTumour)]
    return _structures(lumps, patient, 40)


def soft_tumour_structures(patient: Patient) -> list[Structure]:
    lumps = [(SOFT[each.site], each) for each in patient.tumours if isinstance(each, SoftTumour)]
    return _structures(lumps, patient, 41)


def _structures(
    lumps: Sequence[tuple[Site, LungTumour | SoftTumour]], patient: Patient, kind: int
) -> list[Structure]:
    return [
        Structure(KEEP, _lump(site, tumour, [patient.seed, kind, number]), site.tissue, only_over=site.over)
        for number, (site, tumour) in enumerate(lumps)
    ]


def _lump(site: Site, tumour: LungTumour | SoftTumour, seed: list[int]) -> Solid:
    """A knobbly ball."""
    rng = np.random.default_rng(seed)
    centre, radius = site.centre(tumour), tumour.radius_mm
    knobs = [Ellipsoid(centre, radius * rng.uniform(0.75, 1.0, 3), rng.uniform(0, 90, 3))]
    for _ in range(5):
        direction = rng.normal(size=3)
        direction /= np.linalg.norm(direction)
        knobs.append(Ellipsoid(centre + direction * radius * 0.7, radius * rng.uniform(0.3, 0.55, 3)))
    return Union(knobs)
