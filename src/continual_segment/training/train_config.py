"""TrainConfig: how long, how fast, where and by which loss one network learns."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal, get_args

import torch

from continual_segment.training.distributed import world_size
from continual_segment.training.loss import LossConfig

Optimiser = Literal["sgd", "adamw", "muon"]
Precision = Literal["float32", "bfloat16", "float16"]
DECAY_POWER = 0.9  # nnU-Net's


@dataclass(frozen=True)
class TrainConfig:
    """How long, how fast, where and by which loss one network learns."""

    iterations: int
    """Updates in all."""
    report_every: int = 250
    """Iterations between two reports, validations and checkpoints: nnU-Net's epoch."""
    optimiser: Optimiser = "sgd"
    """sgd: Nesterov momentum 0.99, as in the paper; adamw and still more muon learn faster in few updates."""
    learning_rate: float = 0.01
    """At the first iteration; it falls as (1 - share done) ** 0.9."""
    weight_decay: float = 3e-5
    """Of all weights; as in nnU-Net."""
    loss: LossConfig = field(default_factory=LossConfig)
    """What is minimised."""
    gradient_norm: float = 12.0
    """Gradients longer than this are shortened to it."""
    validation_batches: int = 8
    """Batches of the validation split behind each Dice in the log; 0 leaves validation out."""
    seed: int = 0
    """Initial weights and every patch follow from it."""
    device: str = "cpu"
    """cpu, cuda, cuda:1, mps, ..."""
    precision: Precision = "float32"
    """Of the forward pass; weights stay float32."""
    compile: bool = False
    """Run the networks through torch.compile."""
    workers: int = 0
    """Processes that cut and augment patches; 0 does it in the loop."""

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.report_every < 1:
            raise ValueError("iterations and report_every are at least 1.")
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate is above 0, not {self.learning_rate}.")
        if min(self.seed, self.workers, self.validation_batches) < 0:
            raise ValueError("seed, workers and validation_batches are at least 0.")
        for name, kind in (("optimiser", Optimiser), ("precision", Precision)):
            if (value := getattr(self, name)) not in get_args(kind):
                raise ValueError(f"{name} is one of {', '.join(get_args(kind))}, not {value!r}.")

    def learning_rate_at(self, iteration: int) -> float:
        """Of an iteration, counted from 0: nnU-Net's polynomial decay."""
        remaining = 1 - iteration / self.iterations
        return self.learning_rate * remaining**DECAY_POWER

    @property
    def settings(self) -> dict[str, object]:
        """What decides the weights; the signature of a run and the training card keep it."""
        known = {item.name: getattr(self, item.name) for item in fields(self)}
        if world_size() > 1:  # each has a batch of its own
            known["processes"] = world_size()
        return known | {
            "loss": self.loss.described(),
            "device": torch.device(self.device).type,
            "workers": None,
        }
