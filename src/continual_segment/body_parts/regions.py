"""Regions: which of the four body parts every slice of a scan belongs to.

From labels, by the spine; or from the scores of the regressor, which are smoothed, made to rise, and cut at
the scores of the landmarks. What does not look like a body scanned from one end to the other is unknown, and
unknown restricts no pack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter1d

from continual_segment.body_parts.spine import LANDMARKS, USUAL_MM, ruler_of
from continual_segment.organs import BODY_PARTS, UNKNOWN_PART
from continual_segment.volume import Grid, LabelMap


@dataclass(frozen=True, eq=False)
class Regions:
    """The body parts of one scan."""

    grid: Grid
    body_part: np.ndarray
    """int8 (z,): index in BODY_PARTS per slice, or UNKNOWN_PART"""
    edges: tuple[float, ...] = ()
    """Slice numbers, with fractions, at which abdomen, chest, and head and neck begin; beyond the scan they
    show on which side. Empty where unknown."""
    reversed: bool = False
    """Whether the slices run from head to foot."""
    reasons: tuple[str, ...] = ()
    """Why slices are unknown."""

    @property
    def slices(self) -> dict[str, tuple[int, int]]:
        """Part -> its first slice and one past its last; parts outside the scan are left out."""
        found = {name: np.flatnonzero(self.body_part == index) for index, name in enumerate(BODY_PARTS)}
        return {name: (int(at[0]), int(at[-1]) + 1) for name, at in found.items() if len(at)}

    @property
    def starts_mm(self) -> dict[str, float]:
        """Part -> its lower end along the patient's axis (the file's z, mm), if in the scan."""
        last = len(self.body_part) - 0.5
        named = zip(BODY_PARTS[1:], self.edges, strict=False)
        return {name: height_mm(self.grid, edge) for name, edge in named if -0.5 <= edge <= last}

    def as_data(self) -> dict[str, Any]:
        unknown = int(np.count_nonzero(self.body_part == UNKNOWN_PART))
        return {
            "starts_mm": {name: round(mm, 2) for name, mm in self.starts_mm.items()},
            "slices": {name: list(at) for name, at in self.slices.items()},
            "unknown_slices": unknown,
            "reversed": self.reversed,
            "reasons": list(self.reasons),
        }


def height_mm(grid: Grid, slice_number: float) -> float:
    """z in the patient of the middle of a slice; between slices too."""
    _, y, x = grid.shape
    return float((grid.affine @ [(x - 1) / 2, (y - 1) / 2, slice_number, 1])[2])


def unknown(grid: Grid, *reasons: str) -> Regions:
    return Regions(grid, np.full(grid.shape[0], UNKNOWN_PART, np.int8), reasons=reasons)


def parts_between(edges: Sequence[float], slices: int) -> np.ndarray:
    """The part of every slice, from rising edges: contiguous and ordered whatever they are."""
    return np.searchsorted(np.maximum.accumulate(edges), np.arange(slices), side="right").astype(np.int8)


def regions_from_labels(labels: LabelMap) -> Regions:
    """Body parts by the vertebrae of a label map, or by organs in place of them."""
    ruler = ruler_of(labels)
    if ruler is None:
        return unknown(labels.grid, "The labels have no vertebra and no organ of a known height.")
    edges = tuple(ruler.slice_at(USUAL_MM[name]) for name in LANDMARKS)
    return Regions(labels.grid, parts_between(edges, labels.grid.shape[0]), edges)


@dataclass(frozen=True)
class Calibration:
    """What scores mean."""

    landmarks: Mapping[str, float]
    """Vertebra -> score of its lower end-plate, the median over labelled scans."""
    score_per_mm: float
    """Usual rise of the score."""
    lowest: float
    """Scores that scans of training reached; beyond them nothing was learned."""
    highest: float

    @property
    def complete(self) -> bool:
        return set(LANDMARKS) <= self.landmarks.keys()


@dataclass(frozen=True)
class RegionConfig:
    """When scores are believed."""

    smooth_mm: float = 10.0
    """Sigma of the smoothing along the body."""
    least_slices: int = 8
    least_mm: float = 60.0
    """Shorter scans have no order to be sure of."""
    largest_gap_mm: float = 20.0
    """Between slices."""
    least_order: float = 0.97
    """Rank correlation of smoothed score and height."""
    slope: tuple[float, float] = (0.4, 2.5)
    """Rise of the score against the usual one; beyond these the spacing or the body is not what it seems."""
    beyond: float = 0.5
    """Scores this far outside those of training are unknown."""


def regions_from_scores(
    scores: np.ndarray,
    body: np.ndarray,
    grid: Grid,
    calibration: Calibration,
    config: RegionConfig | None = None,
) -> Regions:
    """Body parts from the score of every slice of `grid`; `body` marks the slices that show a body at all."""
    config = config or RegionConfig()
    slice_mm = grid.spacing_mm[0]
    inside = np.flatnonzero(body)
    if why := doubts(scores[inside], inside * slice_mm, slice_mm, calibration, config):
        return unknown(grid, *why)
    smooth = smoothed(scores[inside], config.smooth_mm / slice_mm)
    falls = rise_per_mm(smooth, inside * slice_mm) < 0
    rising = never_falling(smooth[::-1] if falls else smooth)
    heights = (len(body) - 1 - inside)[::-1] if falls else inside
    edges = [crossing(heights, rising, calibration.landmarks[name]) for name in LANDMARKS]
    parts = parts_between(edges, len(body))
    known = np.zeros(len(body), bool)
    known[heights] = (rising >= calibration.lowest - config.beyond) & (
        rising <= calibration.highest + config.beyond
    )
    parts[~known] = UNKNOWN_PART
    reasons = () if known.all() else ("Some slices show no body, or one unlike those of training.",)
    if not falls:
        return Regions(grid, parts, tuple(edges), reasons=reasons)
    turned = tuple(len(body) - 1 - edge for edge in edges)
    return Regions(grid, parts[::-1].copy(), turned, reversed=True, reasons=reasons)


def doubts(
    scores: np.ndarray,
    heights_mm: np.ndarray,
    slice_mm: float,
    calibration: Calibration,
    config: RegionConfig,
) -> list[str]:
    """Why the scores of a scan cannot be believed; empty where they can."""
    if not calibration.complete:
        return ["The regressor is not calibrated: no scan of its training had labelled vertebrae."]
    if slice_mm > config.largest_gap_mm:
        return [f"Slices are {slice_mm:.0f} mm apart, more than {config.largest_gap_mm:.0f}."]
    if len(scores) < config.least_slices or np.ptp(heights_mm) < config.least_mm:
        return [f"Only {len(scores)} slices show a body: too few to find their order."]
    smooth = smoothed(scores, config.smooth_mm / slice_mm)
    order = abs(rank_correlation(heights_mm, smooth)) if np.ptp(smooth) > 0 else 0.0
    if order < config.least_order:
        return [f"Scores do not follow the height (rank correlation {order:.2f})."]
    slope = abs(rise_per_mm(scores, heights_mm)) / calibration.score_per_mm
    if not config.slope[0] <= slope <= config.slope[1]:
        return [f"Scores rise {slope:.2f} times as fast as usual: is the distance of slices right?"]
    return []


def smoothed(scores: np.ndarray, sigma_slices: float) -> np.ndarray:
    return gaussian_filter1d(np.asarray(scores, float), sigma_slices, mode="nearest")


def never_falling(values: np.ndarray) -> np.ndarray:
    """The nearest values, by squares, that never fall; scipy.optimize takes a quarter of a second to import.

    Neighbours that fall are pooled, again and again.
    """
    means, counts = list[float](), list[int]()
    for value in values.tolist():
        mean, count = value, 1
        while means and means[-1] >= mean:
            before = counts.pop()
            mean = (means.pop() * before + mean * count) / (before + count)
            count += before
        means.append(mean)
        counts.append(count)
    return np.repeat(means, counts)


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's coefficient; scipy.stats, which has it too, takes half a second to import."""
    return float(np.corrcoef(mean_ranks(one), mean_ranks(other))[1, 0])  # [0, 1] may differ in its last bit


def mean_ranks(values: np.ndarray) -> np.ndarray:
    """Rank of each value from 1; equal values share the mean of theirs."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[group]


def rise_per_mm(scores: np.ndarray, heights_mm: np.ndarray) -> float:
    """Usual slope: the median over slices of the lower half and their partners in the upper one."""
    half = len(scores) // 2
    return float(
        np.median((scores[half:][:half] - scores[:half]) / (heights_mm[half:][:half] - heights_mm[:half]))
    )


def crossing(slices: np.ndarray, rising: np.ndarray, score: float) -> float:
    """Where rising scores pass a score, in slices with fractions; infinite where they do not."""
    if score <= rising[0]:
        return -np.inf
    if score > rising[-1]:
        return np.inf
    after = int(np.searchsorted(rising, score))
    low, high = rising[after - 1], rising[after]
    share = (score - low) / (high - low) if high > low else 0.5
    return float(slices[after - 1] + share * (slices[after] - slices[after - 1]))
