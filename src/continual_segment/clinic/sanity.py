"""Is this a CT of a patient? Checked before any work is done.

A network answers whatever it is given: an MR, a CT squeezed to 0..255, one whose offset was lost. So the scan
is looked at first. What can hardly be an honest CT is a problem and stops the scan unless `--force` is given;
what is only odd is a warning and goes into the manifest. Crops without air, padding and metal are honest.

In:  Source
Out: Sanity: problems and warnings in sentences, and the numbers behind them
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from continual_segment.errors import ScanError
from continual_segment.files import Source, oblique_deg
from continual_segment.names import printable

SMALLEST_RANGE_HU = 100
SOFT_TISSUE_HU = (-200, 200)
LEAST_SOFT_TISSUE = 0.01
DARK_HU = -250
"""Darker than fat: air, lung, bowel gas, padding."""
AIR_HU = (-1100, -650)
"""The most frequent dark value: outside the body, or in a lung."""
LEAST_DARK = 0.05
"""Share of dark voxels from which their peak is meaningful."""
SIDE_MM = (20.0, 3000.0)
SPACING_MM = (0.05, 25.0)
OBLIQUE_DEG = 30.0
MOST_VOXELS_LOOKED_AT = 2_000_000


@dataclass(frozen=True)
class Sanity:
    """What a look at a scan showed."""

    problems: tuple[str, ...]
    warnings: tuple[str, ...]
    facts: dict[str, Any]
    """The numbers, for the manifest."""


def check_scan(name: str, source: Source, force: bool = False) -> Sanity:
    """Look at a scan; ScanError where it can hardly be a CT, unless forced."""
    sanity = look_at(source)
    if sanity.problems and not force:
        raise ScanError(f"{name}: {' '.join(sanity.problems)} If this is a CT all the same, give --force.")
    return sanity


def look_at(source: Source) -> Sanity:
    facts = _facts(source)
    problems = (*_modality(source), *_units(facts), *_size(facts))
    return Sanity(problems, tuple(_oddities(facts)), facts)


def _facts(source: Source) -> dict[str, Any]:
    grid, measured = source.grid, source.on_grid
    values = measured.voxels if measured.scanned is None else measured.voxels[measured.scanned]
    every = max(1, values.size // MOST_VOXELS_LOOKED_AT)
    voxels = values.reshape(-1)[::every]
    dark = voxels[voxels < DARK_HU]
    soft = voxels[(voxels > SOFT_TISSUE_HU[0]) & (voxels < SOFT_TISSUE_HU[1])]
    return {
        "modality": source.modality,
        "lowest_hu": float(values.min()),
        "highest_hu": float(values.max()),
        "dark_share": round(dark.size / voxels.size, 4),
        "air_peak_hu": _peak(dark),
        "soft_tissue_share": round(soft.size / voxels.size, 4),
        "soft_tissue_peak_hu": _peak(soft),
        "spacing_mm": [round(side, 4) for side in grid.spacing_mm],
        "size_mm": [round(count * side, 1) for count, side in zip(grid.shape, grid.spacing_mm, strict=True)],
        "shape": list(grid.shape),
        "orientation": grid.orientation,
        "oblique_deg": round(oblique_deg(source.volume.grid), 1),
    }


def _peak(values: np.ndarray) -> float | None:
    """The most frequent value, to 10 HU."""
    if values.size == 0:
        return None
    counts = np.bincount(((values.astype(np.float64).clip(-32768, 32767) + 32768) // 10).astype(np.int64))
    return float(counts.argmax() * 10 - 32768 + 5)


def _modality(source: Source) -> tuple[str, ...]:
    if source.modality in ("", "CT"):
        return ()
    return (f"The images are {printable(source.modality)}; CT in Hounsfield units was expected.",)


def _units(facts: dict[str, Any]) -> tuple[str, ...]:
    lowest, highest = facts["lowest_hu"], facts["highest_hu"]
    span = f"Values run from {lowest:g} to {highest:g}"
    if lowest == highest:
        return (f"Every voxel is {lowest:g}; this is an empty scan.",)
    if highest - lowest < SMALLEST_RANGE_HU:
        return (
            f"{span}, too little to separate fat from muscle: they were scaled and are no Hounsfield units.",
        )
    if lowest >= 0:
        kind = "an 8-bit picture" if highest <= 255 else "stored values without the scanner's offset of -1024"
        return (
            f"{span}; air is -1000 in a CT. This looks like {kind}. Export the scan in Hounsfield units.",
        )
    peak = facts["air_peak_hu"]
    if facts["dark_share"] >= LEAST_DARK and not AIR_HU[0] <= peak <= AIR_HU[1]:
        return (f"Air seems to be at {peak:g} HU, not near -1000: values were scaled or shifted.",)
    if facts["soft_tissue_share"] < LEAST_SOFT_TISSUE:
        share = 100 * facts["soft_tissue_share"]
        return (f"{share:.1f} % of the voxels are between -200 and 200 HU; there is no patient here.",)
    return ()


def _size(facts: dict[str, Any]) -> tuple[str, ...]:
    problems = []
    if min(facts["size_mm"]) < SIDE_MM[0] or max(facts["size_mm"]) > SIDE_MM[1]:
        sides = " x ".join(f"{side:g}" for side in facts["size_mm"])
        problems.append(
            f"The scan covers {sides} mm (z, y, x); {SIDE_MM[0]:g} to {SIDE_MM[1]:g} mm a side was expected."
        )
    if min(facts["spacing_mm"]) < SPACING_MM[0] or max(facts["spacing_mm"]) > SPACING_MM[1]:
        sides = " x ".join(f"{side:g}" for side in facts["spacing_mm"])
        problems.append(
            f"Voxels are {sides} mm (z, y, x); {SPACING_MM[0]:g} to {SPACING_MM[1]:g} mm was expected."
        )
    return tuple(problems)


def _oddities(facts: dict[str, Any]) -> list[str]:
    warnings = []
    if facts["oblique_deg"] > OBLIQUE_DEG:
        warnings.append(f"The scan is {facts['oblique_deg']:g} degrees oblique in the patient.")
    if facts["dark_share"] < LEAST_DARK:
        warnings.append("There is hardly any air in the scan; it seems to be cropped.")
    return warnings
