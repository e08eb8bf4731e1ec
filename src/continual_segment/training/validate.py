"""Dice on a fixed set of validation patches: the number a run shows while it goes on."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.data import Dataset


@torch.no_grad()
def patch_dice(
    segment: Callable[[Tensor], Tensor],
    batches: Dataset[tuple[Tensor, Tensor]],
    count: int,
    organs: int,
    device: str,
) -> float:
    """Mean over organs of the Dice of all patches taken together; organs that never occur are left out.

    `segment` gives logits (batch, class, z, y, x).
    """
    overlap, predicted, true = torch.zeros(3, organs + 1, dtype=torch.float64)
    for number in range(count):
        images, labels = batches[number]
        winner = segment(images.to(device)).argmax(dim=1).cpu()
        overlap += torch.bincount(labels[winner == labels], minlength=organs + 1)
        predicted += torch.bincount(winner.flatten(), minlength=organs + 1)
        true += torch.bincount(labels.flatten(), minlength=organs + 1)
    present = true[1:] > 0
    dice = 2 * overlap / (predicted + true).clamp_min(1)
    return float(dice[1:][present].mean()) if present.any() else float("nan")
