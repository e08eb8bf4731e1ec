"""From outputs of the packs on the prepared grid to labels on the scan's own grid.

A label on the scan's grid is the decision of the merge rule on the packs' outputs, interpolated linearly in
all three axes. Interpolating every organ at every voxel would take longer than the networks. But where all
prepared voxels around a pixel have one label, the other organs lose at every corner and so in between: the
label is known. The rule runs again only where these corners differ. All slices between the same two prepared
slices have the same corners and are written together, as soon as both are finished, so only the labels grow
with the scan. Voxels that were not scanned, which straightening a tilted gantry adds, are background.

In:  slabs of a prepared scan, in order
Out: labels, and on request scores, on the scan's grid or on its slices as they were before straightening
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from continual_segment.packed import PackedVoxels
from continual_segment.segmentation.context import ScanContext
from continual_segment.segmentation.merge import MergeRule
from continual_segment.segmentation.nearby_packs import NearbyPacks, groups
from continual_segment.segmentation.padded_scan import Box
from continual_segment.segmentation.predictions import Decision
from continual_segment.segmentation.sampling import Axis, Sampling
from continual_segment.segmentation.slab import Slab, split, voxels_at_once
from continual_segment.segmentation.window_accumulator import AccumulatedSlab

MOST_SLICES_AT_ONCE = 16
"""That are written together; more would need memory and save no more time."""


class Plane(NamedTuple):
    """A prepared slice at the pixels (y, x) of a slice of the label map."""

    organ: np.ndarray
    """Organ of one of the four prepared voxels around each pixel."""
    uniform: np.ndarray
    """bool: whether all four have this organ."""
    score: Tensor | None
    """Score of the winner, interpolated; 0 for organs that are not requested."""


class Corner(NamedTuple):
    """One of the four prepared voxels around each of some pixels."""

    voxel: Tensor
    """Its index in the flattened prepared slice."""
    weight: Tensor
    """In linear interpolation; the four have a sum of 1."""


class LabelUpsampler:
    """Writes the labels of one merge rule on one grid, slice by slice."""

    def __init__(
        self,
        rule: MergeRule,
        sampling: Sampling,
        label_of: np.ndarray,
        scores: bool = False,
        nearby: NearbyPacks | None = None,
    ) -> None:
        """`label_of` maps organ ids to labels, 0 for organs that are not requested.

        `nearby` finds the packs that the rule is asked about; None: always all.
        """
        self.rule, self.sampling, self.label_of, self.nearby = rule, sampling, label_of, nearby
        plane = sampling.shape[1:]
        self._organ = PackedVoxels(plane, np.uint16)
        self._score = PackedVoxels(plane, np.float16) if scores else None
        self._decided: dict[int, tuple[np.ndarray, Tensor | None]] = {}
        """Prepared slice -> organs and scores (y, x)."""
        self._planes: dict[int, Plane] = {}
        """The prepared slices around the last slices that were written."""
        self._masks: dict[tuple[int, frozenset[int]], np.ndarray] = {}
        """Prepared slice and idle packs -> masks of NearbyPacks, around the last slices that were written."""
        self._position: tuple[tuple[float, float], Box] | None = None
        """Shift and box that `_across` and `_planes` belong to."""
        self._across: tuple[Axis, Axis]
        self._carried: tuple[AccumulatedSlab, ...] = ()
        """Per pack, the last slice of the slab before."""

    @property
    def organ(self) -> np.ndarray:
        """(z, y, x), decompressed on each access; without slices that are not finished."""
        return self._organ[:]

    @property
    def score(self) -> np.ndarray | None:
        return None if self._score is None else self._score[:]

    def add(self, slab: Slab, decision: Decision) -> None:
        """Take the next slab and the rule's decision on it; write all slices that are now finished."""
        organ = decision.organ.cpu().numpy().astype(np.uint16)
        for z in range(len(organ)):
            score = None if self._score is None else decision.score[z].clone()
            self._decided[slab.slices.start + z] = organ[z].copy(), score
        depth, slices = self.sampling.depth, self.sampling.shape[0]
        while len(self._organ) < slices and depth.upper[len(self._organ)] < slab.slices.stop:
            self._write(self._next_slices(), slab)
        self._carried = tuple(output.copy_of_last_slice() for output in slab.outputs)
        self._decided = {z: each for z, each in self._decided.items() if z == slab.slices.stop - 1}

    def _next_slices(self) -> range:
        """The next slices that have the same prepared slices around them, and the same shift."""
        first, (slices, *_) = len(self._organ), self.sampling.shape
        most = range(first, min(first + MOST_SLICES_AT_ONCE, slices))
        end = next((z for z in most if self._surroundings(z) != self._surroundings(first)), most.stop)
        return range(first, end)

    def _surroundings(self, z: int) -> tuple[int, int, tuple[float, float]]:
        depth = self.sampling.depth
        return int(depth.lower[z]), int(depth.upper[z]), self.sampling.shift(z)

    def _planes_around(self, z: int, box: Box) -> list[Plane]:
        """The prepared slices below and above a slice, at its pixels."""
        *around, shift = self._surroundings(z)
        if (position := (shift, box)) != self._position:
            self._position, self._across, self._planes = position, self.sampling.across(z, box), {}
        self._planes = {at: self._planes.get(at) or self._plane(*self._decided[at]) for at in around}
        return [self._planes[at] for at in around]

    def _plane(self, organ: np.ndarray, score: Tensor | None) -> Plane:
        y, x = self._across
        corners = [
            organ[lines][:, columns] for lines, columns in product((y.lower, y.upper), (x.lower, x.upper))
        ]
        uniform = np.logical_and.reduce([corners[0] == other for other in corners[1:]])
        return Plane(corners[0], uniform, None if score is None else self._interpolated_score(organ, score))

    def _interpolated_score(self, organ: np.ndarray, score: Tensor) -> Tensor:
        kept = score * torch.from_numpy(self.label_of[organ] > 0).to(score.device)
        y, x = self._across
        down, across = (torch.from_numpy(axis.fraction).to(kept.device) for axis in (y, x))
        lines = torch.lerp(kept[y.lower], kept[y.upper], down[:, None])
        return torch.lerp(lines[:, x.lower], lines[:, x.upper], across)

    def _write(self, slices: range, slab: Slab) -> None:
        """Write slices: known labels where the corners agree, the rule's decision elsewhere."""
        below, above = self._planes_around(slices[0], slab.box)
        inside = self._across[0].inside, self._across[1].inside
        known = below.uniform & above.uniform & (below.organ == above.organ)
        labels = np.repeat(self.label_of[below.organ][None], len(slices), axis=0)
        scores = self._scores_between(below, above, slices)
        scanned = [self.sampling.scanned(z, inside) for z in slices]
        masks = [mask for mask in scanned if mask is not None]
        somewhere = np.any(masks, axis=0) if len(masks) == len(slices) else True
        for pixels, packs in self._questions(slices, np.flatnonzero(~known & somewhere), slab):
            decision = self._decide(slices, pixels, slab, packs)
            found = self.label_of[decision.organ.cpu().numpy().reshape(len(slices), -1)]
            labels.reshape(len(slices), -1)[:, pixels] = found
            if scores is not None:
                values = decision.score.cpu().numpy().reshape(found.shape)
                scores.reshape(len(slices), -1)[:, pixels] = np.where(found > 0, values, 0)
        for stored, written in ((self._organ, labels), (self._score, scores)):
            if stored is not None and written is not None:
                for plane, mask in zip(written, scanned, strict=True):
                    stored.append(plane if mask is None else plane * mask, inside)

    def _scores_between(self, below: Plane, above: Plane, slices: range) -> np.ndarray | None:
        """Scores (z, y, x) of some slices between two prepared ones, where the rule does not run again."""
        if below.score is None or above.score is None:
            return None
        parts = (float(self.sampling.depth.fraction[z]) for z in slices)
        return torch.stack([torch.lerp(below.score, above.score, part) for part in parts]).cpu().numpy()

    def _questions(
        self, slices: range, undecided: np.ndarray, slab: Slab
    ) -> Iterator[tuple[np.ndarray, Sequence[int]]]:
        """The undecided pixels of some slices in pieces, and the packs that can change their labels."""
        everywhere = range(len(slab.packs))
        asked: Sequence[tuple[np.ndarray, Sequence[int]]] = [(undecided, everywhere)]
        if self.nearby is not None and len(undecided):
            masks = self._masks_around(slices, undecided, slab)
            asked = [(undecided[pixels], packs) for pixels, packs in groups(masks)]
        for pixels, packs in asked:
            # where no organ is present, any pack answers background
            numbers = packs or everywhere[:1]
            at_once = voxels_at_once([slab.packs[number] for number in numbers])
            for part in split(pixels, max(1, at_once // len(slices))):
                yield part, numbers

    def _masks_around(self, slices: range, pixels: np.ndarray, slab: Slab) -> np.ndarray:
        """(pixel, byte): the packs that any of the prepared voxels around a pixel has to ask."""
        assert self.nearby is not None
        outputs = {at: self._outputs_at(at, slab) for at in self._prepared_around(slices)}
        idle = frozenset.intersection(*(self.nearby.idle(*found) for found in outputs.values()))
        self._masks = {
            (at, idle): self._masks[at, idle]
            if (at, idle) in self._masks
            else self.nearby.masks(*found, idle)
            for at, found in outputs.items()
        }
        corners = [corner.voxel.cpu().numpy() for corner in self._corners(pixels, slab)]
        return np.bitwise_or.reduce([masks[voxel] for masks in self._masks.values() for voxel in corners])

    def _outputs_at(self, at: int, slab: Slab) -> tuple[Sequence[AccumulatedSlab], slice]:
        """Where the outputs of a prepared slice are: per pack some slices, and its place among these."""
        plane = at - slab.slices.start
        return (self._carried, slice(0, 1)) if plane < 0 else (slab.outputs, slice(plane, plane + 1))

    def _decide(self, slices: range, pixels: np.ndarray, slab: Slab, packs: Sequence[int]) -> Decision:
        """The rule's decision on pixels of slices, each as a slice of its own (slice and pixel, 1, 1)."""
        corners = self._corners(pixels, slab)
        predictions = []
        for number in packs:
            values, share = self._interpolated(number, slices, corners, slab)
            predictions.append(
                slab.packs[number].predict(
                    values[..., None, None], None if share is None else share[:, None, None]
                )
            )
        return self.rule(predictions, self._context_at(slices, pixels, slab.context))

    def _lines_columns(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.divmod(pixels, len(self._across[1].lower))

    def _prepared_around(self, slices: range) -> list[int]:
        """The prepared slices around some slices of the label map: one or two."""
        below, above, _ = self._surroundings(slices[0])
        return list(dict.fromkeys((below, above)))

    def _corners(self, pixels: np.ndarray, slab: Slab) -> list[Corner]:
        """The prepared voxels around pixels in any slice, by their index in the flattened slice."""
        device = slab.packs[0].organ_ids.device
        width = slab.shape[2]
        (y_low, y_high, y_part), (x_low, x_high, x_part) = (
            (axis.lower[at], axis.upper[at], axis.fraction[at])
            for axis, at in zip(self._across, self._lines_columns(pixels), strict=True)
        )
        return [
            Corner(torch.from_numpy(y * width + x).to(device), torch.from_numpy(y_share * x_share).to(device))
            for (y, y_share), (x, x_share) in product(
                ((y_low, 1 - y_part), (y_high, y_part)), ((x_low, 1 - x_part), (x_high, x_part))
            )
        ]

    def _interpolated(
        self, number: int, slices: range, corners: Sequence[Corner], slab: Slab
    ) -> tuple[Tensor, Tensor | None]:
        """Output of one pack (channel, slice and pixel), and the share of its windows that ran.

        First within the prepared slices, then between them: pixels of all slices share the first part.
        """
        parts = torch.from_numpy(self.sampling.depth.fraction[slices.start : slices.stop, None])
        around = [self._outputs_at(at, slab) for at in self._prepared_around(slices)]
        planes = [outputs[number].plane(z.start) for outputs, z in around]
        values = between([within(plane, corners) for plane, _ in planes], parts)
        if all(share is None for _, share in planes):
            return values, None
        shares = [torch.ones_like(plane[:1]) if share is None else share[None] for plane, share in planes]
        return values, between([within(share, corners) for share in shares], parts)[0]

    def _context_at(self, slices: range, pixels: np.ndarray, context: ScanContext) -> ScanContext:
        """The context of the prepared voxel nearest to each pixel of the slices."""
        y, x = (
            np.tile(axis.nearest[index], len(slices))
            for axis, index in zip(self._across, self._lines_columns(pixels), strict=True)
        )
        z = np.repeat(self.sampling.depth.nearest[slices.start : slices.stop], len(pixels))
        return context.at_voxels(*map(torch.from_numpy, (z, y, x)))


def within(plane: Tensor, corners: Sequence[Corner]) -> Tensor:
    """A prepared slice (channel, voxel), interpolated at pixels: (channel, pixel)."""
    found = plane.index_select(1, corners[0].voxel).mul_(corners[0].weight)
    for corner in corners[1:]:
        found.addcmul_(plane.index_select(1, corner.voxel), corner.weight)
    return found


def between(planes: Sequence[Tensor], parts: Tensor) -> Tensor:
    """One or two prepared slices (channel, pixel) -> slices between them (channel, slice and pixel).

    `parts` (slice, 1) is the weight of the second.
    """
    first, last = planes[0][:, None], planes[-1][:, None]
    return torch.lerp(first, last, parts.to(first.device)).flatten(1)
