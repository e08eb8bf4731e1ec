"""How an organ comes in the training labels of a dataset: pieces and volumes, kept in its pack.

In:  a prepared dataset
Out: OrganPieces by organ; numbers alone, nothing of a patient
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from continual_segment.body_parts.learn import label_map, training_cases
from continual_segment.data.prepared import PreparedDataset
from continual_segment.model.pieces import MOST_PIECES, OrganPieces
from continual_segment.segmentation.components import boxes_of, components_of
from continual_segment.segmentation.nested import nesting_of
from continual_segment.volume import LabelMap

NEGLIGIBLE = 0.01
"""Share of an organ's volume below which a piece does not count: labels have loose voxels."""
DIGITS = 6


def measure_pieces(dataset: PreparedDataset, at_most: int = 100) -> dict[str, OrganPieces]:
    """Of the training scans of a dataset, at most so many, spread evenly."""
    volumes: dict[str, list[np.ndarray]] = defaultdict(list)
    for case in training_cases(dataset, at_most):
        for organ, pieces_ml in volumes_of_pieces(label_map(dataset, case)):
            volumes[organ].append(pieces_ml)
    return {organ: summarise(scans) for organ, scans in sorted(volumes.items())}


def volumes_of_pieces(labels: LabelMap) -> Iterator[tuple[str, np.ndarray]]:
    """Every organ that a label map shows, with the volumes of its pieces in ml, its nested parts included."""
    families, boxes = nesting_of(labels).families(labels.names), boxes_of(labels)
    for label, family in families.items():
        if not boxes.keys().isdisjoint(family):
            sizes = components_of(labels, family, boxes).sizes[1:]
            yield labels.names[label], sizes * labels.grid.voxel_ml


def summarise(scans: Sequence[np.ndarray]) -> OrganPieces:
    """The pieces of one organ in all scans that show it."""
    real = [pieces[pieces >= NEGLIGIBLE * pieces.sum()] for pieces in scans]
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
