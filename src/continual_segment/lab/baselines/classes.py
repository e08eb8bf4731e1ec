"""Which channel of the one growing head is which organ, and what each dataset says about it.

Organs are known by name, so an organ that two datasets label is one channel: the four organs that the broad
dataset shares with the chest keep theirs. A dataset's background hides every organ it does not label. Losses
that know this need, per step, the channels a label of background may stand for, and those a teacher's
background may. With shared organs these are no ranges, so all are lists of channels.

Channel 0 is background. Organs that lie in each other, such as the aorta and its arch, are different classes
here and compete, as in the paper; scoring counts a part as its whole where the truth names only that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from continual_segment.organs import Organ


@dataclass(frozen=True)
class StepClasses:
    """The classes of one learning step."""

    organs: tuple[Organ, ...]
    """All that are known after the step, in the order of first appearance: organ i is channel i + 1."""
    before: int
    """How many of them earlier steps knew: the first ones."""
    labelled: tuple[int, ...]
    """Channels of the dataset's labels 1, 2, ..."""

    @classmethod
    def of(cls, known: Sequence[Organ], dataset: Sequence[Organ]) -> StepClasses:
        """A dataset's step on top of the organs known before."""
        names = {organ.name for organ in known}
        organs = (*known, *(organ for organ in dataset if organ.name not in names))
        channel = {organ.name: number for number, organ in enumerate(organs, start=1)}
        return cls(organs, len(known), tuple(channel[organ.name] for organ in dataset))

    @property
    def channels(self) -> int:
        """Of the head after the step, with background."""
        return len(self.organs) + 1

    @property
    def new(self) -> tuple[int, ...]:
        """Channels the head grows by."""
        return tuple(range(self.before + 1, self.channels))

    @cached_property
    def shared(self) -> tuple[int, ...]:
        """Organs that were known before and are labelled again."""
        return tuple(sorted(channel for channel in self.labelled if channel <= self.before))

    @cached_property
    def old_only(self) -> tuple[int, ...]:
        """Organs that were known before and are background in this dataset."""
        return tuple(channel for channel in range(1, self.before + 1) if channel not in self.labelled)

    @property
    def background_of_labels(self) -> tuple[int, ...]:
        """What a voxel labelled background may be."""
        return (0, *self.old_only)

    @property
    def background_of_teacher(self) -> tuple[int, ...]:
        """What the teacher calls so, or an organ that the labels know better."""
        return (0, *self.shared)

    @property
    def background_of_student(self) -> tuple[int, ...]:
        """What the student may call a voxel of those."""
        return (0, *sorted(self.labelled))

    @property
    def class_ratio(self) -> float:
        """Root of all classes per labelled organ: distillation counts the more, the less is new."""
        return (self.channels / len(self.labelled)) ** 0.5

    def check(self, labels: Tensor) -> None:
        """Raise where a label is none of the dataset's."""
        if int(labels.max()) > len(self.labelled) or int(labels.min()) < 0:
            raise ValueError(
                f"Labels reach from {int(labels.min())} to {int(labels.max())}; "
                f"the dataset has {len(self.labelled)} organs, numbered from 1."
            )

    def as_channels(self, labels: Tensor) -> Tensor:
        """The dataset's labels as channels of the head."""
        self.check(labels)
        return torch.tensor((0, *self.labelled), device=labels.device)[labels]
