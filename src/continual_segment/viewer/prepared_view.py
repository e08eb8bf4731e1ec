"""One case made ready for the page: small files in a folder of the viewer's own, and a description of them.

In:  ViewCase
Out: PreparedView: scan, label maps, winning packs and probabilities on one bounded grid, and the organs with
     the statistics of `clinic`, which are measured on the scan as it is
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from continual_segment.clinic.statistics import organ_statistics
from continual_segment.clinic.summary import summarise
from continual_segment.data.resample import resample_scan
from continual_segment.errors import ScanError
from continual_segment.files import labels_on, read_labels, read_scan, write_bytes, write_labels, write_scan
from continual_segment.files.records import read_json
from continual_segment.names import printable
from continual_segment.segmentation.explanation import OrganQuality
from continual_segment.segmentation.nested import layers
from continual_segment.viewer.bounds import MOST_VOXELS, bounded, size_text
from continual_segment.viewer.cases import ViewCase
from continual_segment.viewer.loaded_case import LoadedCase, load_case
from continual_segment.viewer.middles import middle_of_each
from continual_segment.volume import Grid, LabelMap

LONGEST_NOTE = 600
SCAN, PACKS, SCORES = "scan.nii", "packs.bin", "scores.bin"
STATISTICS = ("volume_ml", "mean_hu", "deviation_hu", "mean_score", "contested_share")
"""Columns of clinic's table that the page shows."""


@dataclass(frozen=True)
class Quality:
    """The part of a quality file that is shown."""

    rule: str = ""
    organs: tuple[OrganQuality, ...] = ()


@dataclass(frozen=True, eq=False)
class PreparedView:
    """What the page gets of a case."""

    data: dict[str, Any]
    files: Mapping[str, Path]
    """By the name under which the page requests them."""


def file_names(case: ViewCase) -> list[str]:
    """Of all files that the page may request of a case."""
    return [SCAN, *map(labels_file, range(len(case.labels))), PACKS, SCORES]


def labels_file(index: int) -> str:
    return f"labels{index}.nii"


def prepare_view(case: ViewCase, folder: Path, most_voxels: int = MOST_VOXELS) -> PreparedView:
    """Write the small files of a case into `folder` and describe them."""
    loaded = load_case(case)
    grid = replace(bounded(loaded.upright.grid, most_voxels), orientation="RAS")
    small = [loaded.table.renumber(labels_on(each, grid)) for each in loaded.maps]
    write_scan(folder / SCAN, resample_scan(loaded.upright, grid, np.int16))
    for index, labels in enumerate(small):
        write_labels(folder / labels_file(index), LabelMap(labels.voxels, grid))
    quality = _read_quality(case)
    data = {
        **_description(case, loaded, grid),
        "maps": [
            _map_data(case, index, loaded, quality if index == case.explained else Quality())
            | {"middles": middle_of_each(labels)}
            for index, labels in enumerate(small)
        ],
        "explained": case.explained,
        "rule": printable(quality.rule),
        "packs": _write_packs(case, grid, folder),
        "has_scores": _write_scores(case, grid, folder),
    }
    written = {name: folder / name for name in file_names(case) if (folder / name).is_file()}
    return PreparedView(data, written)


def _description(case: ViewCase, loaded: LoadedCase, grid: Grid) -> dict[str, Any]:
    return {
        "name": printable(case.name),
        "status": case.status,
        "notes": [printable(note, LONGEST_NOTE) for note in (*case.notes, *loaded.notes)],
        "has_scan": case.scan is not None,
        "reduced": grid.shape != loaded.upright.grid.shape,
        "shape": grid.shape[::-1],
        "size_shown": size_text(grid),
        "size": size_text(loaded.upright.grid),
        "organs": loaded.table.as_data(),
    }


def _map_data(case: ViewCase, index: int, loaded: LoadedCase, quality: Quality) -> dict[str, Any]:
    """A label map's title, its own numbers, and a row per organ in it, by the organ's number on the page."""
    labels, numbers = loaded.maps[index], loaded.table.numbers
    rows = organ_statistics(loaded.scan, layers(labels), quality.organs)
    found = {organ.name: organ for organ in summarise(case.name, labels, nested=True, seconds=0).found}
    return {
        "title": printable(case.labels[index].title),
        "file": labels_file(index),
        "values": {numbers[name]: value for value, name in labels.names.items()},
        "organs": {
            numbers[row["organ"]]: {name: row[name] for name in STATISTICS}
            | {"touches_edge": found[row["organ"]].touches_edge}
            | ({} if case.scan else {"mean_hu": None, "deviation_hu": None})
            for row in rows
            if row["organ"] in found
        },
    }


def _read_quality(case: ViewCase) -> Quality:
    path = case.beside("quality", ".json")
    return read_json(path, Quality, ScanError, "Segment the scan again.") if path else Quality()


def _write_packs(case: ViewCase, grid: Grid, folder: Path) -> dict[int, str]:
    """Write the number of the winning pack of every voxel; return the packs' names."""
    path = case.beside("packs")
    if path is None:
        return {}
    packs = read_labels(path)
    write_bytes(folder / PACKS, labels_on(packs, grid).voxels.astype(np.uint8).tobytes())
    return {number: printable(name) for number, name in packs.names.items()}


def _write_scores(case: ViewCase, grid: Grid, folder: Path) -> bool:
    """Write the probability of every voxel in 255 steps; return whether there are any."""
    path = case.beside("scores")
    if path is None:
        return False
    scores = read_scan(path)
    steps = LabelMap(np.rint(np.clip(scores.voxels, 0, 1) * 255).astype(np.uint8), scores.grid)
    write_bytes(folder / SCORES, labels_on(steps, grid).voxels.tobytes())
    return True
