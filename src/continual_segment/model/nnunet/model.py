"""NnunetModel: a trained stock nnU-Net v2 model as data, opened from its folder or an exported zip.

Everything that its labels depend on is read, and the network is checked against the weights. What our
networks cannot compute the same way is refused with one error: 2D and cascaded configurations, several input
channels, other networks. Nothing in the files is executed.

In:  a path, and which configuration and fold of it
Out: NnunetModel
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from continual_segment.errors import ModelError
from continual_segment.files.records import as_record, parse_json
from continual_segment.model.nnunet import plans as plans_json
from continual_segment.model.nnunet.architecture import NnunetArchitecture
from continual_segment.model.nnunet.checkpoint import Checkpoint, read_checkpoint
from continual_segment.model.nnunet.configuration import PlannedNetwork
from continual_segment.model.nnunet.dataset import (
    Attribution,
    Dataset,
    NnunetLabels,
    read_labels,
    read_modality,
)
from continual_segment.model.nnunet.layout import FoldFile, ModelFolder, find_model_folder
from continual_segment.model.nnunet.plans import Plans, Preprocessing
from continual_segment.model.nnunet.report import (
    ImportReport,
    Training,
    changed_since_training,
    notes_on,
    unknown_organs,
)
from continual_segment.model.nnunet.sources import DATASET, PLANS, ModelFiles, open_files, read_text
from continual_segment.model.nnunet.weights import expected_shapes, fit_weights
from continual_segment.names import printable
from continual_segment.networks.blocks import Kernel


@dataclass(frozen=True, eq=False)
class NnunetModel:
    """One fold of one 3D configuration."""

    source: str
    """The model folder, or the zip and the folder in it."""
    training: Training
    architecture: NnunetArchitecture
    patch_size: Kernel
    """Voxels of a window, axes as after `preprocessing.transpose_forward`."""
    preprocessing: Preprocessing
    mirror_axes: tuple[int, ...]
    """Axes that nnU-Net mirrors at inference, counted in the patch; empty for trainers without mirroring."""
    modality: str
    """Name of the input channel, such as CT."""
    labels: NnunetLabels
    attribution: Attribution
    plans: dict[str, Any]
    """plans.json, as it is."""
    dataset: dict[str, Any]
    """dataset.json, as it is."""
    weights: dict[str, Tensor]
    """float32, each once, with nnU-Net's names: `encoder.` and `decoder.`."""
    report: ImportReport

    @classmethod
    def open(
        cls, path: Path | str, configuration: str | None = None, fold: int | str | None = None
    ) -> NnunetModel:
        """Read a model folder, a folder above it, or a zip.

        `configuration` is needed where there are several: `3d_fullres`, or the whole name of a model folder.
        `fold` is a number or `all`; the first one is read for None.
        """
        files = open_files(Path(path))
        folder = find_model_folder(files, configuration)
        chosen = folder.find_fold(fold)
        described = _Description.read(files, folder)
        with files.on_disk(chosen.name) as file:
            return _read_model(described, file, chosen, configuration)


@dataclass(frozen=True)
class _Description:
    """The two JSON files of a model folder, as records and as they are."""

    files: ModelFiles
    folder: ModelFolder
    plans: Plans
    raw_plans: dict[str, Any]
    dataset: Dataset
    raw_dataset: dict[str, Any]

    @classmethod
    def read(cls, files: ModelFiles, folder: ModelFolder) -> _Description:
        raw_plans = _read_json(files, folder.prefix + PLANS)
        raw_dataset = _read_json(files, folder.prefix + DATASET)
        plans = as_record(raw_plans, Plans, files.where(folder.prefix + PLANS), ModelError, plans_json.ADVICE)
        dataset = as_record(
            raw_dataset, Dataset, files.where(folder.prefix + DATASET), ModelError, "Correct dataset.json."
        )
        return cls(files, folder, plans, raw_plans, dataset, raw_dataset)

    def where(self, name: str) -> str:
        return self.files.where(self.folder.prefix + name)


def _read_json(files: ModelFiles, name: str) -> dict[str, Any]:
    advice = "Copy the model again."
    return parse_json(read_text(files, name), dict[str, Any], files.where(name), ModelError, advice)


def _read_model(described: _Description, file: Path, chosen: FoldFile, asked: str | None) -> NnunetModel:
    """The model of the checkpoint at `file`; nothing that is returned depends on that file."""
    where = described.files.where(chosen.name)
    checkpoint = read_checkpoint(file, where)
    _check_configuration(checkpoint, described.folder, asked, where)
    configuration = checkpoint.training.init_args.configuration
    planned = PlannedNetwork.read(described.plans, configuration, described.where(PLANS))
    modality = read_modality(described.dataset, described.where(DATASET))
    labels = read_labels(described.dataset, described.where(DATASET))
    shapes = expected_shapes(planned.architecture, labels.channels)
    weights = fit_weights(checkpoint.weights, shapes, checkpoint.training.trainer_name, where)
    training = _training(described, checkpoint, chosen)
    return NnunetModel(
        source=described.folder.where,
        training=training,
        architecture=planned.architecture,
        patch_size=planned.patch_size,
        preprocessing=planned.preprocessing,
        mirror_axes=checkpoint.training.inference_allowed_mirroring_axes or (),
        modality=modality,
        labels=labels,
        attribution=described.dataset.attribution,
        plans=described.raw_plans,
        dataset=described.raw_dataset,
        weights=weights,
        report=_report(described, checkpoint, training, labels, len(weights)),
    )


def _check_configuration(checkpoint: Checkpoint, folder: ModelFolder, asked: str | None, where: str) -> None:
    """Raise where the user asked for another configuration; the name of a folder does not prove it."""
    trained = checkpoint.training.init_args.configuration
    if asked not in (None, trained, folder.name):
        raise ModelError(
            f"{where}: trained with configuration {printable(trained)!r}, not {printable(str(asked))!r}. "
            "Give that one, or another model."
        )


def _training(described: _Description, checkpoint: Checkpoint, chosen: FoldFile) -> Training:
    return Training(
        dataset_name=described.plans.dataset_name,
        plans_name=described.plans.plans_name,
        configuration=checkpoint.training.init_args.configuration,
        trainer=checkpoint.training.trainer_name,
        epochs=checkpoint.training.current_epoch,
        folds=described.folder.folds,
        fold=chosen.fold,
        checkpoint=chosen.checkpoint,
    )


def _report(
    described: _Description, checkpoint: Checkpoint, training: Training, labels: NnunetLabels, kept: int
) -> ImportReport:
    duplicates = len(checkpoint.weights) - kept
    stored = checkpoint.training.init_args
    fold_file = f"fold_{training.fold}/{training.checkpoint}"
    return ImportReport(
        read=tuple(described.where(name) for name in (PLANS, DATASET, fold_file)),
        dropped=(
            f"{duplicates} of {len(checkpoint.weights)} tensors: nnU-Net stores layers under several names",
            *(f"{entry} of the checkpoint" for entry in checkpoint.unused),
        ),
        training=training,
        licence=described.dataset.attribution.licence,
        organs=labels.organs,
        unknown_organs=unknown_organs(labels),
        notes=(
            *notes_on(training, labels),
            *changed_since_training(stored.plans, described.raw_plans, PLANS),
            *changed_since_training(stored.dataset_json, described.raw_dataset, DATASET),
        ),
    )
