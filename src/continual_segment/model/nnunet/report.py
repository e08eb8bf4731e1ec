"""What an import read, what it left out, and what that means for the labels.

In:  what is known about the model
Out: ImportReport, as data and as lines of text
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from continual_segment.model.nnunet.dataset import NnunetLabels
from continual_segment.model.nnunet.layout import BEST
from continual_segment.names import printable
from continual_segment.organs import FIRST_HASHED_ID, Organ

STOCK_TRAINER = re.compile(
    r"nnUNetTrainer"
    r"(|NoDA|NoMirroring|NoDeepSupervision|CosAnneal|_warmup|_noDummy2DDA|_[0-9]+epochs?(_NoMirroring)?"
    r"|_onlyMirror01(_1500ep|_DA5|_DASegOrd0)?|_DASegOrd0(_NoMirroring)?|DA5(ord0|Segord0|_10epochs)?"
    r"|_probabilisticOversampling(_[0-9]+)?|Benchmark_5epochs(_noDataLoading)?"
    r"|(Vanilla)?Adam([13]en[34])?|Adan([13]en[134]|CosAnneal)?"
    r"|CELoss(_5epochs)?|DiceLoss|DiceCELoss_noSmooth|DiceTopK10Loss|Topk10Loss(LS01)?)"
)
"""Trainers of nnU-Net 2.8.1 itself that build the network of the plans: all but nnUNetTrainerBN."""

LONGEST_LINE = 1000


@dataclass(frozen=True)
class Training:
    """How the weights came about, as the model's files name it."""

    dataset_name: str
    plans_name: str
    configuration: str
    trainer: str
    epochs: int | None
    """Epochs done; None where the checkpoint does not store it."""
    folds: tuple[str, ...]
    """Folds of the model: numbers, or `all`."""
    fold: str
    """The one that was read."""
    checkpoint: str
    """checkpoint_final.pth or checkpoint_best.pth."""

    def __str__(self) -> str:
        epochs = "an unknown number of" if self.epochs is None else self.epochs
        return printable(
            f"{self.trainer}, {epochs} epochs, {self.plans_name}, {self.configuration}, "
            f"fold {self.fold} of {', '.join(self.folds)}, dataset {self.dataset_name}",
            LONGEST_LINE,
        )


@dataclass(frozen=True)
class ImportReport:
    """What an import did; every entry is one sentence or one name."""

    read: tuple[str, ...]
    """Files."""
    dropped: tuple[str, ...]
    training: Training
    licence: str
    """As dataset.json has it; empty where it has none."""
    organs: tuple[Organ, ...]
    """By channel, without the background."""
    unknown_organs: tuple[str, ...]
    """Names in dataset.json that are not in our table; their ids are hashed from the names."""
    notes: tuple[str, ...]
    """What a user should know about the labels."""

    def lines(self) -> list[str]:
        """The report as text."""
        organs = ", ".join(f"{organ.name} ({organ.id})" for organ in self.organs)
        unknown = ", ".join(printable(name) for name in self.unknown_organs)
        return [
            *(f"Read: {name}" for name in self.read),
            *(f"Not used: {what}" for what in self.dropped),
            f"Trained: {self.training}",
            f"Licence: {self.licence or 'not in dataset.json; ask the author before you share the weights'}",
            f"Organs: {organs}",
            *([f"Not in the organ table, with ids hashed from their names: {unknown}"] if unknown else []),
            *(f"Note: {note}" for note in self.notes),
        ]


def unknown_organs(labels: NnunetLabels) -> tuple[str, ...]:
    """Names that our table lacks."""
    pairs = zip(labels.names, labels.organs, strict=True)
    return tuple(name for name, organ in pairs if organ.id >= FIRST_HASHED_ID)


def notes_on(training: Training, labels: NnunetLabels) -> Iterator[str]:
    """A sentence for everything that is special about this model."""
    if len(training.folds) > 1:
        yield (
            f"The model has folds {', '.join(training.folds)}; fold {training.fold} alone was read. nnU-Net "
            "averages the logits of all folds by default; that is left out. Compare labels with those of "
            f"`nnUNetv2_predict -f {training.fold}`; the average of all folds may give others."
        )
    if training.checkpoint == BEST:
        yield f"There is no final checkpoint: {BEST}, the best one in validation so far, was read."
    if not STOCK_TRAINER.fullmatch(training.trainer):
        yield (
            f"The trainer {printable(training.trainer)} is not nnU-Net's own. The weights fit the plans, but "
            "a change that leaves no trace in them, such as another activation, cannot be detected. Compare "
            "labels with those of nnU-Net."
        )
    if labels.has_regions:
        yield "The outputs are regions that may overlap; the last one in regions_class_order wins a voxel."
    if labels.ignore is not None:
        yield f"Label {labels.ignore}, 'ignore', marked voxels without a label in training; it is no output."


def changed_since_training(stored: Any, current: Mapping[str, Any], file: str) -> Iterator[str]:
    """A sentence where a file differs from its copy in the checkpoint, which has the state at training."""
    if not isinstance(stored, Mapping):
        return
    changed = [key for key in current if key in stored and stored[key] != current[key]]
    if changed:
        yield (
            f"{file} was changed after training: {printable(', '.join(changed))}. The file was used, as in "
            "nnU-Net, not its copy in the checkpoint."
        )
