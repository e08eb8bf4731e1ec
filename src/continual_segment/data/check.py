"""Read one case of a raw dataset and list all that is wrong with it.

The hard part is to distinguish Hounsfield units from other numbers without refusing valid scans. Allowed are
padding outside the field of view (-2000, -3024), metal (30000), and scans clipped at air (-1000) or to a
window. Every scan of a patient has air or at least fat, so a scan without a voxel below 0 HU has other units;
so does one whose whole range would hardly separate fat from muscle.

Where masks overlap, the smaller organ keeps the voxel, because it is the one that would vanish.

In:  RawCase, names by label number
Out: LoadedCase: scan, labels 1..n in the order of the numbers, problems, overlaps
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from continual_segment.data.layouts import RawCase
from continual_segment.errors import ScanError
from continual_segment.files import name_of_scan, read_labels, read_scan
from continual_segment.names import some_of
from continual_segment.organs import canonical_name
from continual_segment.volume import Grid, LabelMap, Volume

LOWEST_HU, HIGHEST_HU = -10_000, 40_000
SMALLEST_RANGE_HU = 100
PLACE_TOLERANCE = 0.05
"""How far scan and labels may be apart, as a share of the smallest voxel side: headers are rounded."""

Overlaps = Counter[tuple[str, str]]
"""Voxels claimed by two masks, by pair of organs in alphabetical order."""


@dataclass
class LoadedCase:
    """A case as far as it could be read."""

    scan: Volume | None = None
    labels: LabelMap | None = None
    problems: list[str] = field(default_factory=list)
    overlaps: Overlaps = field(default_factory=Counter)


@dataclass(frozen=True)
class CaseReport:
    """What checking one case found, without its voxels."""

    case: str
    problems: tuple[str, ...]
    overlaps: Overlaps
    without_organs: bool


def check_case(case: RawCase, names: Mapping[int, str], one_mask_per_organ: bool) -> CaseReport:
    loaded = load_case(case, names, one_mask_per_organ)
    without_organs = loaded.labels is not None and not loaded.labels.voxels.any()
    problems = tuple(f"{case.name}: {problem}" for problem in loaded.problems)
    return CaseReport(case.name, problems, loaded.overlaps, without_organs)


def load_case(
    case: RawCase, names: Mapping[int, str], one_mask_per_organ: bool, with_scan: bool = True
) -> LoadedCase:
    """Read scan and labels; problems are collected, not raised."""
    loaded = LoadedCase()
    if with_scan:
        _load_scan(case.scan, loaded)
    if one_mask_per_organ:
        _load_masks(case.labels, [names[number] for number in sorted(names)], loaded)
    else:
        _load_label_map(case.labels[0], names, loaded)
    scan, labels = loaded.scan, loaded.labels
    if scan and labels and scan.grid.shape == labels.grid.shape:
        # one grid from here on, free of rounding in the labels' header
        loaded.labels = LabelMap(labels.voxels, scan.grid, labels.names)
    return loaded


def place_tolerance_mm(grid: Grid) -> float:
    """How far apart voxels of scan and labels may be and still be the same ones."""
    return max(0.01, PLACE_TOLERANCE * min(grid.spacing_mm))


def _load_scan(path: Path, loaded: LoadedCase) -> None:
    try:
        loaded.scan = read_scan(path)
        loaded.problems += hounsfield_problems(path, loaded.scan.voxels)
    except ScanError as error:
        loaded.problems.append(str(error))


def hounsfield_problems(path: Path, voxels: np.ndarray) -> list[str]:
    """Why these numbers cannot be Hounsfield units of a patient; empty when they can."""
    lowest, highest = float(voxels.min()), float(voxels.max())
    if lowest == highest:
        return [
            f"{path}: the scan is empty, every voxel is {lowest:g}. Leave the case out or export it again."
        ]
    values = f"{path}: values run from {lowest:g} to {highest:g}, which cannot be Hounsfield units"
    if lowest < LOWEST_HU or highest > HIGHEST_HU:
        return [f"{values}: {LOWEST_HU} to {HIGHEST_HU} was expected. Check slope and intercept."]
    if lowest >= 0:
        return [
            f"{values}: air is -1000 and fat -100. Export without rescaling and with the intercept applied."
        ]
    if highest - lowest < SMALLEST_RANGE_HU:
        return [f"{values}: they look normalised. Export the scan without rescaling."]
    return []


def _load_label_map(path: Path, names: Mapping[int, str], loaded: LoadedCase) -> None:
    try:
        found = read_labels(path)
    except ScanError as error:
        loaded.problems.append(str(error))
        return
    if loaded.scan:
        loaded.problems += _place_problems(path, found.grid, loaded.scan.grid, "scan")
    numbers = sorted(names)
    local, unknown = _renumber(found.voxels, numbers)
    if unknown:
        loaded.problems.append(
            f"{path}: labels {_listed(unknown)} are not in the dataset's list, which has {_listed(numbers)}. "
            "Add them to dataset.json or remove them from the file."
        )
    loaded.labels = LabelMap(local, found.grid, _local_names([names[number] for number in numbers]))


def _renumber(voxels: np.ndarray, numbers: Sequence[int]) -> tuple[np.ndarray, list[int]]:
    """Labels as positions in `numbers`, from 1; and the labels that are not in it."""
    dtype = _dtype(len(numbers))
    if numbers[-1:] == [len(numbers)] and voxels.max() <= len(numbers):  # 1..n already, the usual case
        return voxels.astype(dtype, copy=False), []
    position = np.zeros(65536, dtype)
    position[numbers] = np.arange(1, len(numbers) + 1)
    local = np.empty(voxels.shape, dtype)
    for source, target in zip(voxels, local, strict=True):  # by slice: indexing widens to 8 bytes a voxel
        target[...] = position[source]
    unknown = voxels[(local == 0) & (voxels != 0)]
    return local, np.unique(unknown).tolist()


def _load_masks(paths: Sequence[Path], organs: Sequence[str], loaded: LoadedCase) -> None:
    masks: list[tuple[str, np.ndarray]] = []
    grid, whose = (loaded.scan.grid, "scan") if loaded.scan else (None, "")
    for path in paths:
        try:
            mask = read_labels(path)
        except ScanError as error:
            loaded.problems.append(str(error))
            continue
        if grid is None:
            grid, whose = mask.grid, f"mask {path.name}"
        loaded.problems += _place_problems(path, mask.grid, grid, whose)
        inside = np.flatnonzero(mask.voxels)  # kept in place of the mask: most organs are small
        values = np.unique(mask.voxels.ravel()[inside])
        if len(values) > 1:
            loaded.problems.append(
                f"{path}: a mask of one organ holds the labels {_listed(values)}; one was expected."
            )
        if mask.grid.shape == grid.shape:
            masks.append((canonical_name(name_of_scan(path)), inside))
    if grid:
        voxels = _paint(masks, organs, grid.shape, loaded.overlaps)
        loaded.labels = LabelMap(voxels, grid, _local_names(organs))


def _paint(
    masks: list[tuple[str, np.ndarray]],
    organs: Sequence[str],
    shape: tuple[int, int, int],
    overlaps: Overlaps,
) -> np.ndarray:
    """All masks in one label map, the smallest organ last and so on top; of equals the first by name."""
    voxels = np.zeros(shape, _dtype(len(organs)))
    flat = voxels.reshape(-1)
    for name, inside in sorted(masks, key=lambda mask: (len(mask[1]), mask[0]), reverse=True):
        under, counts = np.unique(flat[inside], return_counts=True)
        for label, count in zip(under.tolist(), counts.tolist(), strict=True):
            if label:
                first, second = sorted((name, organs[label - 1]))
                overlaps[first, second] += count
        flat[inside] = organs.index(name) + 1
    return voxels


def _place_problems(path: Path, grid: Grid, expected: Grid, whose: str) -> list[str]:
    if grid.shape != expected.shape:
        return [
            f"{path}: the labels are {_by(grid)} voxels, the {whose} {_by(expected)}. "
            "Both need one grid: resample the labels or leave the case out."
        ]
    if not grid.same_place(expected, place_tolerance_mm(expected)):
        return [
            f"{path}: labels and {whose} have the same shape but different places in the patient: "
            "their affines differ. Both need one grid: correct the header or resample the labels."
        ]
    return []


def _local_names(organs: Sequence[str]) -> dict[int, str]:
    return {local: canonical_name(name) for local, name in enumerate(organs, start=1)}


def _dtype(labels: int) -> type[np.uint8] | type[np.uint16]:
    return np.uint8 if labels <= 255 else np.uint16


def _by(grid: Grid) -> str:
    return " x ".join(str(length) for length in reversed(grid.shape))


def _listed(numbers: Sequence[int] | np.ndarray) -> str:
    """1, 2, 5: long runs shortened as in 1 to 104."""
    numbers = [int(number) for number in numbers]
    if len(numbers) > 4 and all(later == earlier + 1 for earlier, later in pairwise(numbers)):
        return f"{numbers[0]} to {numbers[-1]}"
    return some_of(map(str, numbers), 20)
