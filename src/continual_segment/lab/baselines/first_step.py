"""The first step: one training that all methods start from, and how to recognise it in a later model.

Methods can be compared only where all of them start from one training of the first dataset. A later step may
change the encoder, so its pack's card records the fingerprint of the first step's encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from continual_segment.config import ExperimentConfig
from continual_segment.data.prepared import PreparedDataset
from continual_segment.learning import learn_dataset
from continual_segment.learning.step import run_folder
from continual_segment.model import Model, OrganPack
from continual_segment.training.distributed import on_main

FIRST_STEP = "first_step"
"""Entry of a card."""


def learn_first_step(
    name: str,
    dataset: PreparedDataset,
    config: ExperimentConfig,
    model: Path,
    network: Path,
    anomalies: Sequence[str] = (),
) -> None:
    """Learn a dataset as the first pack of `model`; store the network before search and pruning, too."""
    if not model.exists():
        learn_dataset(dataset, model, config, name, anomalies=anomalies)
    on_main(lambda: store_network(name, model, network))


def store_network(name: str, model: Path, network: Path) -> None:
    """The first step's network as it was before search and pruning."""
    opened, trained = Model.open(model), run_folder(model, name) / "train.pack"
    pack = OrganPack.read(trained) if trained.exists() else opened.pack(name)
    Model.create(network, opened.load_encoder(), opened.prepare, opened.window, pack)


def first_step_of(model: Model) -> str:
    """Fingerprint of the first step's encoder; empty where an earlier version did not record it.

    Packs without a method in their card are made by `learn`, which does not change the encoder.
    """
    cards = [model.pack(name).card for name in model.pack_names]
    recorded = {card.get(FIRST_STEP, "") for card in cards if "method" in card}
    if not recorded:
        return model.encoder_fingerprint
    return recorded.pop() if len(recorded) == 1 else ""
