"""learn_anomaly: a dataset with tumour masks becomes a head that detects diseased tissue.

Only the head is trained, on the frozen encoder, as every decoder of a later step is; so it can be learned at
any time, and any number of them. All labels of the dataset count as diseased, whatever their names.

In:  a prepared dataset, a model
Out: the model with one anomaly head more
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from continual_segment import __version__
from continual_segment.data.patches import NumberedBatches, Patches
from continual_segment.data.prepared import PreparedDataset
from continual_segment.errors import ModelError
from continual_segment.learning.learn_config import LearnConfig
from continual_segment.learning.same_preparation import check_preparation
from continual_segment.learning.step import check_splits, delete_checkpoints, run_folder
from continual_segment.learning.train_decoder import PatchSource, signature_of
from continual_segment.model import Model
from continual_segment.model.checks import check_name
from continual_segment.model.head import AnomalyHead, add_head, head_file
from continual_segment.networks import GeneralEncoder
from continual_segment.networks.heads import ProjectionHead
from continual_segment.training import Objective, TrainConfig, TrainingRun, train
from continual_segment.training.distributed import on_main
from continual_segment.training.train import Rows
from continual_segment.training.validate import patch_dice


class Diseased(NumberedBatches):
    """Patches whose labels are all one: diseased."""

    def __init__(self, patches: Patches) -> None:
        self.patches = patches

    def __len__(self) -> int:
        return len(self.patches)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        images, labels = self.patches[number]
        return images, (labels > 0).long()

    def for_rank(self, rank: int) -> Diseased:
        """The batches of one of several processes."""
        return Diseased(self.patches.for_rank(rank))


def learn_anomaly(
    dataset: PreparedDataset, folder: Path, config: LearnConfig, name: str | None = None
) -> AnomalyHead:
    """Add an anomaly head to the model in `folder`. Run again to resume a stopped run."""
    name = name or dataset.name
    check_name(name)
    check_splits(dataset)
    dataset = dataset.learnable()
    model = Model.open(folder)
    if head_file(name) in model.files:
        raise ModelError(f"{folder} has an anomaly head '{name}' already. Give another --name.")
    check_preparation(dataset, model)
    settings = config.later
    torch.manual_seed(settings.seed)
    encoder = model.load_encoder().to(settings.device)
    head = ProjectionHead(model.network, classes=1).to(settings.device)
    source = PatchSource(dataset, config.patches.of_later_step(model.window), config.augment)
    run = run_folder(folder, f"{name}.head")
    rows = train_head(head, encoder, source, settings, run, title=f"learning anomaly {name}")
    found = AnomalyHead(
        name,
        tuple(organ.name for organ in dataset.organs),
        model.network,
        model.encoder_fingerprint,
        {key: tensor.detach().cpu().clone() for key, tensor in head.state_dict().items()},
        {
            "version": __version__,
            "torch": torch.__version__,
            "dataset": dataset.name,
            "patches": asdict(source.patches),
            "train": settings.settings,
            "validation_patch_dice": round(rows[-1]["validation_dice"], 4),
        },
    )
    on_main(lambda: store_head(model, found, run))
    return found


def store_head(model: Model, head: AnomalyHead, run: Path) -> None:
    """Add the head to the model; it holds all of the checkpoints."""
    add_head(model, head)
    delete_checkpoints(run)


def train_head(
    head: ProjectionHead,
    encoder: GeneralEncoder,
    source: PatchSource,
    settings: TrainConfig,
    run: Path,
    title: str,
) -> Rows:
    """Train a head on a frozen encoder; return the rows of the log."""
    loss = settings.loss.build()

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            features = encoder(images)
        return loss([head(features)], labels)

    def validate() -> float:
        return patch_dice(
            lambda images: head(encoder(images)),
            Diseased(source.validation(settings)),
            settings.validation_batches,
            1,
            settings.device,
        )

    return train(
        TrainingRun(
            Objective(loss_of, head=head),
            Diseased(source.training(settings)),
            settings,
            run,
            signature=signature_of(encoder, source, settings, head="anomaly"),
            title=title,
            validate=validate if settings.validation_batches else None,
        )
    )
