"""Weighted mean of overlapping windows over one slab, for one pack.

Logits of overlapping windows are averaged, as in nnU-Net. The last layer of a decoder is linear, so averaging
its input and applying the layer afterwards gives the same result: whichever has fewer channels is averaged,
the finest features or the logits. Memory does not grow with the number of organs, and the last layer runs
once per voxel instead of once per window. A pack takes no memory while none of its windows ran on the slab.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from continual_segment.segmentation.padded_scan import Box

STORED_AS = torch.float16
"""Half the memory of float32; products and the last layer are computed in float32."""


@dataclass(frozen=True, eq=False)
class AccumulatedSlab:
    """Mean output of one pack over some slices."""

    values: Tensor
    """(channel, z, y, x): features or logits; without meaning where the share is 0."""
    share: Tensor | None
    """(z, y, x): weight of the windows that ran divided by the weight of all windows; None where all ran."""

    def share_at(self, slices: slice, lines: slice) -> Tensor | None:
        return None if self.share is None else self.share[slices, lines]

    def plane(self, z: int) -> tuple[Tensor, Tensor | None]:
        """One slice: (channel, y * x) and (y * x,); float32, which PyTorch indexes faster than float16."""
        values = self.values[:, z].float().flatten(1)
        return values, None if self.share is None else self.share[z].flatten()

    def copy_of_last_slice(self) -> AccumulatedSlab:
        share = None if self.share is None else self.share[-1:].clone()
        return AccumulatedSlab(self.values[:, -1:].clone(), share)


class WindowAccumulator:
    """Weighted sum of the windows of a slab; the slab moves up along the scan.

    The sums exist from the first window that runs until the slab has moved past the last one.
    """

    def __init__(self, channels: int, total_weight: Tensor) -> None:
        """`total_weight` (z, y, x) is that of all windows, run or skipped, and is shared by all packs.

        Its owner adds the windows of a row after the packs have, and moves it up before them.
        """
        self.channels, self.total_weight = channels, total_weight
        self.total: Tensor | None = None
        """(channel, z, y, x); None as long as no window ran."""
        self.skipped_weight: Tensor | None = None
        """(z, y, x): weight of the windows that did not run; None if all ran, the usual case, or none."""
        self._reached = 0
        """Slices of the slab that a window ran on."""

    def add(self, values: Tensor, weights: Tensor, box: Box) -> None:
        """Add one window (channel, z, y, x) at its lines and columns of the slab."""
        if self.total is None:
            self.total = self._allocate()
        self._reached = len(self.total_weight)
        for total, value in zip(self.total, values, strict=True):  # by channel, so that products stay small
            total[:, *box] += value * weights

    def _allocate(self) -> Tensor:
        if self.total_weight.any():  # of earlier rows, on none of which the pack ran
            self.skipped_weight = self.total_weight.clone()
        shape = self.channels, *self.total_weight.shape
        return torch.zeros(shape, dtype=STORED_AS, device=self.total_weight.device)

    def skip(self, weights: Tensor, boxes: Sequence[Box]) -> None:
        """Record windows that did not run."""
        if self.total is None:
            return  # as none of the slab did
        if boxes and self.skipped_weight is None:
            self.skipped_weight = torch.zeros_like(self.total_weight)
        for box in boxes:
            self.skipped_weight[:, *box] += weights  # type: ignore[index]

    def finish(self, slices: int, inside: tuple[slice, slice, slice]) -> AccumulatedSlab:
        """The mean over the first slices, cropped to `inside`; valid until the slab moves up."""
        total_weight, share = self.total_weight[:slices], None
        if self.total is None:
            return self._background(total_weight[inside])
        ran = total_weight
        if self.skipped_weight is not None and self.skipped_weight[:slices].any():
            # exactly 0 where no window ran, because both weights are summed in the same order
            ran = ran - self.skipped_weight[:slices]
            share = (ran / total_weight)[inside]
            ran = torch.where(ran > 0, ran, 1.0)
        for total in self.total:
            total[:slices] /= ran
        return AccumulatedSlab(self.total[:, :slices][(slice(None), *inside)], share)

    def _background(self, like: Tensor) -> AccumulatedSlab:
        """Of a pack that did not run: views of one zero, which take no memory."""
        values = torch.zeros((), dtype=STORED_AS, device=like.device)
        return AccumulatedSlab(values.expand(self.channels, *like.shape), like.new_zeros(()).expand_as(like))

    def move_up(self, slices: int) -> None:
        self._reached -= slices
        if self._reached <= 0:
            self.total = self.skipped_weight = None
        elif self.total is not None:
            for slab in self.total if self.skipped_weight is None else (*self.total, self.skipped_weight):
                move_up(slab, slices)


def move_up(slab: Tensor, slices: int) -> None:
    """Drop the first slices of a slab (z, y, x) and append as many slices of zeros."""
    kept = len(slab) - slices
    slab[:kept] = slab[slices:].clone()
    slab[kept:] = 0
