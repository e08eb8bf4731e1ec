"""Explanation of a segmentation: the winning pack of every voxel, and the quality of every organ."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from continual_segment.organs import LAST_HASHED_ID
from continual_segment.packed import PackedVoxels
from continual_segment.segmentation.nested import Nesting
from continual_segment.segmentation.padded_scan import Box
from continual_segment.segmentation.predictions import Decision, PackPrediction
from continual_segment.volume import LabelMap, Volume

FACES = (("bottom", "top"), ("back", "front"), ("left", "right"))
"""Of a scan, per axis (z, y, x): its first and its last."""
Nearest = Callable[[np.ndarray], np.ndarray]
"""Prepared voxels -> for every voxel of the label map the nearest of them."""


class ExplanationBuilder:
    """Collects the decisions of one rule on the prepared grid: winning packs, and sums per organ."""

    def __init__(
        self, plane_shape: tuple[int, int], pack_names: Sequence[str], scanned: np.ndarray | None = None
    ) -> None:
        """`plane_shape` is the shape of a prepared slice (y, x).

        Voxels that are not `scanned` (z, y, x) count as background.
        """
        self.pack_names = dict(enumerate(pack_names, start=1))
        """Number of a pack -> its name."""
        self.scanned = scanned
        self.organ = PackedVoxels(plane_shape, np.uint16)
        self.pack = PackedVoxels(plane_shape, np.min_scalar_type(len(pack_names)))
        """Number of the winning pack; 0 on background."""
        self.disputed = PackedVoxels(plane_shape, np.uint8)
        """1 where a pack disagrees with the winner."""
        ids = LAST_HASHED_ID + 1
        self.score, self.entropy, self.contested = (np.zeros(ids) for _ in range(3))
        """By organ id, summed over its voxels; a voxel is contested if a pack disagrees with the winner."""
        self.won = np.zeros((len(pack_names) + 1, ids))
        """Voxels by the number of the winning pack, and by organ id."""

    def add(self, box: Box, organ: np.ndarray, decision: Decision, contested: Tensor) -> None:
        """Add the next slices, cropped to `box`; `organ` are the labels, 0 for organs not requested."""
        pack = (decision.pack + 1).cpu().numpy()
        if self.scanned is not None:
            first = len(self.organ)
            organ = organ * self.scanned[first : first + len(organ), *box]
        disputed = contested.numpy()
        for stored, found in ((self.organ, organ), (self.pack, pack), (self.disputed, disputed)):
            for plane in found:
                stored.append(plane, box)
        self._count(organ > 0, organ, decision.score.cpu().numpy(), disputed, pack)

    def _count(
        self, chosen: np.ndarray, organ: np.ndarray, score: np.ndarray, disputed: np.ndarray, pack: np.ndarray
    ) -> None:
        """Add the `chosen` voxels to the sums of their organs."""
        ids = organ[chosen]
        self._sum(self.score, ids, score[chosen])
        self._sum(self.entropy, ids, binary_entropy_bits(score[chosen]))
        self._sum(self.contested, ids, disputed[chosen])
        for number, won in enumerate(self.won):
            self._sum(won, ids, pack[chosen] == number)

    @staticmethod
    def _sum(sums: np.ndarray, ids: np.ndarray, values: np.ndarray) -> None:
        sums += np.bincount(ids, values, minlength=len(sums))

    def explain(
        self,
        nearest: Nearest,
        rule: str,
        scan: Volume,
        labels: LabelMap,
        scores: Volume | None,
        cleaned: Collection[int] = (),
    ) -> Explanation:
        """The explanation on the grid of the finished label map, with the labels that were `cleaned` up."""
        packs = packs_on_grid(self, labels, nearest)
        if cleaned and scores is not None:
            self._count_again(labels, scores, packs, nearest(self.disputed[:]), cleaned)
        scanned = scan.scanned if labels.grid.same_place(scan.grid) else None
        return Explanation(packs, measure_quality(self, labels, scanned), rule)

    def _count_again(
        self,
        labels: LabelMap,
        scores: Volume,
        packs: LabelMap,
        disputed: np.ndarray,
        organs: Collection[int],
    ) -> None:
        """Sum some organs over the finished label map instead, which has no islands of them."""
        affected = np.zeros(LAST_HASHED_ID + 1, bool)
        affected[list(organs)] = True
        for sums in (self.score, self.entropy, self.contested, *self.won):
            sums[affected] = 0
        planes = zip(labels.voxels, scores.voxels, disputed, packs.voxels, strict=True)
        for organ, score, contested, pack in planes:
            self._count(affected[organ], organ, score, contested, pack)


@dataclass(frozen=True)
class OrganQuality:
    """Indicators of how reliable one organ of one segmentation is."""

    organ: str
    volume_ml: float
    mean_score: float
    """Mean over the organ's voxels."""
    mean_entropy_bits: float
    """Of the winner against all else: 0 is certain, 1 is undecided."""
    contested_share: float
    """Share of voxels where another pack predicts another organ, or knows this one and misses it."""
    packs: dict[str, float]
    """Share of voxels by winning pack."""
    touches_edge: tuple[str, ...]
    """Faces of the scan that the organ reaches, where it may be cut off."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why voxels have their labels, on the grid of the label map."""

    packs: LabelMap
    """Number of the winning pack of each voxel, with the names of the packs."""
    quality: tuple[OrganQuality, ...]
    """Of every organ that was found."""
    rule: str
    """Name of the merge rule."""

    def as_data(self) -> dict[str, Any]:
        """Content of the quality file."""
        return {
            "rule": self.rule,
            "packs": {str(number): name for number, name in self.packs.names.items()},
            "organs": [asdict(quality) for quality in self.quality],
        }


