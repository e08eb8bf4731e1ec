"""Why a scan was labelled so: the pack behind every voxel, and how far to trust each organ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from continual_segment.organs import LAST_HASHED_ID
from continual_segment.packed import PackedVoxels
from continual_segment.segmentation.answers import Answer, Decision
from continual_segment.segmentation.nested import Nesting
from continual_segment.segmentation.rows import Box
from continual_segment.segmentation.sampling import Sampling
from continual_segment.volume import LabelMap, Volume

FACES = (("bottom", "top"), ("back", "front"), ("left", "right"))
"""Of a scan, per axis (z, y, x): where it begins and where it ends."""


class MergedScan:
    """What one rule says about a prepared scan, and whose word that is: slices at rest, sums per organ."""

    def __init__(self, plane_shape: tuple[int, int], packs: int, scanned: np.ndarray | None = None) -> None:
        """`plane_shape` is that of a slice (y, x), `packs` their number.

        Voxels that were not `scanned` (z, y, x) count as background.
        """
        self.scanned = scanned
        self.organ = PackedVoxels(plane_shape, np.uint16)
        self.pack = PackedVoxels(plane_shape, np.uint8)
        """Number of the winning pack, 1 for the first; 0 on background."""
        ids = LAST_HASHED_ID + 1
        self.score, self.entropy, self.contested = (np.zeros(ids) for _ in range(3))
        """By organ id, summed over its voxels: contested are those where a pack disagrees with the winner."""
        self.won = np.zeros((packs + 1, ids))
        """Voxels by the number of the winning pack, and by organ id."""

    def put(self, box: Box, organ: np.ndarray, decision: Decision, contested: Tensor) -> None:
        """Take the next slices in `box`; `organ` is what winners are called, 0 for those not asked for."""
        pack = (decision.pack + 1).cpu().numpy()
        if self.scanned is not None:
            first = len(self.organ)
            organ = organ * self.scanned[first : first + len(organ), *box]
        for at_rest, found in ((self.organ, organ), (self.pack, pack)):
            for plane in found:
                at_rest.append(plane, box)
        named = organ > 0
        ids, score = organ[named], decision.score.cpu().numpy()[named]
        self._add(self.score, ids, score)
        self._add(self.entropy, ids, binary_entropy_bits(score))
        self._add(self.contested, ids, contested.numpy()[named])
        for number, won in enumerate(self.won):
            self._add(won, ids, pack[named] == number)

    @staticmethod
    def _add(sums: np.ndarray, ids: np.ndarray, values: np.ndarray) -> None:
        sums += np.bincount(ids, values, minlength=len(sums))


@dataclass(frozen=True)
class OrganQuality:
    """How far one organ of one scan can be trusted."""

    organ: str
    volume_ml: float
    mean_score: float
    """Over its voxels."""
    mean_entropy_bits: float
    """Of the winner against all else: 0 sure, 1 a toss-up."""
    contested_share: float
    """Of its voxels: another pack names another organ there, or knows this one and does not see it."""
    packs: dict[str, float]
    """Share of its voxels by the pack that won them."""
    touches_edge: tuple[str, ...]
    """Faces of the scan that it reaches: it may be cut off there."""


@dataclass(frozen=True, eq=False)
class Explained:
    """A segmentation and its reasons, on the scan's grid."""

    labels: LabelMap
    scores: Volume
    packs: LabelMap
    """Number of the pack that won each voxel; its names are the packs'."""
    quality: tuple[OrganQuality, ...]
    rule: str

    def as_data(self) -> dict[str, Any]:
        """What the quality file holds."""
        return {
            "rule": self.rule,
            "packs": {str(number): name for number, name in self.packs.names.items()},
            "organs": [asdict(quality) for quality in self.quality],
        }


def disagreement(answers: Sequence[Answer], decision: Decision, nesting: Nesting) -> Tensor:
    """Where a pack that knows the winning organ says otherwise, or another names an organ foreign to it."""
    found = torch.zeros_like(decision.organ, dtype=torch.bool)
    for index, answer in enumerate(answers):
        agrees = answer.names_organ & nesting.related(answer.organ, decision.organ)
        speaks = answer.names_organ | answer.knows(decision.organ)
        found |= speaks & ~agrees & (decision.pack != index)
    return found & (decision.organ > 0)


def measure_quality(
    found: MergedScan, labels: LabelMap, pack_names: Mapping[int, str], scanned: np.ndarray | None = None
) -> tuple[OrganQuality, ...]:
    """Every organ in a label map; `found` is what it was made of, on the prepared grid."""
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
                packs={name: _share(won[k], inside) for k, name in pack_names.items() if won[k]},
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
    """By the faces of a scan, the organs that reach them; where only some voxels were `scanned`, theirs."""
    return {
        name: set(np.unique(voxels[_face(scanned, axis, at)]).tolist())
        for axis, names in enumerate(FACES)
        for name, at in zip(names, (0, -1), strict=True)
    }


def _face(scanned: np.ndarray | None, axis: int, at: int) -> Any:
    """Which voxels are the first (`at` 0) or last (-1) along an axis."""
    if scanned is None or axis == 0:  # slices are scanned whole: none ends above or below another
        return (slice(None),) * axis + (at,)
    beside = np.roll(scanned, 1 if at == 0 else -1, axis=axis)
    beside[(slice(None),) * axis + (at,)] = False
    return scanned & ~beside


def packs_on_grid(
    found: MergedScan, labels: LabelMap, names: Mapping[int, str], sampling: Sampling
) -> LabelMap:
    """The winning pack of every labelled voxel: that of the nearest prepared voxel of the same organ."""
    packs = sampling.nearest(found.pack[:])
    labelled = labels.voxels > 0
    packs[~labelled | (sampling.nearest(found.organ[:]) != labels.voxels)] = 0
    lost = labelled & (packs == 0)  # resampling moved the organ's border by a part of a voxel
    usual = found.won.argmax(axis=0).astype(packs.dtype)
    packs[lost] = usual[labels.voxels[lost]]
    return LabelMap(packs, labels.grid, dict(names))


def nearest(voxels: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The same box cut into another number of voxels, each the old one that its middle lies in."""
    for axis, new in enumerate(shape):
        old = voxels.shape[axis]
        voxels = voxels.take(((np.arange(new) + 0.5) * old / new).astype(int), axis=axis)
    return voxels
