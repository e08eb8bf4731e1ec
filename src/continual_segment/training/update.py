"""Update: one step of an optimiser on one batch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from continual_segment.training import distributed
from continual_segment.training.muon import Muon
from continual_segment.training.train_config import TrainConfig


class Update:
    """One optimiser step on one batch; `module` returns the loss of images and labels."""

    def __init__(self, module: nn.Module, config: TrainConfig) -> None:
        self.module, self.config = module, config
        self.parallel = distributed.parallel(module)
        self.optimiser = make_optimiser(module, config)
        self.device = torch.device(config.device)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.precision == "float16")

    def __call__(self, images: Tensor, labels: Tensor, iteration: int) -> float:
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.learning_rate_at(iteration)
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.loss(self.parallel, images, labels)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimiser)
        nn.utils.clip_grad_norm_(self.module.parameters(), self.config.gradient_norm)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        return float(loss.detach())

    def loss(self, module: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        """Of one batch, in the precision of the config.

        `module` is `self.parallel` where all gradients are computed next; any other use of the loss has
        `self.module`, since DistributedDataParallel expects a backward pass after each forward pass.
        """
        with forward_precision(self.config):
            return module(
                images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
            )

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on."""
        return {
            "module": self.module.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["module"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.scaler.load_state_dict(state["scaler"])


def make_optimiser(module: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """An optimiser of the parameters that may change, and of no others."""
    if config.optimiser == "muon":
        return Muon(module, config.learning_rate, config.weight_decay)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if config.optimiser == "sgd":
        return torch.optim.SGD(
            parameters, config.learning_rate, momentum=0.99, nesterov=True, weight_decay=config.weight_decay
        )
    return torch.optim.AdamW(parameters, config.learning_rate, weight_decay=config.weight_decay)


def forward_precision(config: TrainConfig) -> torch.autocast | nullcontext[None]:
    """The context in which networks run."""
    if config.precision == "float32":
        return nullcontext()
    return torch.autocast(torch.device(config.device).type, getattr(torch, config.precision))
