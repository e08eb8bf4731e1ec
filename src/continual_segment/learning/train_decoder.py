"""Train one decoder on one dataset, and the encoder with it in the first step.

A frozen encoder is not in the optimiser, runs under no_grad and keeps its norm layers as they are; the
decoder is all that can change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from continual_segment.data.augment import AugmentConfig
from continual_segment.data.patches import NumberedBatches, PatchConfig, Patches
from continual_segment.data.prepared import PreparedDataset
from continual_segment.model.fingerprint import fingerprint_data, fingerprint_tensors
from continual_segment.networks import Decoder, GeneralEncoder
from continual_segment.training import Objective, TrainConfig, TrainingRun, train
from continual_segment.training.train import Rows
from continual_segment.training.validate import patch_dice


@dataclass(frozen=True)
class PatchSource:
    """The training and validation patches of a dataset."""

    dataset: PreparedDataset
    patches: PatchConfig
    augment: AugmentConfig

    def training(self, config: TrainConfig) -> NumberedBatches:
        return Patches(self.dataset, "train", self.patches, self.augment, config.seed, config.iterations)

    def validation(self, config: TrainConfig) -> NumberedBatches:
        return Patches(self.dataset, "validation", self.patches, None, config.seed, config.validation_batches)


def train_decoder(
    encoder: GeneralEncoder,
    decoder: Decoder,
    source: PatchSource,
    config: TrainConfig,
    run: Path,
    title: str,
    **start: str,
) -> Rows:
    """Train the decoder, and the encoder unless it is frozen; return the rows of the log.

    `start` identifies the decoder's weights, if they do not follow from the seed.
    """
    objective = supervised_objective(encoder, decoder, config).to(config.device)
    frozen = encoder.to(config.device) if is_frozen(encoder) else None
    return train(
        TrainingRun(
            objective,
            source.training(config),
            config,
            run,
            signature=run_signature(frozen, decoder, source, config, **start),
            title=title,
            validate=validation_dice(encoder, decoder, source, config),
        )
    )


def validation_dice(
    encoder: GeneralEncoder, decoder: Decoder, source: PatchSource, config: TrainConfig
) -> Callable[[], float] | None:
    """What measures Dice on validation patches; None where there are none."""
    if not config.validation_batches:
        return None
    return partial(
        patch_dice,
        lambda images: decoder(encoder(images)),
        source.validation(config),
        config.validation_batches,
        decoder.organs,
        config.device,
    )


def supervised_objective(encoder: GeneralEncoder, decoder: Decoder, config: TrainConfig) -> Objective:
    """The loss of all outputs of a decoder; a frozen encoder is read and not trained."""
    frozen, loss = is_frozen(encoder), config.loss.build()
    encode = torch.compile(encoder) if config.compile else encoder
    decode = torch.compile(decoder.forward_supervised) if config.compile else decoder.forward_supervised

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        with torch.set_grad_enabled(not frozen):
            features = encode(images)
        return loss(decode(features), labels)

    trained: dict[str, nn.Module] = {} if frozen else {"encoder": encoder}
    trained["decoder"] = decoder
    return Objective(loss_of, **trained)


def is_frozen(encoder: GeneralEncoder) -> bool:
    return not any(parameter.requires_grad for parameter in encoder.parameters())


def run_signature(
    frozen_encoder: GeneralEncoder | None,
    decoder: Decoder,
    source: PatchSource,
    config: TrainConfig,
    **start: str,
) -> str:
    """Changes with anything that would change the weights a run ends with."""
    known = {"network": decoder.network.described(), "plan": decoder.plan.kernels}
    return signature_of(frozen_encoder, source, config, **known, **start)


def signature_of(
    frozen_encoder: GeneralEncoder | None, source: PatchSource, config: TrainConfig, **known: Any
) -> str:
    """The part that is the same for every kind of run, with what is known about this one."""
    return fingerprint_data(
        {
            "encoder": fingerprint_tensors(frozen_encoder.state_dict()) if frozen_encoder else "learned here",
            "patches": asdict(source.patches),
            "augment": asdict(source.augment),
            "train": config.settings,
            "data": source.dataset.fingerprint,
        }
        | known
    )


@dataclass(frozen=True, eq=False)
class FrozenStep:
    """A learning step whose encoder changes no more: what searching and pruning a decoder work with."""

    encoder: GeneralEncoder
    source: PatchSource
    settings: TrainConfig
    """Of the step's first training; the lengths of all that follows are shares of it."""
    run: Path
    name: str
    """Of the pack, for titles of progress bars."""
    length: float = 1.0
    """All lengths are multiplied by this."""

    @property
    def organs(self) -> int:
        return len(self.source.dataset.organs)

    def schedule(self, share: float, rate: float = 1.0, seed: int = 0) -> TrainConfig:
        """The first training's settings, shorter or longer, slower, and with other patches."""
        iterations = max(1, round(self.settings.iterations * share * self.length))
        return replace(
            self.settings,
            iterations=iterations,
            report_every=min(self.settings.report_every, iterations),
            learning_rate=self.settings.learning_rate * rate,
            seed=self.settings.seed + seed,
        )

    @torch.no_grad()
    def features(self, images: Tensor) -> list[Tensor]:
        return self.encoder(images)

    def signature(self, config: TrainConfig, **known: Any) -> str:
        return signature_of(self.encoder, self.source, config, **known)

    def train_decoder(self, decoder: Decoder, config: TrainConfig, part: str, **start: str) -> Rows:
        """Train a whole decoder in the folder of one part of the step."""
        title = f"{part.replace('_', ' ')} {self.name}"
        run = self.run / part
        return train_decoder(self.encoder, decoder, self.source, config, run, title, **start)


@dataclass(frozen=True, eq=False)
class StageResult:
    """What a stage after training ends with."""

    decoder: Decoder
    rows: Rows
    """The log of its training; empty where the decoder that the stage started from stays."""
    card: dict[str, Any]
    """For the pack: settings, candidates, the choice."""
    seconds: float
