"""Positions of slices that were rounded when the header was written.

Some archives write positions with one decimal. Slices 1.25 mm apart are then 1.2 or 1.3 mm apart by their
headers, and a reader that takes this for uneven gaps resamples a scan that is even. Here a line through the
positions is fitted; where no slice is farther from it than rounding explains, the line has the positions.

In:  positions of sorted slices
Out: the same positions, or those on the line
"""

from __future__ import annotations

import numpy as np

DECIMALS = (0, 1, 2)
"""Of positions that count as rounded; more are exact enough."""
NOISE_MM = 0.01
"""Deviation from the line of a coordinate that is not rounded."""
EXACT_MM = 1e-6
FIT_SLACK = 1.1
"""Two neighbours are rounded apart by one unit at most; the fitted distance has an error of its own."""
LARGEST_SHARE = 0.25
"""Of the distance between slices: rounding coarser than that could hide a slice that is missing."""


def without_rounding(positions_mm: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Positions (slice, 3) on a line with even steps, where rounding explains the difference."""
    index = _indices(positions_mm @ normal)
    if index is None:
        return positions_mm
    line, *_ = np.linalg.lstsq(np.stack([np.ones_like(index), index], axis=1), positions_mm, rcond=None)
    fitted = line[0] + index[:, None] * line[1]
    away = fitted - positions_mm
    unit = np.minimum(_units(positions_mm), LARGEST_SHARE * np.linalg.norm(line[1]))
    explained = (np.abs(away) <= unit).all() and (np.abs(np.diff(away, axis=0)) <= FIT_SLACK * unit).all()
    return fitted if explained and np.abs(away).max() > EXACT_MM else positions_mm


def _indices(heights_mm: np.ndarray) -> np.ndarray | None:
    """The number of each slice, counted so that a missing one has its number, too; None if there is none."""
    steps = np.diff(heights_mm)
    if (steps <= 0).any():
        return None
    single = steps[np.rint(steps / np.median(steps)) == 1]
    if single.size == 0:
        return None
    counts = np.rint(steps / single.mean())  # of many rounded steps the mean is exact
    return np.concatenate([[0.0], np.cumsum(counts)]) if (counts >= 1).all() else None


def _units(positions_mm: np.ndarray) -> np.ndarray:
    """The unit that each coordinate (3,) is rounded to."""
    return np.array([_unit(values) for values in positions_mm.T])


def _unit(values: np.ndarray) -> float:
    rounded = (count for count in DECIMALS if np.abs(values - values.round(count)).max() < EXACT_MM)
    return next((10.0**-count for count in rounded), NOISE_MM)
