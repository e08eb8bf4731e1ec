"""A memory of one feature vector per organ, and losses that keep an organ's features close to it.

The skeleton is SDR's (Michieli and Zanuttigh, CVPR 2021): features between encoder and decoder, averaged over
the voxels of an organ. A voxel there corresponds to a block of the patch; its weight is the organ's share of
the block, so that organs smaller than a block are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

MemoryKind = Literal["moving", "cumulative"]


@dataclass(frozen=True, eq=False)
class ClassMeans:
    """Mean features of the classes in some patches."""

    channels: Tensor
    """The classes (class)."""
    vectors: Tensor
    """Their means (class, feature)."""
    weights: Tensor
    """Voxels behind each (class)."""

    def of(self, channels: Sequence[int]) -> ClassMeans:
        """Those among these classes."""
        chosen = torch.isin(self.channels, torch.tensor(channels, device=self.channels.device))
        return ClassMeans(self.channels[chosen], self.vectors[chosen], self.weights[chosen])


def class_means(features: Tensor, targets: Tensor) -> ClassMeans:
    """Of all classes in the targets (batch, z, y, x) but background."""
    channels = targets.unique()
    channels = channels[channels > 0]
    if not len(channels):  # pooling refuses what has no channels
        return ClassMeans(channels, features.new_zeros(0, features.shape[1]), features.new_zeros(0))
    members = (targets[:, None] == channels[:, None, None, None]).to(features.dtype)
    z, y, x = features.shape[2:]
    shares = functional.adaptive_avg_pool3d(members, (z, y, x))
    weights = shares.sum((0, 2, 3, 4))
    sums = torch.einsum("bkzyx,bfzyx->kf", shares, features)
    return ClassMeans(channels, sums / weights[:, None], weights)


class PrototypeMemory(nn.Module):
    """The vectors, in buffers: part of every checkpoint, not trained."""

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
        """A memory with further classes, initialised with the old one."""
        memory = cls(channels, width, kind, momentum)
        if old:
            known = len(old["seen"])
            memory.vectors[:known] = old["vectors"]
            memory.seen[:known] = old["seen"]
        return memory

    @property
    def stored(self) -> list[int]:
        """Classes with a vector."""
        return self.seen.nonzero()[:, 0].tolist()

    @torch.no_grad()
    def update(self, means: ClassMeans, allowed: Sequence[int]) -> None:
        """Update the classes that are labelled now; all others stay unchanged."""
        means = means.of(allowed)
        before = self.seen[means.channels]
        moving = self.momentum * (before > 0)  # the first mean is taken as it is
        share = before / (before + means.weights) if self.kind == "cumulative" else moving
        kept = share[:, None] * self.vectors[means.channels]
        self.vectors[means.channels] = kept + (1 - share[:, None]) * means.vectors
        self.seen[means.channels] = before + means.weights

    def attraction(self, means: ClassMeans, channels: Sequence[int]) -> Tensor:
        """Mean over these classes, as far as both sides know them, of 1 - cosine of mean and memory."""
        means = means.of([channel for channel in channels if self.seen[channel] > 0])
        apart = 1 - cosines(means.vectors, self.vectors[means.channels]).diagonal()
        return apart.sum() / max(1, len(apart))

    def repulsion(self, means: ClassMeans) -> Tensor:
        """Mean over present classes and other stored ones of their cosine, where it is above 0."""
        stored = torch.tensor(self.stored, dtype=torch.int64, device=self.seen.device)
        others = means.channels[:, None] != stored
        alike = cosines(means.vectors, self.vectors[stored]).clamp_min(0)
        return (alike * others).sum() / others.sum().clamp_min(1)


def cosines(vectors: Tensor, remembered: Tensor) -> Tensor:
    """Of each vector and each stored one, which gets no gradient."""
    remembered = remembered.detach()
    lengths = vectors.norm(dim=1)[:, None] * remembered.norm(dim=1)
    return (vectors @ remembered.T) / (lengths + 1e-8)
