"""learn_jointly: a first step on several datasets, with one encoder and one pack per dataset.

Each dataset labels its own organs, and each has its own decoder. The datasets take turns: a batch trains the
decoder of its dataset, and the encoder. So partial labels do not contradict each other, and the encoder has
seen all of them before it is frozen. Datasets with tumour masks take turns as well; their decoders are
anomaly heads. The number of updates is that of the same datasets learned one by one.

In:  prepared datasets, a model folder that does not exist yet
Out: a model with a pack for each, and an anomaly head for each with tumour masks
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn

from continual_segment.data.patches import NumberedBatches
from continual_segment.data.prepared import PreparedDataset
from continual_segment.errors import DatasetError, ModelError
from continual_segment.learning.anomaly import DiseaseSource, made_head, new_head
from continual_segment.learning.learn_config import LearnConfig
from continual_segment.learning.same_preparation import in_words
from continual_segment.learning.step import (
    PackFacts,
    StepStart,
    Trained,
    checked_step,
    delete_checkpoints,
    first_step_files,
    learn_regressor,
    make_pack,
    run_folder,
    whole_decoder,
)
from continual_segment.learning.train_decoder import signature_of, validation_dice
from continual_segment.model import Model, OrganPack
from continual_segment.model.fingerprint import fingerprint_data
from continual_segment.model.head import AnomalyHead, add_head
from continual_segment.model.model import encoder_fingerprint
from continual_segment.networks import Decoder, GeneralEncoder
from continual_segment.training import Loss, TrainConfig, TrainingRun, train
from continual_segment.training.distributed import on_main
from continual_segment.training.train import Rows
from continual_segment.training.update import Update

RUN = "joint"
"""Folder of the common training, beside those of the packs."""


def learn_jointly(
    datasets: Sequence[PreparedDataset],
    folder: Path,
    config: LearnConfig,
    licence: str = "",
    tumours: Sequence[PreparedDataset] = (),
    anomalies: Mapping[str, Sequence[str]] | None = None,
) -> list[OrganPack]:
    """Make a model from several datasets; packs and, of `tumours`, anomaly heads have their names.

    `anomalies` names the diseases in the training scans, by the name of the dataset. Run again to resume an
    interrupted run.
    """
    check_together([*datasets, *tumours], folder)
    each_config = with_split_budget(config, len(datasets))
    steps = [checked_step(dataset, folder, each_config, dataset.name, None) for dataset in datasets]
    head_steps = [head_step(dataset, folder, config) for dataset in tumours]
    run, together = run_folder(folder, RUN), [*steps, *head_steps]
    sources = [step.source.dataset for step in steps]
    regressor = on_main(lambda: learn_regressor(sources, config.body_parts, config.first, run))
    kinds = anomalies or {}
    facts = on_main(
        lambda: [PackFacts.of(each, regressor, licence, kinds.get(each.name, ())) for each in sources]
    )
    torch.manual_seed(config.first.seed)
    encoder = config.network.build_encoder()
    decoders = [whole_decoder(encoder, dataset) for dataset in sources]
    decoders += [new_head(encoder.config) for _ in tumours]
    trained = train_together(encoder, decoders, together, joint_settings(config, len(together)), run)
    fingerprint = encoder_fingerprint(encoder, datasets[0].config)
    heads = [
        made_head(step.name, step.source, config.first, each.decoder, each.rows, fingerprint)
        for step, each in zip(head_steps, trained[len(steps) :], strict=True)
    ]
    packs = [
        make_pack(step, encoder, each, config, known)
        for step, each, known in zip(steps, trained[: len(steps)], facts, strict=True)
    ]
    on_main(lambda: store(folder, encoder, together, packs, heads, first_step_files(regressor)))
    return packs


def head_step(dataset: PreparedDataset, folder: Path, config: LearnConfig) -> StepStart:
    """The same for a dataset with tumour masks, whose decoder is an anomaly head."""
    plain = replace(config, stage=replace(config.stage, stages=("train",)))  # heads are small as they are
    step = checked_step(dataset, folder, plain, dataset.name, None)
    source = DiseaseSource(step.source.dataset, step.source.patches, step.source.augment)
    return replace(step, source=source, run=run_folder(folder, f"{step.name}.head"))


def store(
    folder: Path,
    encoder: GeneralEncoder,
    steps: Sequence[StepStart],
    packs: Sequence[OrganPack],
    heads: Sequence[AnomalyHead],
    files: dict[str, bytes],
) -> None:
    """The model appears with all of its packs and heads, or not at all."""
    source, building = steps[0].source, run_folder(folder, RUN) / "model"
    if building.exists():
        shutil.rmtree(building)  # of a run that was killed here
    model = Model.create(building, encoder, source.dataset.config, source.patches.size, packs[0], files)
    for pack in packs[1:]:
        model = model.add(pack)
    for head in heads:
        model = add_head(model, head)
    building.rename(folder)
    for step in steps:
        delete_checkpoints(step.run)
    delete_checkpoints(run_folder(folder, RUN))


def check_together(datasets: Sequence[PreparedDataset], folder: Path) -> None:
    """Whether these datasets can make a model."""
    if folder.exists():
        raise ModelError(
            f"{folder} exists. Several datasets are learned together only to make a new model: name another "
            "folder, or add the datasets one by one without --with and --tumours."
        )
    first, names = datasets[0], [dataset.name for dataset in datasets]
    for dataset in datasets:
        if dataset.config != first.config:
            raise DatasetError(
                f"{dataset.folder} was prepared with {in_words(dataset.config)}, {first.folder} with "
                f"{in_words(first.config)}. Prepare both with the same --preset and --spacing."
            )
        if names.count(dataset.name) > 1:
            raise DatasetError(
                f"Two datasets are named {dataset.name}; each becomes a pack or head of its own name. Name "
                "each once, or prepare one of them under another name."
            )


def with_split_budget(config: LearnConfig, datasets: int) -> LearnConfig:
    """The packs share the budget in equal parts: it is known before training whether each part is enough."""
    budget = config.shrink.budget
    if not budget:
        return config
    each = budget.split(max(datasets, budget.packs))
    return replace(config, shrink=replace(config.shrink, budget=each))


def joint_settings(config: LearnConfig, datasets: int) -> TrainConfig:
    """As many updates as the datasets would have one by one."""
    iterations = config.first.iterations + (datasets - 1) * config.later.iterations
    return replace(config.first, iterations=iterations)


class Turns(NumberedBatches):
    """Batches of several datasets in turn."""

    def __init__(self, batches: Sequence[NumberedBatches]) -> None:
        self.batches = batches

    def for_rank(self, rank: int) -> Turns:
        """The batches of one of several processes: it is the same dataset's turn in all of them."""
        return Turns([batches.for_rank(rank) for batches in self.batches])

    def __getitem__(self, iteration: int) -> tuple[Tensor, Tensor]:
        turn, number = iteration % len(self.batches), iteration // len(self.batches)
        return self.batches[turn][number]


