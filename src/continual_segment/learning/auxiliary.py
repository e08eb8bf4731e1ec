"""The body-part head of the first step: an auxiliary task for the encoder while it learns its organs.

The body part of each voxel of a patch is known from the scan's labels or the regressor. It is encoded in the
labels of the patch, so that it goes through the same augmentation: a label plus the number of labels times
the part. Within 15 mm of a boundary the head has no target.

In:  a prepared dataset, a regressor (or none)
Out: BodyPartQuestion, for train_decoder
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor
from torch.nn import functional

from continual_segment.body_parts import BodyPartRegressor, Regions
from continual_segment.body_parts.coverage import regions_of
from continual_segment.body_parts.learn import label_map, scan_of
from continual_segment.data.prepared import PreparedDataset
from continual_segment.networks.heads import ProjectionHead
from continual_segment.organs import BODY_PARTS
from continual_segment.training.distributed import mean_over_processes

NOT_ASKED_MM = 15.0
"""From a boundary between two parts."""
FILE = "body_part_head.safetensors"
"""Its name in a model folder."""


@dataclass(frozen=True)
class AuxiliaryConfig:
    """Auxiliary tasks of the encoder in the first step."""

    body_part_weight: float = 0.0
    """Of the body-part head's loss beside that of the organs; 0 leaves the head out."""

    def __post_init__(self) -> None:
        if self.body_part_weight < 0:
            raise ValueError(f"body_part_weight is at least 0, not {self.body_part_weight}.")


@dataclass(frozen=True, eq=False)
class BodyPartQuestion:
    """The head, its targets in each case, and the weight of its loss."""

    head: ProjectionHead
    marks: Mapping[str, np.ndarray]
    """Case -> per slice 1 + index in BODY_PARTS, 0 where there is no target."""
    labels: int
    """Of the dataset, with background."""
    weight: float

    def split(self, marked: Tensor) -> tuple[Tensor, Tensor]:
        """Organ labels, and body parts with -1 where there is no target."""
        return marked % self.labels, marked // self.labels - 1

    def loss(self, features: list[Tensor], parts: Tensor) -> Tensor:
        logits = self.head(features)[:, 1:]  # there is no voxel in no part
        voxels = (parts >= 0).sum()
        share = voxels / mean_over_processes(voxels).clamp_min(1e-6)  # 1 in a single process
        if not voxels:
            return logits.sum() * 0
        return self.weight * share * functional.cross_entropy(logits, parts, ignore_index=-1)


def body_part_question(
    dataset: PreparedDataset, regressor: BodyPartRegressor | None, head: ProjectionHead, weight: float
) -> BodyPartQuestion:
    """The question about every training case."""
    marks = {}
    for name in dataset.case_names("train"):
        case = dataset.case(name)
        regions, _ = regions_of(scan_of(case), label_map(dataset, case), regressor)
        marks[name] = marks_of(regions)
    return BodyPartQuestion(head, marks, len(dataset.organs) + 1, weight)


def marks_of(regions: Regions) -> np.ndarray:
    """Per slice 1 + its body part, 0 where that is unknown or a boundary near."""
    marks = (regions.body_part + 1).astype(np.uint8)
    slices, step = np.arange(len(marks)), regions.grid.spacing_mm[0]
    for edge in regions.edges:
        marks[np.abs(slices - edge) * step < NOT_ASKED_MM] = 0
    assert marks.max(initial=0) <= len(BODY_PARTS)
    return marks
