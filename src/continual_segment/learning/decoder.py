"""Train one decoder on one dataset, and the encoder with it in the first step.

A frozen encoder is not in the optimiser, runs under no_grad and keeps its norm layers as they are; the
decoder is all that can change.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from continual_segment.data.augment import AugmentConfig
from continual_segment.data.patches import PatchConfig, Patches
from continual_segment.data.prepared import PreparedDataset
from continual_segment.model.fingerprint import fingerprint_data, fingerprint_tensors
from continual_segment.networks import Decoder, GeneralEncoder
from continual_segment.training import TrainConfig, supervised_loss, train
from continual_segment.training.validate import patch_dice


@dataclass(frozen=True)
class PatchSource:
    """The training and validation patches of a dataset."""

    dataset: PreparedDataset
    patches: PatchConfig
    augment: AugmentConfig

    def training(self, config: TrainConfig) -> Patches:
        return Patches(self.dataset, "train", self.patches, self.augment, config.seed, config.iterations)

    def validation(self, config: TrainConfig) -> Patches:
        return Patches(self.dataset, "validation", self.patches, None, config.seed, config.validation_batches)


def train_decoder(
    encoder: GeneralEncoder, decoder: Decoder, source: PatchSource, config: TrainConfig, run: Path, title: str
) -> list[dict[str, float]]:
    """Train the decoder, and the encoder unless it is frozen; return the rows of the log."""
    frozen = not any(parameter.requires_grad for parameter in encoder.parameters())
    encoder.to(config.device)
    decoder.to(config.device)
    encode = torch.compile(encoder) if config.compile else encoder
    decode = torch.compile(decoder.forward_supervised) if config.compile else decoder.forward_supervised

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        with torch.set_grad_enabled(not frozen):
            features = encode(images)
        return supervised_loss(decode(features), labels, config.dice_over)

    def validate() -> float:
        return patch_dice(
            lambda images: decoder(encoder(images)),
            source.validation(config),
            config.validation_batches,
            decoder.organs,
            config.device,
        )

    return train(
        decoder if frozen else nn.ModuleDict({"encoder": encoder, "decoder": decoder}),
        loss_of,
        source.training(config),
        config,
        run,
        signature=run_signature(encoder if frozen else None, decoder, source, config),
        validate=validate if config.validation_batches else None,
        title=title,
    )


def run_signature(
    frozen_encoder: GeneralEncoder | None, decoder: Decoder, source: PatchSource, config: TrainConfig
) -> str:
    """Changes with anything that would change the weights a run ends with."""
    return fingerprint_data(
        {
            "encoder": fingerprint_tensors(frozen_encoder.state_dict()) if frozen_encoder else "learned here",
            "network": asdict(decoder.network),
            "plan": decoder.plan.kernels,
            "patches": asdict(source.patches),
            "augment": asdict(source.augment),
            "train": config.settings,
            "data": source.dataset.fingerprint,
        }
    )
