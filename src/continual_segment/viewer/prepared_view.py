"""One case made ready for the page: small files in a folder of the viewer's own, and a description of them.

In:  ViewCase
Out: PreparedView: scan, label maps, winning packs and probabilities on one bounded grid, and the organs with
     the statistics of `clinic`, which are measured on the scan as it is
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from continual_segment.clinic.quality_flags import FlagLimits, quality_flags
from continual_segment.clinic.statistics import organ_statistics
from continual_segment.clinic.summary import summarise
from continual_segment.data.resample import resample_scan
from continual_segment.errors import ScanError
from continual_segment.files import labels_on, read_labels, read_scan, write_bytes, write_labels, write_scan
from continual_segment.files.records import read_json
from continual_segment.model.pieces import OrganPieces
from continual_segment.names import printable
from continual_segment.organs import find_organ
from continual_segment.segmentation.clean_up import RemovedIslands
from continual_segment.segmentation.explanation import OrganQuality
from continual_segment.segmentation.nested import layers
from continual_segment.viewer.bounds import MOST_VOXELS, bounded, size_text
from continual_segment.viewer.cases import ViewCase
from continual_segment.viewer.loaded_case import LoadedCase, load_case
from continual_segment.viewer.middles import middle_of_each
from continual_segment.volume import Grid, LabelMap

LONGEST_NOTE = 600
SCAN = "scan.nii"
STATISTICS = ("volume_ml", "mean_hu", "deviation_hu")
"""Columns of clinic's table that the page shows."""
LIMITS = FlagLimits()
Trained = Mapping[int, OrganPieces]
"""By organ id, what the packs of a model measured of their training labels."""


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
    files = (labels_file, packs_file, scores_file)
    return [SCAN, *(name(index) for index in range(len(case.labels)) for name in files)]


def labels_file(index: int) -> str:
    return f"labels{index}.nii"


def packs_file(index: int) -> str:
    return f"packs{index}.bin"


def scores_file(index: int) -> str:
    return f"scores{index}.bin"


def prepare_view(
    case: ViewCase, folder: Path, most_voxels: int = MOST_VOXELS, trained: Trained | None = None
) -> PreparedView:
    """Write the small files of a case into `folder` and describe them; `trained` adds flags of volumes."""
    loaded = load_case(case)
    grid = replace(bounded(loaded.upright.grid, most_voxels), orientation="RAS")
    small = [loaded.table.renumber(labels_on(each, grid)) for each in loaded.maps]
    write_scan(folder / SCAN, resample_scan(loaded.upright, grid, np.int16))
    for index, labels in enumerate(small):
        write_labels(folder / labels_file(index), LabelMap(labels.voxels, grid))
    data = {
        **_description(case, loaded, grid),
        "maps": [
            _map_data(case, index, loaded, trained or {})
            | _reasons(case, index, grid, folder)
            | {"middles": middle_of_each(labels)}
            for index, labels in enumerate(small)
        ],
        "flags": LIMITS.meanings(),
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
        "full_shape": loaded.upright.grid.shape[::-1],
        "size_shown": size_text(grid),
        "size": size_text(loaded.upright.grid),
        "organs": loaded.table.as_data(),
    }


def _map_data(case: ViewCase, index: int, loaded: LoadedCase, trained: Trained) -> dict[str, Any]:
    """A label map's title, its own numbers, and a row per organ in it, by the organ's number on the page."""
    labels, numbers = loaded.maps[index], loaded.table.numbers
    quality = _read_quality(case, index)
    rows = organ_statistics(loaded.scan, layers(labels), quality.organs)
    edges = {
        organ.name: organ.touches_edge for organ in summarise(case.name, labels, nested=True, seconds=0).found
    }
    removed = case.labels[index].removed
    return {
        "title": printable(case.labels[index].title),
        "file": labels_file(index),
        "rule": printable(quality.rule),
        "values": {numbers[name]: value for value, name in labels.names.items()},
        "organs": {
            numbers[row["organ"]]: {name: row[name] for name in STATISTICS}
            | ({} if case.scan else {"mean_hu": None, "deviation_hu": None})
            | {"flags": _flags(row | {"touches_edge": edges[row["organ"]]}, trained, removed)}
            for row in rows
            if row["organ"] in edges
        },
    }


def _flags(
    row: Mapping[str, Any], trained: Trained, removed: Sequence[RemovedIslands]
) -> list[dict[str, str]]:
    name = row["organ"]
    islands = next((each for each in removed if each.organ == name), None)
    return [asdict(flag) for flag in quality_flags(row, trained.get(find_organ(name).id), islands, LIMITS)]


def _read_quality(case: ViewCase, index: int) -> Quality:
    path = case.labels[index].beside(case.name, "quality", ".json")
    return read_json(path, Quality, ScanError, "Segment the scan again.") if path else Quality()


def _reasons(case: ViewCase, index: int, grid: Grid, folder: Path) -> dict[str, Any]:
    """Write winning packs and probabilities of a label map, and name their files; "" where there is none."""
    return {
        "packs": _write_packs(case, index, grid, folder),
        "packs_file": packs_file(index),
        "scores_file": scores_file(index) if _write_scores(case, index, grid, folder) else "",
    }


def _write_packs(case: ViewCase, index: int, grid: Grid, folder: Path) -> dict[int, str]:
    """Write the number of the winning pack of every voxel; return the packs' names."""
    path = case.labels[index].beside(case.name, "packs")
    if path is None:
        return {}
    packs = read_labels(path)
    numbers = labels_on(packs, grid).voxels.astype("<u2")  # as the page reads them: a model may have many
    write_bytes(folder / packs_file(index), numbers.tobytes())
    return {number: printable(name) for number, name in packs.names.items()}


def _write_scores(case: ViewCase, index: int, grid: Grid, folder: Path) -> bool:
    """Write the probability of every voxel in 255 steps; return whether there are any."""
    path = case.labels[index].beside(case.name, "scores")
    if path is None:
        return False
    scores = read_scan(path)
    steps = LabelMap(np.rint(np.clip(scores.voxels, 0, 1) * 255).astype(np.uint8), scores.grid)
    write_bytes(folder / scores_file(index), labels_on(steps, grid).voxels.tobytes())
    return True
