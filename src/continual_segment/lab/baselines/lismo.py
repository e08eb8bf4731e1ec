"""LISMO: MiB with a memory of prototypes (Liu et al., MICCAI 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from continual_segment.data.patches import Patches
from continual_segment.lab.baselines.classes import StepClasses
from continual_segment.lab.baselines.distillation_pass import forward_both
from continual_segment.lab.baselines.mib import MiB
from continual_segment.lab.baselines.prototypes import MemoryKind, PrototypeMemory, class_means
from continual_segment.lab.baselines.pseudo_labels import teacher_votes
from continual_segment.lab.baselines.step import Keeps, Learner, LearningStep, Memory
from continual_segment.networks.segmentation_network import SegmentationNetwork


@dataclass(frozen=True)
class LISMO:
    """Learning Incrementally to Segment Multiple Organs.

    Verified: MiB's losses, and the skeleton of a prototype memory with attraction and repulsion as in SDR's
    public code. Our reading, because neither text nor code of LISMO was at hand: features are those between
    encoder and decoder; the memory is a moving average (its constant is ours); old organs that the teacher
    sees on background are matched to their memory by cosine, present organs drawn to their own and pushed
    from all others; all three weights. The memory of the first dataset is taken at the end of the first
    step, while its scans are still at hand. Do not quote it as LISMO's own result.
    """

    keeps: ClassVar[Keeps] = "one network"

    kd_weight: float = 10.0
    """As in MiB."""
    matching_weight: float = 0.01
    """Of old organs the teacher sees, drawn to their memory."""
    attraction_weight: float = 0.01
    """Of labelled organs, drawn to their memory."""
    repulsion_weight: float = 0.01
    """Of present organs, pushed from the memory of others."""
    memory: MemoryKind = "moving"
    """moving average, or SDR's cumulative mean."""
    momentum: float = 0.9
    """What a moving average keeps per batch."""
    first_batches: int = 100
    """Batches of the first dataset behind its memory; never more than a quarter of a training."""

    def begin(self, step: LearningStep) -> Learner:
        student, classes = step.grown_network(), step.classes
        width = student.encoder.config.features[-1]
        memory = PrototypeMemory.grown(step.memory, classes.channels, width, self.memory, self.momentum)
        mib = MiB(kd_weight=self.kd_weight)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            both = forward_both(student, step.previous, images)
            means = class_means(
                both.features[-1].float(), completed_by_votes(labels, both.taught[0], classes)
            )
            if student.training:
                memory.update(means, classes.labelled)
            learned = mib.loss(both, labels, classes, step.train)
            return (
                learned
                + self.matching_weight * memory.attraction(means, classes.old_only)
                + self.attraction_weight * memory.attraction(means, classes.labelled)
                + self.repulsion_weight * memory.repulsion(means)
            )

        trained = nn.ModuleDict({"network": student, "memory": memory})
        return Learner(student, classes.organs, loss, trained, finish=lambda: remembered(memory))

    @torch.no_grad()
    def after_first_step(
        self, network: SegmentationNetwork, classes: StepClasses, batches: Patches
    ) -> Memory:
        """The memory of the first dataset's organs by the network that learned them."""
        memory = PrototypeMemory(
            classes.channels, network.encoder.config.features[-1], self.memory, self.momentum
        )
        for number in range(min(self.first_batches, max(1, len(batches) // 4))):
            images, labels = batches[number]
            means = class_means(network.encoder(images)[-1], classes.as_channels(labels))
            memory.update(means, classes.labelled)
        return remembered(memory)


def completed_by_votes(labels: Tensor, teacher: Tensor, classes: StepClasses) -> Tensor:
    """Labels as channels, with the teacher's old organs where they say background."""
    votes, _ = teacher_votes(teacher, classes)
    voted = torch.tensor(classes.background_of_labels, device=labels.device)[votes]
    return torch.where(labels == 0, voted, classes.as_channels(labels))


def remembered(memory: PrototypeMemory) -> Memory:
    return {name: tensor.detach().cpu().clone() for name, tensor in memory.state_dict().items()}
