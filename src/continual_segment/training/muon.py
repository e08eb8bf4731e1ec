"""Muon: momentum whose every direction is taken equally far.

The gradient of a convolution is dominated by few directions; plain momentum and Adam follow those and learn
the rest late. Muon turns the momentum matrix (outputs x inputs times kernel) into the nearest matrix with
equal singular values before it takes the step. With few updates to spend, that learns several times more
from each (results/laptop/README.md). Norms, biases, up-sampling and output heads are not such matrices: they
stay with AdamW.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from continual_segment.networks.blocks import ConvBlock, ReducedConv
from continual_segment.networks.slice_scorer import SliceScorer

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of a quintic that drives singular values towards 1 within five rounds."""
RMS = 0.2
"""Of an update, before the learning rate: that of Adam's, so that one rate suits both."""


class Muon(torch.optim.AdamW):
    """Muon for a module's hidden convolutions, AdamW for its other parameters."""

    def __init__(
        self, module: nn.Module, lr: float, weight_decay: float = 0.0, momentum: float = 0.95
    ) -> None:
        hidden = hidden_convolutions(module)
        known = {id(weight) for weight in hidden}
        others = [p for p in module.parameters() if p.requires_grad and id(p) not in known]
        groups: list[dict[str, Any]] = [
            {"params": others, "momentum": None},
            {"params": hidden, "momentum": momentum},
        ]
        super().__init__([group for group in groups if group["params"]], lr, weight_decay=weight_decay)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            if group["momentum"] is None:
                continue
            for weight in group["params"]:
                if weight.grad is not None:
                    self._step(weight, weight.grad, group)
                    weight.grad = None  # used up: AdamW passes over it
        super().step()

    def _step(self, weight: Tensor, gradient: Tensor, group: dict[str, float]) -> None:
        state = self.state[weight]
        if not state:
            # AdamW expects a step in every state it loads
            state.update(step=torch.zeros(()), momentum=torch.zeros_like(weight))
        momentum = state["momentum"]
        momentum.lerp_(gradient, 1 - group["momentum"])
        ahead = gradient.lerp(momentum, group["momentum"])  # Nesterov's look ahead
        update = orthogonalise(ahead.flatten(1))
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.add_(update.view_as(weight), alpha=-group["lr"] * RMS * max(update.shape) ** 0.5)


def orthogonalise(matrix: Tensor, rounds: int = 5) -> Tensor:
    """Nearly the matrix of the same singular vectors with every singular value 1."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp_min(1e-7)
    linear, cubic, quintic = NEWTON_SCHULZ
    for _ in range(rounds):
        gram = x @ x.T
        x = linear * x + (cubic * gram + quintic * gram @ gram) @ x
    return x.T if tall else x


def hidden_convolutions(module: nn.Module) -> list[Tensor]:
    """Weights that change between two sets of features: no image enters and no class leaves there."""
    blocks = [block.conv for block in module.modules() if isinstance(block, ConvBlock)]
    reduced = [conv for block in module.modules() if isinstance(block, ReducedConv) for conv in block.kernels]
    scorer = [conv for net in module.modules() if isinstance(net, SliceScorer) for conv in net.hidden]
    return [
        conv.weight
        for conv in (*blocks, *reduced, *scorer)
        if conv.in_channels > 1 and conv.weight.requires_grad
    ]
