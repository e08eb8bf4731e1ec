"""DistillationPass: one forward pass of student and teacher over the same batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from continual_segment.networks.segmentation_network import SegmentationNetwork, tapped


@dataclass(frozen=True, eq=False)
class DistillationPass:
    """One pass of both networks over the same augmented patches."""

    features: Sequence[Tensor]
    """Of the student's encoder, finest first."""
    outputs: Sequence[Tensor]
    """Logits of the student, finest first."""
    taught: Sequence[Tensor]
    """Logits of the teacher."""

    inner: Sequence[tuple[Tensor, Tensor]] = ()
    """Features of student and teacher before the last activation of every encoder stage and decoder block;
    empty unless tapped."""

    @property
    def pairs(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.outputs, self.taught, strict=True))


def forward_both(
    student: SegmentationNetwork, teacher: SegmentationNetwork, images: Tensor, one_encoder: bool = False
) -> DistillationPass:
    """Run both networks; with `one_encoder`, a frozen one that both share, it runs once."""
    with torch.set_grad_enabled(not one_encoder):
        features = student.encoder(images)
    with torch.no_grad():
        taught = teacher.decoder.forward_supervised(features if one_encoder else teacher.encoder(images))
    return DistillationPass(features, student.decoder.forward_supervised(features), taught)


def forward_both_tapped(
    student: SegmentationNetwork, teacher: SegmentationNetwork, images: Tensor
) -> DistillationPass:
    """Run both networks and collect their inner features."""
    with tapped(student) as ours, tapped(teacher) as theirs:
        passed = forward_both(student, teacher, images)
    return replace(passed, inner=list(zip(ours, theirs, strict=True)))
