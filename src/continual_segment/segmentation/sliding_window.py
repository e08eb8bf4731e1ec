"""Sliding-window inference over a scan, slab by slab.

Windows that start at the same slice form a row. After each row, the slices that no later row reaches are
finished: they are yielded as a Slab, and the accumulators move up. So outputs of the networks exist for the
height of one window, whatever the length of the scan.

A pack does not run on a row if it covers the body part of none of its slices; no slice that it covers is in
such a row, so results there do not change. No pack runs on windows of air beside the body. Where a pack does
not run, it predicts background.

Packs that were trained on mirrored patches may see every window mirrored as well; the mean of these passes
counts as the output of the window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

import numpy as np
import torch
from torch import Tensor

from continual_segment.malloc import give_back_freed_memory
from continual_segment.segmentation.anomaly_decoder import AnomalyDecoder
from continual_segment.segmentation.backends import precision
from continual_segment.segmentation.context import ScanContext
from continual_segment.segmentation.pack_decoder import PackDecoder, window_dims
from continual_segment.segmentation.padded_scan import Box, PaddedScan
from continual_segment.segmentation.segment_config import SegmentConfig
from continual_segment.segmentation.slab import Slab
from continual_segment.segmentation.window_accumulator import AccumulatedSlab, move_up
from continual_segment.segmentation.windows import OWN_TILING, Tiling

LARGE_WINDOW = 2**18
"""Voxels from which on windows pass the networks one by one: a batch saves no time, but needs memory."""


class SlidingWindow:
    """One encoder and many decoders on all windows of one scan."""

    def __init__(
        self,
        scan: PaddedScan,
        encode: Callable[[Tensor], Sequence[Tensor]],
        packs: Sequence[PackDecoder],
        heads: Sequence[AnomalyDecoder] = (),
        context: ScanContext | None = None,
        config: SegmentConfig | None = None,
        tiling: Tiling = OWN_TILING,
    ) -> None:
        """`heads` fill the anomaly map of the context unless it has one; they run where any pack does."""
        self.scan, self.encode, self.packs, self.config = scan, encode, packs, config or SegmentConfig()
        self.device = packs[0].organ_ids.device
        self.tiling = tiling
        self.starts, self.boxes = window_positions(scan.shape, scan.window, self.config.overlap, tiling)
        self.weights = torch.from_numpy(tiling.weights(scan.window)).to(self.device)
        self.batch_size = 1 if prod(scan.window) >= LARGE_WINDOW else self.config.windows_at_once
        self.context = (context or ScanContext()).to(self.device)
        self.heads = () if self.context.anomaly is not None else tuple(heads)
        if self.heads:  # filled slab by slab, before a slab is merged
            self.context = self.context.with_empty_anomaly(scan.scan_shape, self.device)

    @property
    def decoders(self) -> tuple[PackDecoder, ...]:
        return *self.packs, *self.heads

    @torch.no_grad()
    def slabs(self, advance: Callable[[int], object] = lambda windows: None) -> Iterator[Slab]:
        """Finished slices, from the first to the last; `advance` is called with numbers of windows done."""
        slab_shape = (self.scan.window[0], *self.scan.shape[1:])
        total_weight = torch.zeros(slab_shape, dtype=self.weights.dtype, device=self.device)
        give_back_freed_memory()  # of reading, before the accumulators are allocated
        for decoder in self.decoders:
            decoder.begin(total_weight)
        for start, following in zip(self.starts, [*self.starts[1:], self.scan.shape[0]], strict=True):
            self._run_row(slice(start, start + self.scan.window[0]), advance)
            for box in self.boxes:
                total_weight[:, *box] += self.weights
            yield self._finish(slice(start, following))
            give_back_freed_memory()  # of merging, whose blocks have other sizes than those of a row
            move_up(total_weight, following - start)
            for decoder in self.decoders:
                decoder.accumulator.move_up(following - start)
        for decoder in self.decoders:
            decoder.end()

    def _run_row(self, slices: slice, advance: Callable[[int], object]) -> None:
        """Run all windows of these padded slices: the encoder once, and every decoder that covers them."""
        body_part = self.context.at(self.scan.unpadded(slices)).body_part
        running = [pack for pack in self.packs if pack.covers(body_part, self.config.skip_below)]
        running += self.heads if running else ()
        air = self._are_skipped(slices, bool(running))
        skipped = [box for box, is_air in zip(self.boxes, air, strict=True) if is_air]
        inside = [box for box, is_air in zip(self.boxes, air, strict=True) if not is_air]
        advance(len(skipped))
        self._run_windows(slices, inside, running, advance)
        for decoder in self.decoders:
            decoder.accumulator.skip(self.weights, skipped if decoder in running else self.boxes)

    def _are_skipped(self, slices: slice, any_pack_runs: bool) -> list[bool]:
        """Which windows of a row no pack runs on."""
        if any_pack_runs and self.tiling.skips_air:
            return self.scan.are_air(slices, self.boxes)
        return [not any_pack_runs] * len(self.boxes)

    def _run_windows(
        self,
        slices: slice,
        boxes: Sequence[Box],
        decoders: Sequence[PackDecoder],
        advance: Callable[[int], object],
    ) -> None:
        """Run windows in batches; the encoder's features of a batch are shared by all decoders."""
        if not boxes:
            return
        voxels = self.scan[slices]  # (z, y, x)
        for first in range(0, len(boxes), self.batch_size):
            batch = boxes[first : first + self.batch_size]
            windows = torch.from_numpy(np.stack([voxels[:, *box] for box in batch]))[:, None].to(self.device)
            with precision(self.device):
                for axes in mirrorings(decoders):
                    features = self.encode(windows.flip(window_dims(axes)))  # the only pass of these windows
                    for decoder in decoders:
                        decoder.add_batch(features, self.weights, batch, axes)
            advance(len(batch))

    def _finish(self, slices: slice) -> Slab:
        """The padded slices that are finished, without padding."""
        own, (depth, *across) = self.scan.unpadded(slices), self.scan.inside
        first = depth.start - slices.start
        inside = slice(first + own.start, first + own.stop), across[0], across[1]
        finished = slices.stop - slices.start
        outputs = [pack.accumulator.finish(finished, inside) for pack in self.packs]
        for head in self.heads:
            self._mark_disease(own, head, head.accumulator.finish(finished, inside))
        return Slab(own, self.packs, outputs, self.context, self.scan.box)

    def _mark_disease(self, slices: slice, head: AnomalyDecoder, output: AccumulatedSlab) -> None:
        """Write the head's probability of disease to the anomaly map; the largest of all heads remains."""
        assert self.context.anomaly is not None
        for z in range(slices.stop - slices.start):
            one = slice(z, z + 1)
            disease = head.disease(output.values[:, one], output.share_at(one, slice(None)))
            there = self.context.anomaly[slices.start + z]
            torch.maximum(there, disease[0].to(there.dtype), out=there)


def mirrorings(decoders: Sequence[PackDecoder]) -> list[tuple[int, ...]]:
    """The axes to mirror in each pass of a window, for all decoders; the first pass mirrors none."""
    return sorted(
        {axes for decoder in decoders for axes in decoder.mirrorings}, key=lambda axes: (len(axes), axes)
    )


def window_positions(
    shape: Sequence[int], window: Sequence[int], overlap: float, tiling: Tiling = OWN_TILING
) -> tuple[list[int], list[Box]]:
    """First slices of the rows, and the lines and columns of the windows of every row."""
    rows, *across = (tiling.starts(n, size, overlap) for n, size in zip(shape, window, strict=True))
    return rows, [(slice(y, y + window[1]), slice(x, x + window[2])) for y in across[0] for x in across[1]]


def count_windows(
    shape: Sequence[int], window: Sequence[int], overlap: float, tiling: Tiling = OWN_TILING
) -> int:
    """Number of windows that cover a scan."""
    rows, boxes = window_positions(shape, window, overlap, tiling)
    return len(rows) * len(boxes)
