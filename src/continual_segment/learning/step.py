"""learn_dataset: one dataset becomes one organ pack, in one stage or more.

The first step trains encoder and decoder together and makes the model. Every later step reads the frozen
encoder and trains a new decoder on its own dataset alone: no old data is needed, and the optimiser
gets no old weight. Once a decoder is trained, it may be made small: by shrinking it, or as in the paper by a
search of kernels and pruning. The encoder is then frozen in the first step, too. The first step also learns
the regressor of body parts. Every step measures which of them its dataset shows, in how many pieces each
organ comes, and at the end what the new pack can be trusted with.

In:  a prepared dataset, a model folder (not there yet for the first step)
Out: the model with one pack more
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from continual_segment import __version__
from continual_segment.body_parts import (
    BodyPartConfig,
    BodyPartRegressor,
    learn_body_parts,
    measure_coverage,
)
from continual_segment.body_parts.regressor import FILE as REGRESSOR_FILE
from continual_segment.data.prepared import PreparedDataset
from continual_segment.errors import ConfigError, DatasetError, ModelError
from continual_segment.learning.assess import assess
from continual_segment.learning.learn_config import LearnConfig, Stage
from continual_segment.learning.measure_pieces import pieces_for_card
from continual_segment.learning.prune import prune_decoder
from continual_segment.learning.same_preparation import check_preparation
from continual_segment.learning.search import search_decoder
from continual_segment.learning.shrink import ShrinkConfig, shrink_decoder
from continual_segment.learning.train_decoder import FrozenStep, PatchSource, train_decoder
from continual_segment.model import Model, OrganPack
from continual_segment.model.checks import check_name
from continual_segment.model.model import encoder_fingerprint
from continual_segment.model.starter import refuse_starter
from continual_segment.networks import (
    Decoder,
    DecoderPlan,
    GeneralEncoder,
    NetworkConfig,
    paper_count,
    true_count,
)
from continual_segment.training import TrainConfig
from continual_segment.training.distributed import is_main, on_main
from continual_segment.training.train import Rows

log = logging.getLogger(__name__)


def learn_dataset(
    dataset: PreparedDataset,
    folder: Path,
    config: LearnConfig,
    name: str | None = None,
    licence: str = "",
    anomalies: Sequence[str] = (),
) -> OrganPack:
    """Add one dataset to the model in `folder`, making the model where there is none.

    `anomalies` names the diseases in the training scans. Organs without a voxel in the training cases are
    left out of the pack. Run again to resume an interrupted run.
    """
    step = begin_step(dataset, folder, config, name or dataset.name)
    facts = on_main(lambda: PackFacts.of(step.source.dataset, step.regressor, licence, anomalies))
    torch.manual_seed(step.settings.seed)
    encoder = step.model.load_encoder() if step.model else config.network.build_encoder()
    decoder = whole_decoder(encoder, step.source.dataset)
    rows = train_decoder(encoder, decoder, step.source, step.settings, step.run, f"learning {step.name}")
    pack = make_pack(step, encoder, Trained(decoder, rows), config, facts)
    on_main(lambda: store_pack(step, folder, encoder, pack))
    return pack


def store_pack(step: StepStart, folder: Path, encoder: GeneralEncoder, pack: OrganPack) -> None:
    """Add the pack to the model, which the first step makes."""
    if step.model:
        step.model.add(pack)
    else:
        files, source = first_step_files(step.regressor), step.source
        Model.create(folder, encoder, source.dataset.config, source.patches.size, pack, files)
    delete_checkpoints(step.run)


def whole_decoder(encoder: GeneralEncoder, dataset: PreparedDataset) -> Decoder:
    """A new decoder as nnU-Net's."""
    return Decoder(encoder.config, DecoderPlan.nnunet(encoder.config), len(dataset.organs))


def delete_checkpoints(run: Path) -> None:
    """Of a run whose pack is stored: it holds all of them."""
    for checkpoint in run.rglob("checkpoint.pt"):
        checkpoint.unlink()


@dataclass(frozen=True, eq=False)
class StepStart:
    """What a step works with, once it is certain that the dataset can be learned."""

    name: str
    """Of the pack."""
    model: Model | None
    """None in the first step, which makes it."""
    source: PatchSource
    settings: TrainConfig
    run: Path
    regressor: BodyPartRegressor | None
    length: float
    """Stages after training are so many times as long."""
    shrink: ShrinkConfig
    """With what the other packs leave of the budget."""


