"""Numbers per organ: volume, Hounsfield units, and how far to trust them.

In:  the scan, its labels (one map per layer of organs within organs), the quality measured while merging
Out: a row per requested organ, as JSON and CSV
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from continual_segment.organs import find_organ
from continual_segment.segmentation.explanation import OrganQuality
from continual_segment.volume import LabelMap, Volume

COLUMNS = [
    "organ",
    "id",
    "snomed",
    "side",
    "volume_ml",
    "mean_hu",
    "deviation_hu",
    "mean_score",
    "mean_entropy_bits",
    "contested_share",
    "touches_edge",
]


def organ_statistics(
    scan: Volume, layers: Sequence[LabelMap], quality: Sequence[OrganQuality]
) -> list[dict[str, Any]]:
    """A row per organ, found or not; a whole counts the voxels of its parts."""
    qualities = {each.organ: each for each in quality}
    rows = []
    for layer in layers:
        count, mean, deviation = _moments(scan, layer)
        for label, name in layer.names.items():
            numbers = {
                "volume_ml": round(count[label] * scan.grid.voxel_ml, 3),
                "mean_hu": round(mean[label], 2) if count[label] else None,
                "deviation_hu": round(deviation[label], 2) if count[label] else None,
            }
            rows.append(_identity(label, name) | numbers | _quality(qualities.get(name)))
    return sorted(rows, key=lambda row: row["id"])


def _moments(scan: Volume, labels: LabelMap) -> tuple[list[int], list[float], list[float]]:
    """Voxels, mean and standard deviation by label, slice by slice."""
    length = max([0, *labels.names]) + 1
    count, total, squares = np.zeros(length, np.int64), np.zeros(length), np.zeros(length)
    for found, values in zip(labels.voxels, scan.voxels, strict=True):
        inside = found > 0  # background is most of a scan, and no organ
        flat, weights = found[inside], values[inside].astype(np.float64)
        count += np.bincount(flat, minlength=length)[:length]
        total += np.bincount(flat, weights, minlength=length)[:length]
        squares += np.bincount(flat, weights * weights, minlength=length)[:length]
    mean = total / np.maximum(count, 1)
    deviation = np.sqrt(np.maximum(squares / np.maximum(count, 1) - mean**2, 0))
    return count.tolist(), mean.tolist(), deviation.tolist()


def _identity(label: int, name: str) -> dict[str, Any]:
    organ = find_organ(name)
    return {"organ": name, "id": label, "snomed": organ.snomed, "side": organ.side}


def _quality(quality: OrganQuality | None) -> dict[str, Any]:
    """Of the voxels that carry the organ's own number."""
    if quality is None:
        return {"mean_score": None, "mean_entropy_bits": None, "contested_share": None, "touches_edge": []}
    return {
        "mean_score": quality.mean_score,
        "mean_entropy_bits": quality.mean_entropy_bits,
        "contested_share": quality.contested_share,
        "touches_edge": list(quality.touches_edge),
    }


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow(row | {"touches_edge": " ".join(row["touches_edge"])})
    return text.getvalue()
