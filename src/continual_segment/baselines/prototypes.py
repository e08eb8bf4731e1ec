"""A memory of one feature vector per organ, and losses that hold an organ's features to it.

The skeleton is SDR's (Michieli and Zanuttigh, CVPR 2021): features between encoder and decoder, averaged over
the voxels of an organ. A voxel there stands for a block of the patch; how much of the block is the organ is
its weight, so that organs smaller than a block do not vanish.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

MemoryKind = Literal["moving", "cumulative"]


def class_means(features: Tensor, targets: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
    """Per class in the targets (batch, z, y, x) but background: its mean feature and the weight behind."""
    z, y, x = features.shape[2:]
    found = {}
    for channel in targets.unique().tolist():
        if channel > 0:
            share = functional.adaptive_avg_pool3d(
                (targets == channel)[:, None].to(features.dtype), (z, y, x)
            )
            weight = share.sum()
            found[channel] = ((features * share).sum((0, 2, 3, 4)) / weight, weight.detach())
    return found


class PrototypeMemory(nn.Module):
    """The vectors, in buffers: part of every checkpoint, out of reach of the optimiser."""

    vectors: Tensor
    seen: Tensor

    def __init__(self, channels: int, width: int, kind: MemoryKind = "moving", momentum: float = 0.9) -> None:
        super().__init__()
        self.kind, self.momentum = kind, momentum
        self.register_buffer("vectors", torch.zeros(channels, width))
        self.register_buffer("seen", torch.zeros(channels))

    @classmethod
    def grown(
        cls, old: Mapping[str, Tensor], channels: int, width: int, kind: MemoryKind, momentum: float
    ) -> PrototypeMemory:
        """A memory with room for new classes that begins with what was remembered."""
        memory = cls(channels, width, kind, momentum)
        if old:
            known = len(old["seen"])
            memory.vectors[:known] = old["vectors"]
            memory.seen[:known] = old["seen"]
        return memory

    @property
    def stored(self) -> list[int]:
        """Classes that were ever seen."""
        return self.seen.nonzero()[:, 0].tolist()

    @torch.no_grad()
    def update(self, means: Mapping[int, tuple[Tensor, Tensor]], allowed: Iterable[int]) -> None:
        """Take in the means of classes that are labelled now; all others stay as they are."""
        for channel in allowed:
            if channel not in means:
                continue
            mean, weight = means[channel]
            before = self.seen[channel]
            moving = self.momentum * (before > 0)  # the first mean is taken as it is
            share = before / (before + weight) if self.kind == "cumulative" else moving
            self.vectors[channel] = share * self.vectors[channel] + (1 - share) * mean
            self.seen[channel] = before + weight

    def attraction(self, means: Mapping[int, tuple[Tensor, Tensor]], channels: Iterable[int]) -> Tensor:
        """Mean over these classes, as far as both sides know them, of 1 - cosine of mean and memory."""
        known = set(self.stored)
        terms = [1 - cosine(means[c][0], self.vectors[c]) for c in channels if c in means and c in known]
        return torch.stack(terms).mean() if terms else self.vectors.new_zeros(())

    def repulsion(self, means: Mapping[int, tuple[Tensor, Tensor]]) -> Tensor:
        """Mean over present classes and other stored ones of their cosine, where it is above 0."""
        terms = [
            cosine(mean, self.vectors[other]).clamp_min(0)
            for channel, (mean, _) in means.items()
            for other in self.stored
            if other != channel
        ]
        return torch.stack(terms).mean() if terms else self.vectors.new_zeros(())


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b.detach()) / (a.norm() * b.norm() + 1e-8)
