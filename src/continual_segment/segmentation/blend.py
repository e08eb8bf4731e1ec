"""What one pack says over the slab in progress, whatever the number of its organs.

Windows overlap, and where they do their answers are averaged. The average is taken of logits, as nnU-Net
does. A decoder's last layer is linear, so averaging what goes into it and applying it afterwards gives the
same: kept is whichever has fewer channels, the finest features or the logits. Organs then cost no memory,
and the last layer runs once per voxel instead of once per window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Place = tuple[slice, slice, slice]
"""Of a window (z, y, x)."""
KEPT_AS = torch.float16
"""Half of what the accumulators of whole scans need; sums and last layer are computed in float32."""


@dataclass(frozen=True, eq=False)
class Said:
    """What a pack says about some slices: the mean of its windows."""

    values: Tensor
    """(channel, z, y, x): features or logits."""
    share: Tensor | None
    """(z, y, x): weight of the windows that ran among all; None where all ran."""

    def share_at(self, slices: slice, lines: slice) -> Tensor | None:
        return None if self.share is None else self.share[slices, lines]

    def at(self, z: int) -> tuple[Tensor, Tensor | None]:
        """One slice: (channel, y * x) and (y * x,)."""
        return self.values[:, z].flatten(1), None if self.share is None else self.share[z].flatten()

    def last(self) -> Said:
        """A copy of the last slice."""
        return Said(self.values[:, -1:].clone(), None if self.share is None else self.share[-1:].clone())


class Blend:
    """The weighted sum of windows over a slab."""

    def __init__(self, channels: int, slab_shape: Sequence[int], device: torch.device) -> None:
        self.total = torch.zeros(channels, *slab_shape, dtype=KEPT_AS, device=device)
        self.missing: Tensor | None = None
        """Weight of the windows that did not run; None as long as all did, which is most often."""

    def add(self, values: Tensor, weights: Tensor, place: Place) -> None:
        """Add one window (channel, z, y, x)."""
        for total, value in zip(self.total, values, strict=True):  # by channel: the products stay small
            total[place] += value * weights

    def leave_out(self, weights: Tensor, places: Sequence[Place]) -> None:
        """Note that windows did not run."""
        if places and self.missing is None:
            self.missing = torch.zeros_like(self.total[0], dtype=weights.dtype)
        for place in places:
            self.missing[place] += weights  # type: ignore[index]

    def finish(self, slices: int, weight: Tensor, inner: Place) -> Said:
        """The mean over the first slices, valid until the slab moves up; `weight` is that of all windows."""
        ran, share = weight[:slices], None
        if self.missing is not None and self.missing[:slices].any():
            ran = ran - self.missing[:slices]  # exactly 0 where none ran: both were summed up in one order
            share = (ran / weight[:slices])[inner]
            ran = torch.where(ran > 0, ran, 1.0)
        for total in self.total:
            total[:slices] /= ran
        return Said(self.total[:, :slices][(slice(None), *inner)], share)

    def move_up(self, slices: int) -> None:
        for slab in self.total if self.missing is None else (*self.total, self.missing):
            move_up(slab, slices)


def move_up(slab: Tensor, slices: int) -> None:
    """Drop the first slices of a slab (z, y, x) and open as many empty ones at its end."""
    kept = len(slab) - slices
    slab[:kept] = slab[slices:].clone()
    slab[kept:] = 0
