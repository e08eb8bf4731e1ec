"""Why a scan was labelled so: the pack behind every voxel, and how far to trust each organ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from continual_segment.segmentation.answers import Answer, Decision
from continual_segment.segmentation.nested import Nesting
from continual_segment.volume import LabelMap, Volume

FACES = (("bottom", "top"), ("back", "front"), ("left", "right"))
"""Of a scan, per axis (z, y, x): where it begins and where it ends."""


@dataclass(frozen=True, eq=False)
class MergedScan:
    """What one rule says about a prepared scan, and whose word that is."""

    organ: np.ndarray
    """uint16 ids"""
    score: np.ndarray
    """float16"""
    pack: np.ndarray
    """uint8: number of the winning pack, 1 for the first; 0 on background."""
    contested: np.ndarray
    """bool: where a pack disagrees with the winner."""

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> MergedScan:
        return cls(*(np.zeros(shape, kind) for kind in (np.uint16, np.float16, np.uint8, bool)))

    def put(
        self, place: tuple[slice, slice, slice], organ: np.ndarray, decision: Decision, contested: Tensor
    ) -> None:
        """Take the next box; `organ` is what the winners are called, 0 for those not asked for."""
        self.organ[place] = organ
        self.score[place] = np.where(organ > 0, decision.score.cpu().numpy(), 0)
        self.pack[place] = (decision.pack + 1).cpu().numpy()
        self.contested[place] = contested.numpy()


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
    found: MergedScan, labels: LabelMap, pack_names: Mapping[int, str]
) -> tuple[OrganQuality, ...]:
    """Every organ in a label map; `found` is what it was made of, on the prepared grid."""
    return tuple(
        _organ_quality(found, labels, organ, pack_names)
        for organ in np.unique(labels.voxels[labels.voxels > 0]).tolist()
    )


def _organ_quality(
    found: MergedScan, labels: LabelMap, organ: int, pack_names: Mapping[int, str]
) -> OrganQuality:
    inside, voxels = found.organ == organ, labels.voxels == organ
    score = found.score[inside].astype(np.float64)
    won = np.bincount(found.pack[inside], minlength=1) / max(1, int(np.count_nonzero(inside)))
    voxel_ml = float(np.prod(labels.grid.spacing_mm)) / 1000
    return OrganQuality(
        organ=labels.names[organ],
        volume_ml=round(np.count_nonzero(voxels) * voxel_ml, 3),
        mean_score=_mean(score),
        mean_entropy_bits=_mean(binary_entropy_bits(score)),
        contested_share=_mean(found.contested[inside]),
        packs={name: round(float(won[k]), 4) for k, name in pack_names.items() if k < len(won) and won[k]},
        touches_edge=tuple(touched_faces(voxels)),
    )


def _mean(values: np.ndarray) -> float:
    return round(float(values.mean()), 4) if values.size else 0.0


def binary_entropy_bits(probability: np.ndarray) -> np.ndarray:
    p = np.clip(probability, 1e-6, 1 - 1e-6)
    return -(p * np.log2(p) + (1 - p) * np.log2(1 - p))


def touched_faces(voxels: np.ndarray) -> list[str]:
    """Faces of the scan that an organ reaches."""
    return [
        name
        for axis, names in enumerate(FACES)
        for name, at in zip(names, (0, -1), strict=True)
        if voxels.take(at, axis=axis).any()
    ]


def packs_on_grid(found: MergedScan, labels: LabelMap, names: Mapping[int, str]) -> LabelMap:
    """The winning pack of every labelled voxel: that of the nearest prepared voxel of the same organ."""
    packs = nearest(found.pack, labels.grid.shape)
    packs[nearest(found.organ, labels.grid.shape) != labels.voxels] = 0
    for organ in np.unique(labels.voxels[(labels.voxels > 0) & (packs == 0)]).tolist():
        # resampling moved the organ's border by a part of a voxel
        usual = np.bincount(found.pack[found.organ == organ], minlength=1).argmax()
        packs[(labels.voxels == organ) & (packs == 0)] = usual
    return LabelMap(packs, labels.grid, dict(names))


def nearest(voxels: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """The same box cut into another number of voxels, each the old one that its middle lies in."""
    for axis, new in enumerate(shape):
        old = voxels.shape[axis]
        voxels = voxels.take(((np.arange(new) + 0.5) * old / new).astype(int), axis=axis)
    return voxels