@dataclass(frozen=True, eq=False)
class PackFacts:
    """What a pack holds beside its decoder."""

    licence: str
    anomalies: tuple[str, ...]
    coverage: Mapping[str, float]
    card: dict[str, Any]
    """Body parts and pieces, measured in the training labels."""

    @classmethod
    def of(
        cls,
        dataset: PreparedDataset,
        regressor: BodyPartRegressor | None,
        licence: str = "",
        anomalies: Sequence[str] = (),
    ) -> PackFacts:
        covered = measure_coverage(dataset, regressor)
        card = {"body_parts": covered.card} | pieces_for_card(dataset)
        return cls(licence, tuple(anomalies), covered.coverage, card)


@dataclass(frozen=True, eq=False)
class Trained:
    """A decoder after its first training, with the log."""

    decoder: Decoder
    rows: Rows


def make_pack(
    step: StepStart, encoder: GeneralEncoder, trained: Trained, config: LearnConfig, facts: PackFacts
) -> OrganPack:
    """Run the stages after training; their results are stored as packs in the folder of the run."""
    dataset, config = step.source.dataset, replace(config, shrink=step.shrink)
    frozen = FrozenStep(encoder, step.source, step.settings, step.run, step.name, step.length)
    about = {"licence": facts.licence, "anomalies": facts.anomalies, "coverage": facts.coverage}
    for stage, reached, card in run_stages(frozen, trained.decoder, trained.rows, config):
        fingerprint = encoder_fingerprint(encoder, dataset.config)
        pack = OrganPack.of(
            step.name, dataset.organs, encoder, reached, fingerprint, card=card | facts.card, **about
        )
        if stage != config.stage.stages[-1] and is_main():
            pack.write(step.run / f"{stage}.pack")  # what the next stage starts from, to compare with
    return replace(pack, assessment=on_main(lambda: assess(frozen, reached, config.assess)))


def begin_step(dataset: PreparedDataset, folder: Path, config: LearnConfig, name: str) -> StepStart:
    """Check what a user can have got wrong before the hours of training; the first step learns body parts."""
    model = open_for(dataset.learnable(), folder, name) if folder.exists() else None
    step = checked_step(dataset, folder, config, name, model)
    if model:
        return replace(step, regressor=BodyPartRegressor.of_model(model))
    regressor = on_main(
        lambda: learn_regressor([step.source.dataset], config.body_parts, step.settings, step.run)
    )
    return replace(step, regressor=regressor)


def checked_step(
    dataset: PreparedDataset, folder: Path, config: LearnConfig, name: str, model: Model | None
) -> StepStart:
    """The same without body parts."""
    check_name(name)
    check_splits(dataset)
    settings = config.later if model else config.first
    check_loss(settings, model.network if model else config.network)
    patches = config.patches.of_later_step(model.window) if model else config.patches
    source = PatchSource(dataset.learnable(), patches, config.augment)
    if config.stage.stages != ("train",):
        check_comparable(source.dataset)
    length = 1.0 if model else config.stage.first_step
    shrink = shrink_config(config, model, source)
    return StepStart(name, model, source, settings, run_folder(folder, name), None, length, shrink)


def shrink_config(config: LearnConfig, model: Model | None, source: PatchSource) -> ShrinkConfig:
    """How this step's decoder is made small; the other packs have used a part of the budget."""
    shrink = config.shrink
    if "shrink" not in config.stage.stages or not shrink.budget:
        return shrink
    packs = [model.pack(name) for name in model.pack_names] if model else []
    network, organs = model.network if model else config.network, len(source.dataset.organs)
    left = shrink.budget.left_by(packs, source.patches.size)
    left.check(shrink.smallest_plan(network), network, source.patches.size, organs)
    return replace(shrink, budget=left)


def first_step_files(regressor: BodyPartRegressor | None) -> dict[str, bytes]:
    """What a new model holds besides encoder and packs."""
    return {REGRESSOR_FILE: regressor.to_bytes()} if regressor else {}


def learn_regressor(
    datasets: Sequence[PreparedDataset], config: BodyPartConfig, settings: TrainConfig, run: Path
) -> BodyPartRegressor | None:
    """The regressor of body parts; None where it is not wanted or the scans are too short for it.

    One process learns it, in minutes: its batch norm would need statistics of all of them.
    """
    if not config.learned:
        return None
    here = replace(config, train=replace(config.train, seed=settings.seed, device=settings.device))
    try:
        return learn_body_parts(datasets, here, run / "body_parts")
    except DatasetError as error:
        log.warning("%s The model will not know body parts.", error)
        return None


