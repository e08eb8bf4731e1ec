"""learn_anomaly: a dataset with tumour masks becomes a head that detects diseased tissue.

A head is a decoder of projections. It is trained on the frozen encoder, as every decoder of a later step is,
so it can be learned at any time, and any number of them; or with the encoder of a new model (joint.py). All
labels of the dataset count as diseased, whatever their names; scans without any show healthy tissue.

In:  a prepared dataset, a model
Out: the model with one anomaly head more
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from continual_segment.body_parts.learn import label_map, training_cases
from continual_segment.data.patches import NumberedBatches
from continual_segment.data.prepared import PreparedDataset
from continual_segment.errors import ModelError
from continual_segment.learning.learn_config import LearnConfig
from continual_segment.learning.same_preparation import check_preparation
from continual_segment.learning.step import check_splits, delete_checkpoints, run_folder, training_card
from continual_segment.learning.train_decoder import PatchSource, train_decoder
from continual_segment.model import Model
from continual_segment.model.checks import check_name
from continual_segment.model.head import MOST_RADIUS_MM, AnomalyHead, add_head, head_file
from continual_segment.networks import Decoder, DecoderPlan, NetworkConfig
from continual_segment.segmentation.components import Runs
from continual_segment.training import TrainConfig
from continual_segment.training.distributed import on_main
from continual_segment.training.train import Rows


class Diseased(NumberedBatches):
    """Batches whose labels are all one: diseased."""

    def __init__(self, batches: NumberedBatches) -> None:
        self.batches = batches

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        images, labels = self.batches[number]
        return images, (labels > 0).long()

    def for_rank(self, rank: int) -> Diseased:
        """The batches of one of several processes."""
        return Diseased(self.batches.for_rank(rank))


class DiseaseSource(PatchSource):
    """The patches of a dataset with tumour masks, for an anomaly head."""

    def training(self, config: TrainConfig) -> Diseased:
        return Diseased(super().training(config))

    def validation(self, config: TrainConfig) -> Diseased:
        return Diseased(super().validation(config))


def learn_anomaly(
    dataset: PreparedDataset, folder: Path, config: LearnConfig, name: str | None = None
) -> AnomalyHead:
    """Add an anomaly head to the model in `folder`. Run again to resume a stopped run."""
    name = name or dataset.name
    check_name(name)
    check_splits(dataset)
    model = Model.open(folder)
    if head_file(name) in model.files:
        raise ModelError(f"{folder} has an anomaly head '{name}' already. Give another --name.")
    check_preparation(dataset.learnable(), model)
    patches = config.patches.of_later_step(model.window)
    source = DiseaseSource(dataset.learnable(), patches, config.augment)
    torch.manual_seed(config.later.seed)
    decoder, run = new_head(model.network), run_folder(folder, f"{name}.head")
    rows = train_decoder(
        model.load_encoder(), decoder, source, config.later, run, f"learning anomaly {name}", head="anomaly"
    )
    head = made_head(name, source, config.later, decoder, rows, model.encoder_fingerprint)
    on_main(lambda: store_head(model, head, run))
    return head


def new_head(network: NetworkConfig) -> Decoder:
    """The network of a head, untrained."""
    return Decoder(network, DecoderPlan.projections(network), organs=1)


def made_head(
    name: str,
    source: PatchSource,
    settings: TrainConfig,
    decoder: Decoder,
    rows: Rows,
    encoder_fingerprint: str,
) -> AnomalyHead:
    """A trained head, to be stored."""
    return AnomalyHead(
        name,
        tuple(organ.name for organ in source.dataset.organs),
        decoder.network,
        encoder_fingerprint,
        {key: tensor.detach().cpu().clone() for key, tensor in decoder.state_dict().items()},
        training_card(source, settings, decoder, rows),
        decoder.plan,
        tumour_radius_mm(source.dataset),
    )


def tumour_radius_mm(dataset: PreparedDataset, at_most: int = 100) -> float | None:
    """Mean radius of balls of the volumes of all tumours in the training scans, at most so many scans."""
    radii: list[float] = []
    for case in training_cases(dataset, at_most):
        runs = Runs.of(label_map(dataset, case))
        if runs.present:
            cubic_mm = runs.components(runs.present).sizes[1:] * runs.labels.grid.voxel_ml * 1000
            radii += np.cbrt(0.75 / np.pi * cubic_mm).tolist()
    return round(min(float(np.mean(radii)), MOST_RADIUS_MM), 2) if radii else None


def store_head(model: Model, head: AnomalyHead, run: Path) -> None:
    """Add the head to the model; it holds all of the checkpoints."""
    add_head(model, head)
    delete_checkpoints(run)