def disagreement(predictions: Sequence[PackPrediction], decision: Decision, nesting: Nesting) -> Tensor:
    """Where a pack that knows the winning organ does not predict it, or predicts an unrelated organ."""
    found = torch.zeros_like(decision.organ, dtype=torch.bool)
    for index, prediction in enumerate(predictions):
        agrees = prediction.predicts_organ & nesting.related(prediction.organ, decision.organ)
        takes_part = prediction.predicts_organ | prediction.knows(decision.organ)
        found |= takes_part & ~agrees & (decision.pack != index)
    return found & (decision.organ > 0)


def measure_quality(
    found: ExplanationBuilder, labels: LabelMap, scanned: np.ndarray | None = None
) -> tuple[OrganQuality, ...]:
    """Quality of every organ in a label map; `found` are the decisions that it was made from."""
    voxels = np.bincount(labels.voxels.ravel())
    voxel_ml = labels.grid.voxel_ml
    edges = organs_at_faces(labels.voxels, scanned)
    qualities = []
    for organ in np.flatnonzero(voxels[1:]) + 1:
        won = found.won[:, organ]
        inside = max(1.0, won.sum())
        qualities.append(
            OrganQuality(
                organ=labels.names[int(organ)],
                volume_ml=round(float(voxels[organ]) * voxel_ml, 3),
                mean_score=_share(found.score[organ], inside),
                mean_entropy_bits=_share(found.entropy[organ], inside),
                contested_share=_share(found.contested[organ], inside),
                packs={name: _share(won[k], inside) for k, name in found.pack_names.items() if won[k]},
                touches_edge=tuple(face for face, organs in edges.items() if organ in organs),
            )
        )
    return tuple(qualities)


def _share(total: float, voxels: float) -> float:
    return round(float(total / voxels), 4)


def binary_entropy_bits(probability: np.ndarray) -> np.ndarray:
    p = np.clip(probability, 1e-6, 1 - 1e-6)
    return -(p * np.log2(p) + (1 - p) * np.log2(1 - p))


def organs_at_faces(voxels: np.ndarray, scanned: np.ndarray | None = None) -> dict[str, set[int]]:
    """Face -> organs that reach it; if only some voxels were `scanned`, the faces of those."""
    return {
        name: set(np.unique(voxels[_face(scanned, axis, at)]).tolist())
        for axis, names in enumerate(FACES)
        for name, at in zip(names, (0, -1), strict=True)
    }


def _face(scanned: np.ndarray | None, axis: int, at: int) -> Any:
    """Index of the first (`at` 0) or last (-1) voxels along an axis."""
    if scanned is None or axis == 0:  # slices are scanned as a whole
        return (slice(None),) * axis + (at,)
    beside = np.roll(scanned, 1 if at == 0 else -1, axis=axis)
    beside[(slice(None),) * axis + (at,)] = False
    return scanned & ~beside


def packs_on_grid(found: ExplanationBuilder, labels: LabelMap, nearest: Nearest) -> LabelMap:
    """The winning pack of every labelled voxel: that of the nearest prepared voxel of the same organ."""
    winners = nearest(found.pack[:])
    packs = winners.copy()
    labelled = labels.voxels > 0
    packs[~labelled | (nearest(found.organ[:]) != labels.voxels)] = 0
    lost = labelled & (packs == 0)  # resampling moved the organ's border by a fraction of a voxel
    most_frequent = found.won.argmax(axis=0).astype(packs.dtype)
    usual = most_frequent[labels.voxels[lost]]
    packs[lost] = np.where(usual > 0, usual, winners[lost])  # an organ that only clean-up has put there
    return LabelMap(packs, labels.grid, dict(found.pack_names))