def run_stages(
    step: FrozenStep, decoder: Decoder, rows: Rows, config: LearnConfig
) -> Iterator[tuple[Stage, Decoder, dict[str, Any]]]:
    """The decoder and its training card after each stage; the first is trained already.

    A stage that was finished before the run was stopped ends at once: its checkpoints hold its result.
    """
    card = training_card(step.source, step.settings, decoder, rows)
    yield "train", decoder, card
    step.encoder.freeze()
    trained, seconds = decoder, {"train": rows[-1]["seconds"]}
    known: dict[str, Any] = {"trained": {"validation_patch_dice": card["validation_patch_dice"]}}
    if "search" in config.stage.stages:
        searched = search_decoder(step, config.search)
        decoder, seconds["search"], known["search"] = searched.decoder, searched.seconds, searched.card
        card = training_card(step.source, step.settings, decoder, searched.rows)
        yield "search", decoder, card | known | {"seconds": rounded(seconds)}
    if "prune" in config.stage.stages:
        searched_from = trained if decoder is not trained else None
        pruned = prune_decoder(step, decoder, config.distil, config.prune, searched_from)
        decoder, seconds["prune"], known["prune"] = pruned.decoder, pruned.seconds, pruned.card
        card = training_card(step.source, step.settings, decoder, pruned.rows or rows)
        yield "prune", decoder, card | known | {"seconds": rounded(seconds)}
    if "shrink" in config.stage.stages:
        small = shrink_decoder(step, decoder, config.shrink)
        seconds["shrink"], known["shrink"] = small.seconds, small.card
        card = training_card(step.source, step.settings, small.decoder, small.rows or rows)
        yield "shrink", small.decoder, card | known | {"seconds": rounded(seconds)}


def rounded(seconds: dict[str, float]) -> dict[str, float]:
    return {name: round(taken, 1) for name, taken in seconds.items()}


def run_folder(model: Path, pack: str) -> Path:
    """Where a step keeps its checkpoint, log and curves: beside the model, which holds nothing but itself."""
    refuse_starter(model)
    return model.with_name(f"{model.name}.runs") / pack


def check_splits(dataset: PreparedDataset) -> None:
    for split in ("train", "validation"):
        if not dataset.case_names(split):
            raise DatasetError(
                f"{dataset.folder}: no case falls into the {split} split. Learning needs three cases at "
                "least: add scans to the raw dataset and prepare it again."
            )


def check_comparable(dataset: PreparedDataset) -> None:
    """Whether decoders can be compared with each other."""
    if not any(dataset.case(name).foreground_rows for name in dataset.case_names("validation")):
        names = ", ".join(organ.name for organ in dataset.organs)
        raise DatasetError(
            f"{dataset.folder}: no scan of the validation split shows {names}, so there is nothing to choose "
            "a smaller decoder by. Add scans to the raw dataset and prepare it again, or keep the whole "
            "decoder: `conseg learn --stages train`."
        )


def check_loss(settings: TrainConfig, network: NetworkConfig) -> None:
    weights, blocks = settings.loss.deep_supervision, len(network.features) - 1
    if weights is not None and len(weights) != blocks:
        raise ConfigError(
            f"deep_supervision has {len(weights)} weights; a decoder of this network has {blocks} outputs. "
            "Give one weight for each, finest first, or leave the setting out."
        )


def open_for(dataset: PreparedDataset, folder: Path, name: str) -> Model:
    """The model, once it is sure that the dataset can be learned on it."""
    model = Model.open(folder)
    if name in model.pack_names:
        raise ModelError(
            f"{folder} has a pack '{name}' already. Nothing learned is overwritten: give another --name, or "
            f"remove it first with `conseg pack remove {name} -m {folder}`."
        )
    check_preparation(dataset, model)
    model.check_organs(name, dataset.organs)
    return model


def training_card(source: PatchSource, settings: TrainConfig, decoder: Decoder, rows: Rows) -> dict[str, Any]:
    """How a pack came to be; nothing in it points to a patient."""
    return {
        "version": __version__,
        "torch": torch.__version__,
        "dataset": source.dataset.name,
        "cases": {split: len(source.dataset.case_names(split)) for split in ("train", "validation", "test")},
        "left_out": [organ.name for organ in source.dataset.left_out],
        "patches": asdict(source.patches),
        "augment": asdict(source.augment),
        "train": settings.settings,
        "validation_patch_dice": round(rows[-1]["validation_dice"], 4),
        "decoder_parameters": parameters_of(decoder),
    }


def parameters_of(decoder: Decoder) -> dict[str, int]:
    """As a card stores them: all, and as the paper counts."""
    return {"true": true_count(decoder), "paper": paper_count(decoder.plan, decoder.network)}
