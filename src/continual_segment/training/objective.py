"""Objective: what a run trains and its loss, as one module."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

LossOfBatch = Callable[[Tensor, Tensor], Tensor]


class Objective(nn.Module):
    """The loss of a batch as the forward pass of a module that owns the trained networks.

    The training loop calls nothing but this forward pass. So a wrapper such as DistributedDataParallel, whose
    hooks depend on that, can take its place. Networks that `loss_of` only reads, such as a frozen encoder or
    a teacher, are not registered: no optimiser and no checkpoint sees them.
    """

    def __init__(self, loss_of: LossOfBatch, **trained: nn.Module) -> None:
        super().__init__()
        self.trained = nn.ModuleDict(trained)
        self._loss_of = loss_of

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return self._loss_of(images, labels)