class JointObjective(nn.Module):
    """The loss of one of several decoders on a common encoder; `turn` is whose."""

    def __init__(self, encoder: GeneralEncoder, decoders: Sequence[Decoder], loss: Loss) -> None:
        super().__init__()
        self.encoder, self.decoders = encoder, nn.ModuleList(decoders)
        self.loss, self.turn = loss, 0

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        decoder = self.decoders[self.turn]
        assert isinstance(decoder, Decoder)
        return self.loss(decoder.forward_supervised(self.encoder(images)), labels)


class TurnUpdate(Update):
    """An update of the encoder and the decoder whose turn it is."""

    def __call__(self, images: Tensor, labels: Tensor, iteration: int) -> float:
        assert isinstance(self.module, JointObjective)
        self.module.turn = iteration % len(self.module.decoders)
        return super().__call__(images, labels, iteration)


def train_together(
    encoder: GeneralEncoder,
    decoders: Sequence[Decoder],
    steps: Sequence[StepStart],
    config: TrainConfig,
    run: Path,
) -> list[Trained]:
    """Train the encoder with all decoders; the log has the mean Dice over the datasets."""
    objective = JointObjective(encoder, decoders, config.loss.build()).to(config.device)
    measures = [
        validation_dice(encoder, decoder, step.source, config)
        for decoder, step in zip(decoders, steps, strict=True)
    ]
    found = [measure for measure in measures if measure]
    datasets = [signature_of(None, step.source, config) for step in steps]
    rows = train(
        TrainingRun(
            objective,
            Turns([step.source.training(config) for step in steps]),
            config,
            run,
            fingerprint_data({"network": encoder.config.described(), "datasets": datasets}),
            title=f"learning {', '.join(step.name for step in steps)}",
            validate=(lambda: fmean(measure() for measure in found)) if found else None,
            make_update=TurnUpdate,
        )
    )
    return [
        Trained(decoder, with_dice(rows, measure))
        for decoder, measure in zip(decoders, measures, strict=True)
    ]


def with_dice(rows: Rows, measure: Callable[[], float] | None) -> Rows:
    """The log with the Dice of one dataset at its end, in place of the mean over all."""
    return [*rows[:-1], rows[-1] | {"validation_dice": on_main(measure)}] if measure else rows
