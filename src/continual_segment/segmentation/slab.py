"""Finished slices of a prepared scan: the mean outputs of all packs, and how they are merged.

Probabilities of all organs exist for a few lines of a slice at a time, so memory grows neither with the
number of organs nor with the length of the scan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from continual_segment.segmentation.context import ScanContext
from continual_segment.segmentation.merge import MergeRule
from continual_segment.segmentation.nearby_packs import NearbyPacks, groups
from continual_segment.segmentation.pack_decoder import PackDecoder
from continual_segment.segmentation.padded_scan import WHOLE, Box
from continual_segment.segmentation.predictions import Decision, PackPrediction
from continual_segment.segmentation.window_accumulator import AccumulatedSlab

PROBABILITIES_AT_ONCE = 2**24
"""Probabilities of all packs and organs that exist at a time while slices are merged: 64 MB."""

MASKS_AT_ONCE = 2**15
"""Voxels for which it is found at a time which packs have an organ there."""


@dataclass(frozen=True, eq=False)
class Slab:
    """Slices of a prepared scan that no later window reaches; valid until the next slab is requested."""

    slices: slice
    """Slice numbers in the prepared scan."""
    packs: Sequence[PackDecoder]
    outputs: Sequence[AccumulatedSlab]
    """Per pack."""
    context: ScanContext
    """Of all slices of the prepared scan, cropped to the box."""
    box: Box = WHOLE
    """Lines and columns of the prepared scan; there is background around them."""

    @property
    def shape(self) -> tuple[int, int, int]:
        z, y, x = self.outputs[0].values.shape[1:]
        return z, y, x

    def merge(
        self,
        rules: Sequence[MergeRule],
        disagreement: Callable[[Sequence[PackPrediction], Decision], Tensor] | None = None,
        nearby: NearbyPacks | None = None,
    ) -> list[tuple[Decision, Tensor]]:
        """Per rule its decision, and where packs disagree with it (nowhere without `disagreement`).

        With `nearby`, rules are asked only about voxels where it finds an organ, and about the packs there.
        """
        device = self.packs[0].organ_ids.device
        merged = [
            (Decision.background(self.shape, device), torch.zeros(self.shape, dtype=torch.bool))
            for _ in rules
        ]
        if nearby and not disagreement:
            self._merge_nearby(rules, [decision for decision, _ in merged], nearby)
            return merged
        for z, y in blocks_of_lines(self.shape, voxels_at_once(self.packs)):
            predictions = self._predict(z, y)
            context = self.context.at(slice(self.slices.start + z.start, self.slices.start + z.stop), y)
            for rule, (whole, contested) in zip(rules, merged, strict=True):
                decision = rule(predictions, context)
                for target, part in zip(whole, decision, strict=True):
                    target[z, y] = part
                if disagreement:
                    contested[z, y] = disagreement(predictions, decision).cpu()
        return merged

    def _merge_nearby(
        self, rules: Sequence[MergeRule], merged: Sequence[Decision], nearby: NearbyPacks
    ) -> None:
        """Write the decisions of the rules where an organ is present."""
        depth, height, width = self.shape
        at_once = max(1, MASKS_AT_ONCE // (height * width))
        for z in (slice(first, min(first + at_once, depth)) for first in range(0, depth, at_once)):
            masks = nearby.masks(self.outputs, z, nearby.idle(self.outputs, z))
            present = np.flatnonzero(masks.any(axis=1))
            for among, numbers in groups(masks[present]) if len(present) else ():
                for part in split(present[among], voxels_at_once([self.packs[each] for each in numbers])):
                    voxels = torch.from_numpy(part + z.start * height * width)
                    self._merge_voxels(rules, merged, voxels.to(self.packs[0].organ_ids.device), numbers)

    def _merge_voxels(
        self, rules: Sequence[MergeRule], merged: Sequence[Decision], voxels: Tensor, numbers: Sequence[int]
    ) -> None:
        """Write the decisions about some voxels, by their index in the slab, from packs by their numbers."""
        _, height, width = self.shape
        at = voxels // (height * width), voxels // width % height, voxels % width
        predictions = []
        for number in numbers:
            output = self.outputs[number]
            share = None if output.share is None else output.share[at][:, None, None]
            predictions.append(self.packs[number].predict(output.values[:, *at][..., None, None], share))
        context = self.context.at_voxels(at[0] + self.slices.start, *at[1:])
        packs = torch.tensor([*numbers, -1], dtype=torch.int16, device=voxels.device)
        for rule, whole in zip(rules, merged, strict=True):
            decision = rule(predictions, context)
            decision = decision._replace(pack=packs[decision.pack.long()])
            for target, part in zip(whole, decision, strict=True):
                target[at] = part.flatten()

    def _predict(self, z: slice, y: slice) -> list[PackPrediction]:
        return [
            pack.predict(output.values[:, z, y], output.share_at(z, y))
            for pack, output in zip(self.packs, self.outputs, strict=True)
        ]


def voxels_at_once(packs: Sequence[PackDecoder]) -> int:
    """Voxels for which the probabilities of all packs are computed at a time."""
    return max(1, PROBABILITIES_AT_ONCE // sum(len(pack.organ_ids) for pack in packs))


def blocks_of_lines(shape: tuple[int, int, int], voxels: int) -> Iterator[tuple[slice, slice]]:
    """Slices and lines (z, y) that divide a volume into blocks of about this many voxels."""
    depth, height, width = shape
    lines = max(1, voxels // width)
    slices = max(1, lines // height)
    for z in range(0, depth, slices):
        for y in range(0, height, min(lines, height)):
            yield slice(z, min(z + slices, depth)), slice(y, min(y + lines, height))


def split(voxels: np.ndarray, at_once: int) -> Iterator[np.ndarray]:
    """Voxels in parts of at most so many."""
    for first in range(0, len(voxels), at_once):
        yield voxels[first : first + at_once]
