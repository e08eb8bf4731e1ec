"""How an organ comes in the training labels of a dataset: pieces, volumes and extents, kept in its pack.

In:  a prepared dataset
Out: OrganPieces by organ; numbers alone, nothing of a patient
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from continual_segment.body_parts.learn import label_map, training_cases
from continual_segment.data.prepared import PreparedDataset
from continual_segment.model.pieces import FIELD, MOST_PIECES, Extent, OrganPieces
from continual_segment.segmentation.components import Runs
from continual_segment.segmentation.nested import nesting_of
from continual_segment.volume import LabelMap

NEGLIGIBLE = 0.01
"""Share of an organ's volume below which a piece does not count: labels have loose voxels."""
DIGITS = 6


@dataclass(frozen=True, eq=False)
class OrganInScan:
    """One organ in one label map, its nested parts included."""

    pieces_ml: np.ndarray
    """Volumes of its pieces."""
    extent_mm: np.ndarray
    """(z, y, x), of all pieces that are not negligible."""
    cut: np.ndarray
    """bool (z, y, x): it reaches an end of the scan."""


def measure_pieces(dataset: PreparedDataset, at_most: int = 100) -> dict[str, OrganPieces]:
    """Of the training scans of a dataset, at most so many, spread evenly."""
    scans: dict[str, list[OrganInScan]] = defaultdict(list)
    for case in training_cases(dataset, at_most):
        for organ, found in organs_in_scan(label_map(dataset, case)):
            scans[organ].append(found)
    return {
        organ: replace(summarise([each.pieces_ml for each in found]), extent_mm=largest_extent(found))
        for organ, found in sorted(scans.items())
    }


def pieces_for_card(
    dataset: PreparedDataset, earlier: Mapping[str, OrganPieces] | None = None
) -> dict[str, Any]:
    """What a pack's card stores: of the dataset's organs, and of those that were measured `earlier`."""
    found = dict(earlier or {})
    for organ, pieces in measure_pieces(dataset).items():
        found[organ] = OrganPieces.pooled([found[organ], pieces]) if organ in found else pieces
    return {FIELD: {organ: asdict(pieces) for organ, pieces in found.items()}}


def organs_in_scan(labels: LabelMap) -> Iterator[tuple[str, OrganInScan]]:
    """Every organ that a label map shows."""
    families, runs = nesting_of(labels).families(labels.names), Runs.of(labels)
    shown = runs.present
    for label, family in families.items():
        if not shown.isdisjoint(family):
            found = runs.components(family)
            real = found.sizes >= least_size(found.sizes)
            extent = found.boxes.union(real).extents_mm[0]
            pieces_ml = found.sizes[1:] * labels.grid.voxel_ml
            yield labels.names[label], OrganInScan(pieces_ml, extent, runs.cut(family))


def least_size(pieces: np.ndarray) -> float:
    """From which on a piece counts; the largest one always does, also of an organ in hundreds of pieces."""
    return min(NEGLIGIBLE * pieces.sum(), pieces.max())


def largest_extent(scans: Sequence[OrganInScan]) -> Extent:
    """Along each axis; None where the scan with the largest ends there, so that it is longer in truth."""
    extents = np.array([scan.extent_mm for scan in scans])  # (scan, axis)
    cut = np.array([scan.cut for scan in scans])[extents.argmax(axis=0), range(3)]
    z, y, x = (
        None if ends else round(float(side), DIGITS)
        for side, ends in zip(extents.max(axis=0), cut, strict=True)
    )
    return z, y, x


def summarise(scans: Sequence[np.ndarray]) -> OrganPieces:
    """The pieces of one organ in all scans that show it."""
    real = [pieces[pieces >= least_size(pieces)] for pieces in scans]
    counts = np.bincount([min(len(pieces), MOST_PIECES) for pieces in real])[1:]
    totals = [float(pieces.sum()) for pieces in scans]
    shares = [float(pieces.max() / pieces.sum()) for pieces in scans]
    several = [float(pieces.min()) for pieces in real if len(pieces) > 1]
    return OrganPieces(
        len(scans),
        tuple(counts.tolist()),
        (round(min(totals), DIGITS), round(max(totals), DIGITS)),
        (round(min(shares), DIGITS), round(float(np.mean(shares)), DIGITS)),
        round(min(several, default=0.0), DIGITS),
    )
