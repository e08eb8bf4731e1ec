"""Where in the body a dataset teaches anything: measured while it is learned, kept in its pack.

Of every training scan the slices between the lowest and the highest labelled voxel are counted per body part.
Two things come out of it. The distribution, which sums to 1, is the paper's table. The coverage is the
reliability of the pack: 1 where enough scans showed its organs, 0 where none did. A part that scans
show in passing, such as the neck above a chest, is as covered as any, since organs were labelled there.

In:  a prepared dataset, the regressor of a model (or none)
Out: Coverage; numbers alone, nothing of a patient
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from continual_segment.body_parts.learn import label_map, scan_of, training_cases
from continual_segment.body_parts.regions import Regions, regions_from_labels
from continual_segment.body_parts.regressor import BodyPartRegressor
from continual_segment.body_parts.spine import vertebra_bottoms
from continual_segment.data.prepared import PreparedDataset
from continual_segment.organs import BODY_PARTS
from continual_segment.volume import LabelMap, Volume

LEAST_MM = 20.0
"""Organs that reach less far into a part have not been seen there: boundaries are not exact."""
ENOUGH_SCANS = 0.25
"""Of those that show the best seen part: from here on a part is fully covered."""


@dataclass(frozen=True)
class Coverage:
    """What the training scans of one dataset show."""

    coverage: dict[str, float]
    """Body part -> 1 where scans enough show labelled organs, 0 where none does. Empty: unknown."""
    distribution: dict[str, float]
    """Body part -> share of the labelled height in it, mean over scans."""
    scans: int
    """Those with known body parts."""
    unknown: int
    """Those without."""
    by_labels: int
    """Of `scans`, those whose labels gave the parts; the regressor gave the others."""

    @property
    def card(self) -> dict[str, Any]:
        """What the pack's card keeps."""
        return {name: value for name, value in asdict(self).items() if name != "coverage"}


def measure_coverage(
    dataset: PreparedDataset, regressor: BodyPartRegressor | None, at_most: int = 60
) -> Coverage:
    """Of the training scans of a dataset, at most so many, spread evenly."""
    shares, seen, by_labels, unknown = [], [], 0, 0
    for case in training_cases(dataset, at_most):
        labels = label_map(dataset, case)
        regions, from_labels = regions_of(scan_of(case), labels, regressor)
        slices = slices_per_part(labels, regions)
        if not slices.sum():
            unknown += 1
            continue
        by_labels += from_labels
        shares.append(slices / slices.sum())
        seen.append(slices * case.grid.spacing_mm[0] >= LEAST_MM)
    if not seen or not np.any(seen):
        return Coverage({}, {}, 0, unknown + len(seen), 0)
    often = np.mean(seen, axis=0)
    covered = np.minimum(1.0, often / (ENOUGH_SCANS * often.max()))
    return Coverage(named(covered), named(np.mean(shares, axis=0)), len(seen), unknown, by_labels)


def regions_of(scan: Volume, labels: LabelMap, regressor: BodyPartRegressor | None) -> tuple[Regions, bool]:
    """The body parts of a labelled scan, and whether its labels gave them: vertebrae are most reliable."""
    if vertebra_bottoms(labels):
        return regions_from_labels(labels), True
    if regressor is not None and (found := regressor.regions(scan)).edges:
        return found, False
    return regions_from_labels(labels), True


def slices_per_part(labels: LabelMap, regions: Regions) -> np.ndarray:
    """The number of slices of each body part between the lowest and the highest labelled voxel."""
    filled = np.flatnonzero(labels.voxels.any(axis=(1, 2)))
    if not len(filled):
        return np.zeros(len(BODY_PARTS), int)
    parts = regions.body_part[filled[0] : filled[-1] + 1]
    return np.bincount(parts[parts >= 0], minlength=len(BODY_PARTS))


def named(values: np.ndarray) -> dict[str, float]:
    return {part: round(float(value), 4) for part, value in zip(BODY_PARTS, values, strict=True)}
