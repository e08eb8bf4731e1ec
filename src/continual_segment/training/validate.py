"""Dice on a fixed set of validation patches: the number that a run reports as it trains."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.data import Dataset


class Overlaps:
    """Voxels per organ, found, true and both, summed over patches."""

    def __init__(self, organs: int) -> None:
        self.overlap, self.predicted, self.true = torch.zeros(3, organs + 1, dtype=torch.float64)

    def add(self, winner: Tensor, labels: Tensor) -> None:
        """Count one batch: the organ named at each voxel and the true one."""
        classes = len(self.true)
        self.overlap += torch.bincount(labels[winner == labels], minlength=classes)
        self.predicted += torch.bincount(winner.flatten(), minlength=classes)
        self.true += torch.bincount(labels.flatten(), minlength=classes)

    @property
    def dice(self) -> float:
        """Mean over the organs that occur; nan where none does."""
        present = self.true[1:] > 0
        return float(self.dice_per_organ[present].mean()) if present.any() else float("nan")

    @property
    def dice_per_organ(self) -> Tensor:
        """(organ,): 0 where an organ neither is nor was found."""
        return (2 * self.overlap / (self.predicted + self.true).clamp_min(1))[1:]


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
    overlaps = Overlaps(organs)
    for number in range(count):
        images, labels = batches[number]
        overlaps.add(segment(images.to(device)).argmax(dim=1).cpu(), labels)
    return overlaps.dice
