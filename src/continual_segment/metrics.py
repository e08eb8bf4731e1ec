"""Score one prediction against one truth: Dice and surface distances, organ by organ.

Definitions. The surface of a mask is the mask minus its 6-neighbour erosion; outside the array counts as
background, so a mask that touches the border has a surface there. Distances run in millimetres from every
surface voxel of one mask to the nearest surface voxel of the other, and both directions are pooled:
HD95 is the pool's 95th percentile, ASD its mean. Where the truth holds no voxel nothing is scored and the
volume predicted there is reported; where the prediction is empty Dice is 0 and the distances are undefined.

A label map may hold hundreds of organs, so no mask is ever made per organ: one pass over the map finds the
surfaces of all of them, one count their volumes, and only the few surface voxels enter a KD-tree.

In:  two integer maps (z, y, x) on one grid, the voxel size
Out: OrganScore per label
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, prod

import numpy as np
from scipy.spatial import cKDTree

PERCENTILE = 95


@dataclass(frozen=True)
class OrganScore:
    """How well one organ of one case was found."""

    dice: float
    """2|P∩T| / (|P|+|T|); 0 for an empty prediction, nan for an empty truth."""
    hd95_mm: float
    """nan where prediction or truth is empty."""
    asd_mm: float
    """nan where prediction or truth is empty."""
    truth_ml: float
    prediction_ml: float

    @property
    def in_truth(self) -> bool:
        return self.truth_ml > 0

    @property
    def false_positive_ml(self) -> float:
        """What was predicted where the truth has none of this organ; nan where it has some."""
        return nan if self.in_truth else self.prediction_ml

    @property
    def distances_excluded(self) -> bool:
        """Whether the organ is there but was missed altogether, so that its distances are undefined."""
        return self.in_truth and self.prediction_ml == 0

    def penalised(self, diagonal_mm: float) -> tuple[float, float]:
        """HD95 and ASD with the image diagonal in place of those a missed organ does not have."""
        return (diagonal_mm, diagonal_mm) if self.distances_excluded else (self.hd95_mm, self.asd_mm)


def score_labels(
    prediction: np.ndarray,
    truth: np.ndarray,
    labels: Sequence[int],
    spacing_mm: tuple[float, float, float],
) -> dict[int, OrganScore]:
    """Score every one of these labels; others may occur in either map and are left alone."""
    if prediction.shape != truth.shape:
        raise ValueError(
            f"The prediction is {prediction.shape}, the truth {truth.shape}: one grid is needed."
        )
    order = _Numbering(labels)
    predicted, true = order.renumber(prediction), order.renumber(truth)
    count = len(order.labels) + 1
    predicted_voxels = np.bincount(predicted.ravel(), minlength=count)
    true_voxels = np.bincount(true.ravel(), minlength=count)
    common_voxels = np.bincount(true[true == predicted], minlength=count)
    # An organ that either map lacks has no distances: its surface need not be found.
    both = (predicted_voxels > 0) & (true_voxels > 0)
    both[0] = False
    predicted_surfaces, true_surfaces = _surfaces(predicted, both), _surfaces(true, both)
    voxel_ml = prod(spacing_mm) / 1000

    scores = {}
    for i, label in enumerate(order.labels, start=1):
        dice, hd95_mm, asd_mm = nan, nan, nan
        if true_voxels[i]:
            dice = float(2 * common_voxels[i] / (predicted_voxels[i] + true_voxels[i]))
        if both[i]:
            pool = _pooled_distances(predicted_surfaces[i], true_surfaces[i], truth.shape, spacing_mm)
            hd95_mm, asd_mm = float(np.percentile(pool, PERCENTILE)), float(pool.mean())
        volumes_ml = float(true_voxels[i] * voxel_ml), float(predicted_voxels[i] * voxel_ml)
        scores[label] = OrganScore(dice, hd95_mm, asd_mm, *volumes_ml)
    return scores


class _Numbering:
    """The labels to score as 1..n, everything else as 0: small numbers make counting and comparing fast."""

    def __init__(self, labels: Sequence[int]) -> None:
        self.labels = sorted({int(label) for label in labels})
        if self.labels and self.labels[0] < 1:
            raise ValueError(f"Labels to score are positive (0 is background), not {self.labels[0]}.")

    def renumber(self, voxels: np.ndarray) -> np.ndarray:
        kind = np.uint8 if len(self.labels) < 256 else np.uint16
        if voxels.size == 0 or not self.labels:
            return np.zeros(voxels.shape, kind)
        lowest, highest = int(voxels.min()), int(voxels.max())
        table = np.zeros(max(highest, self.labels[-1]) - min(lowest, 0) + 1, kind)
        table[self.labels] = np.arange(1, len(self.labels) + 1)
        # A negative number in the map reads the table from its end, where there are only zeros.
        return table[voxels]


def _surfaces(voxels: np.ndarray, wanted: np.ndarray) -> list[np.ndarray]:
    """Per label the flat indices, ascending, of its voxels that have a 6-neighbour of another label."""
    surface = np.zeros(voxels.shape, bool)
    for axis in range(voxels.ndim):
        along, differs = np.moveaxis(surface, axis, 0), np.moveaxis(voxels, axis, 0)
        step = differs[1:] != differs[:-1]
        along[1:] |= step
        along[:-1] |= step
        along[0] = along[-1] = True  # outside the array is background
    surface &= wanted[voxels]
    places = np.flatnonzero(surface)
    owners = voxels.ravel()[places]
    places = places[np.argsort(owners, kind="stable")]
    return np.split(places, np.cumsum(np.bincount(owners, minlength=len(wanted)))[:-1])


def _pooled_distances(
    first: np.ndarray, second: np.ndarray, shape: tuple[int, ...], spacing_mm: tuple[float, float, float]
) -> np.ndarray:
    """Distances of each surface's voxels to the other surface, both directions in one array."""
    alone_first = np.setdiff1d(first, second, assume_unique=True)
    alone_second = np.setdiff1d(second, first, assume_unique=True)
    shared = len(first) - len(alone_first)
    # Voxels on both surfaces are at distance 0 from the other: nothing to search for.
    return np.concatenate(
        [
            np.zeros(2 * shared),
            _distances(alone_first, second, shape, spacing_mm),
            _distances(alone_second, first, shape, spacing_mm),
        ]
    )


def _distances(
    places: np.ndarray, surface: np.ndarray, shape: tuple[int, ...], spacing_mm: tuple[float, float, float]
) -> np.ndarray:
    if len(places) == 0:
        return np.empty(0)
    tree = cKDTree(np.stack(np.unravel_index(surface, shape), axis=-1) * np.asarray(spacing_mm))
    distances, _ = tree.query(np.stack(np.unravel_index(places, shape), axis=-1) * np.asarray(spacing_mm))
    return np.asarray(distances)
