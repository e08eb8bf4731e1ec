"""StepClasses: the organ of each channel of the growing head, and which of them a dataset labels.

Organs are identified by name, so an organ that two datasets label is one channel: the four organs that the
broad dataset shares with the chest keep theirs. A dataset's background contains every organ that it does not
label. Losses that model this need, per step, the channels that a background label can mean, and those that a
teacher's background can mean. With shared organs these are not ranges, so all are lists of channels.

Channel 0 is background. Nested organs, such as the aorta and its arch, are different classes here and
compete, as in the paper; scoring counts a part as its whole where the ground truth names only the whole.
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
    """All organs after the step, in the order of first appearance: organ i is channel i + 1."""
    before: int
    """Number of organs of earlier steps, which come first."""
    labelled: tuple[int, ...]
    """Channels of the dataset's labels 1, 2, ..."""

    @classmethod
    def of(cls, known: Sequence[Organ], dataset: Sequence[Organ]) -> StepClasses:
        """The step of a dataset after steps with the known organs."""
        names = {organ.name for organ in known}
        organs = (*known, *(organ for organ in dataset if organ.name not in names))
        channel = {organ.name: number for number, organ in enumerate(organs, start=1)}
        return cls(organs, len(known), tuple(channel[organ.name] for organ in dataset))

    @property
    def channels(self) -> int:
        """Channels of the head after the step, background included."""
        return len(self.organs) + 1

    @property
    def new(self) -> tuple[int, ...]:
        """Channels that the step adds to the head."""
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
        """Channels that a background label can mean."""
        return (0, *self.old_only)

    @property
    def background_of_teacher(self) -> tuple[int, ...]:
        """Channels counted as the teacher's background: its own, and organs that the dataset labels."""
        return (0, *self.shared)

    @property
    def background_of_student(self) -> tuple[int, ...]:
        """Channels of the student that correspond to the teacher's background."""
        return (0, *sorted(self.labelled))

    @property
    def class_ratio(self) -> float:
        """Root of all classes per labelled organ: distillation weighs more, the more are old.

        1 in a step without a new class, as in the published runs of PLOP and RCIL in new domains.
        """
        return (self.channels / len(self.labelled)) ** 0.5 if self.new else 1.0

    def check(self, labels: Tensor) -> None:
        """Raise on labels outside the dataset's."""
        if int(labels.max()) > len(self.labelled) or int(labels.min()) < 0:
            raise ValueError(
                f"Labels range from {int(labels.min())} to {int(labels.max())}; "
                f"the dataset has {len(self.labelled)} organs, numbered from 1."
            )

    def as_channels(self, labels: Tensor) -> Tensor:
        """The dataset's labels as channels of the head."""
        self.check(labels)
        return torch.tensor((0, *self.labelled), device=labels.device)[labels]
