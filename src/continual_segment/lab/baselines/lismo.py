"""LISMO: MiB with a memory of prototypes (Liu et al., MICCAI 2022)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from continual_segment.data.patches import Patches
from continual_segment.lab.baselines.classes import StepClasses
from continual_segment.lab.baselines.distillation_pass import forward_both
from continual_segment.lab.baselines.method import FirstStep
from continual_segment.lab.baselines.mib import MiB
from continual_segment.lab.baselines.prototypes import MemoryKind, PrototypeMemory, class_means
from continual_segment.lab.baselines.pseudo_labels import teacher_votes
from continual_segment.lab.baselines.state import MethodState, state_file, write_state
from continual_segment.lab.baselines.step import Learner, LearningStep, NetworkMethod
from continual_segment.model import Model
from continual_segment.networks.segmentation_network import SegmentationNetwork


@dataclass(frozen=True)
class LISMO(NetworkMethod):
    """Learning Incrementally to Segment Multiple Organs.

    Verified: MiB's losses, and the skeleton of a prototype memory with attraction and repulsion as in SDR's
    public code. Our interpretation, because neither text nor code of LISMO was available: features are
    those between encoder and decoder; the memory is a moving average (its constant is ours); old organs
    that the teacher finds on background are matched to their memory by cosine, present organs attracted to
    their own and repelled from all others; all three weights. The memory of the first dataset is computed
    at the end of the first step, while its scans are available. Do not quote it as LISMO's own result.
    """

    kd_weight: float = 10.0
    """As in MiB."""
    kd_mean_over_classes: bool = True
    """As in MiB."""
    matching_weight: float = 0.01
    """Of old organs that the teacher finds, attracted to their memory."""
    attraction_weight: float = 0.01
    """Of labelled organs, attracted to their memory."""
    repulsion_weight: float = 0.01
    """Of present organs, repelled from the memory of others."""
    memory: MemoryKind = "moving"
    """moving average, or SDR's cumulative mean."""
    momentum: float = 0.9
    """Share of a moving average that is kept per batch."""
    first_batches: int = 100
    """Batches of the first dataset that its memory averages; never more than a quarter of a training."""

    def begin(self, step: LearningStep) -> Learner:
        student, classes = step.grown_network(), step.classes
        width = student.encoder.config.features[-1]
        memory = PrototypeMemory.grown(step.state, classes.channels, width, self.memory, self.momentum)
        mib = MiB(kd_weight=self.kd_weight, kd_mean_over_classes=self.kd_mean_over_classes)

        def loss(images: Tensor, labels: Tensor) -> Tensor:
            passed = forward_both(student, step.previous, images)
            means = class_means(
                passed.features[-1].float(), completed_by_votes(labels, passed.taught[0], classes)
            )
            if student.training:
                memory.update(means, classes.labelled)
            learned = mib.loss(passed, labels, classes, step.train)
            return (
                learned
                + self.matching_weight * memory.attraction(means, classes.old_only)
                + self.attraction_weight * memory.attraction(means, classes.labelled)
                + self.repulsion_weight * memory.repulsion(means)
            )

        trained = nn.ModuleDict({"network": student, "memory": memory})
        return Learner(student, classes.organs, loss, trained, finish=lambda: state_of(memory))

    def has_adopted(self, first: FirstStep) -> bool:
        return state_file(first.state).exists()

    def adopt(self, first: FirstStep) -> None:
        """Store the prototypes of the first dataset, whose scans no later step reads."""
        stored, train = Model.open(first.network), first.train
        (pack,) = stored.pack_names
        network = SegmentationNetwork(stored.load_encoder(), stored.pack(pack).decoder()).freeze()
        batches = Patches(
            first.dataset, "train", first.config.patches, first.config.augment, train.seed, train.iterations
        )
        classes = StepClasses.of((), first.dataset.organs)
        write_state(first.state, self.after_first_step(network, classes, batches))

    @torch.no_grad()
    def after_first_step(
        self, network: SegmentationNetwork, classes: StepClasses, batches: Patches
    ) -> MethodState:
        """Prototypes of the first dataset's organs by the network that learned them."""
        memory = PrototypeMemory(
            classes.channels, network.encoder.config.features[-1], self.memory, self.momentum
        )
        for number in range(min(self.first_batches, max(1, len(batches) // 4))):
            images, labels = batches[number]
            means = class_means(network.encoder(images)[-1], classes.as_channels(labels))
            memory.update(means, classes.labelled)
        return state_of(memory)


def completed_by_votes(labels: Tensor, teacher: Tensor, classes: StepClasses) -> Tensor:
    """Labels as channels, with the teacher's old organs where they are background."""
    votes, _ = teacher_votes(teacher, classes)
    voted = torch.tensor(classes.background_of_labels, device=labels.device)[votes]
    return torch.where(labels == 0, voted, classes.as_channels(labels))


def state_of(memory: PrototypeMemory) -> MethodState:
    return {name: tensor.detach().cpu().clone() for name, tensor in memory.state_dict().items()}
