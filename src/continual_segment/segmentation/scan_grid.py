"""From what packs say on the prepared grid to labels on the scan's own.

A label on the scan's grid is what the merge rule makes of the packs' answers interpolated there, linearly
in all three axes. Interpolating every organ at every voxel would take longer than the networks. But between
prepared voxels that all have one label, each organ's rivals lose at every corner and so in between: the
label is known. Only where the corners of a cell disagree are the packs asked again. Slices are written as
soon as the prepared ones around them are final; beyond the labels, nothing grows with the scan. Voxels that
were never scanned, as straightening a tilted gantry adds them, are background.

In:  slabs of a prepared scan, in order
Out: labels, and on request scores, on the scan's grid or on its slices as they were before straightening
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from continual_segment.packed import PackedVoxels
from continual_segment.segmentation.answers import Decision, Surroundings
from continual_segment.segmentation.blend import Said
from continual_segment.segmentation.merge import Merge
from continual_segment.segmentation.rows import WHOLE, Box
from continual_segment.segmentation.sampling import Sampling
from continual_segment.segmentation.slabs import Slab, voxels_at_once


@dataclass(frozen=True, eq=False)
class Plane:
    """A prepared slice, seen from the pixels of a slice of the label map."""

    organ: np.ndarray
    """(y, x): organ of one prepared voxel around each pixel."""
    alike: np.ndarray
    """bool: whether all prepared voxels around it are of that organ."""
    score: Tensor | None
    """(y, x): of the winner, interpolated; 0 for organs not asked for."""


class LabelsOnScan:
    """Labels on a scan's grid by one merge rule, written slice by slice."""

    def __init__(
        self, merge: Merge, sampling: Sampling, wanted: np.ndarray, scores: bool = False, box: Box = WHOLE
    ) -> None:
        """`wanted` maps organ ids to what they are called, 0 for those not asked for.

        Slabs hold the `box` of the prepared slices alone; there is nothing around it.
        """
        self.merge, self.sampling, self.wanted, self.box = merge, sampling, wanted, box
        plane = sampling.shape[1:]
        self._organ = PackedVoxels(plane, np.uint16)
        self._score = PackedVoxels(plane, np.float16) if scores else None
        self._decided: dict[int, tuple[np.ndarray, Tensor | None]] = {}
        """Prepared slice -> organs and scores (y, x)."""
        self._planes: dict[int, Plane] = {}
        """Prepared slices around the last one written."""
        self._shift, self._across = sampling.shift(0), sampling.across(0, box)
        self._carried: tuple[Said, ...] = ()

    @property
    def organ(self) -> np.ndarray:
        """(z, y, x), unpacked anew; slices that no slab told of are missing."""
        return self._organ[:]

    @property
    def score(self) -> np.ndarray | None:
        return None if self._score is None else self._score[:]

    def put(self, slab: Slab, decision: Decision) -> None:
        """Take the next slab and what the rule says about it; write all slices that are now known."""
        organ = decision.organ.cpu().numpy().astype(np.uint16)
        for z in range(len(organ)):
            score = None if self._score is None else decision.score[z].clone()
            self._decided[slab.slices.start + z] = organ[z].copy(), score
        depth, slices = self.sampling.depth, self.sampling.shape[0]
        while len(self._organ) < slices and depth.upper[len(self._organ)] < slab.slices.stop:
            self._write(len(self._organ), slab)
        self._carried = tuple(said.last() for said in slab.said)
        self._decided = {z: each for z, each in self._decided.items() if z == slab.slices.stop - 1}

    def _around_slice(self, z: int) -> list[Plane]:
        """The prepared slices below and above, seen from the pixels of a slice."""
        if (shift := self.sampling.shift(z)) != self._shift:
            self._shift, self._across, self._planes = shift, self.sampling.across(z, self.box), {}
        around = [int(at[z]) for at in (self.sampling.depth.lower, self.sampling.depth.upper)]
        self._planes = {at: self._planes.get(at) or self._seen(*self._decided[at]) for at in around}
        return [self._planes[at] for at in around]

    def _seen(self, organ: np.ndarray, score: Tensor | None) -> Plane:
        y, x = self._across
        corners = [
            organ[rows][:, columns] for rows, columns in product((y.lower, y.upper), (x.lower, x.upper))
        ]
        alike = np.logical_and.reduce([corners[0] == other for other in corners[1:]])
        return Plane(corners[0], alike, None if score is None else self._seen_score(organ, score))

    def _seen_score(self, organ: np.ndarray, score: Tensor) -> Tensor:
        kept = score * torch.from_numpy(self.wanted[organ] > 0).to(score.device)
        y, x = self._across
        down, across = (torch.from_numpy(axis.fraction).to(kept.device) for axis in (y, x))
        lines = torch.lerp(kept[y.lower], kept[y.upper], down[:, None])
        return torch.lerp(lines[:, x.lower], lines[:, x.upper], across)

    def _write(self, z: int, slab: Slab) -> None:
        below, above = self._around_slice(z)
        inside = self._across[0].own, self._across[1].own
        known = below.alike & above.alike & (below.organ == above.organ)
        labels, scores = self.wanted[below.organ], None
        if below.score is not None and above.score is not None:
            part = float(self.sampling.depth.fraction[z])
            scores = torch.lerp(below.score, above.score, part).cpu().numpy()
        scanned = self.sampling.scanned(z, inside)
        asked = np.flatnonzero(~known if scanned is None else ~known & scanned)
        for first in range(0, len(asked), voxels_at_once(slab.packs)):
            pixels = asked[first : first + voxels_at_once(slab.packs)]
            decision = self._ask(z, pixels, slab)
            names = self.wanted[decision.organ.flatten().cpu().numpy()]
            labels.flat[pixels] = names
            if scores is not None:
                scores.flat[pixels] = np.where(names > 0, decision.score.flatten().cpu().numpy(), 0)
        for at_rest, values in ((self._organ, labels), (self._score, scores)):
            if at_rest is not None and values is not None:
                at_rest.append(values if scanned is None else values * scanned, inside)

    def _ask(self, z: int, pixels: np.ndarray, slab: Slab) -> Decision:
        """What the rule says of some pixels of a slice, each as a slice of its own."""
        corners = self._corners(z, pixels, slab)
        answers = []
        for number, pack in enumerate(slab.packs):
            values, share = self._interpolated(number, corners, slab)
            answers.append(
                pack.answer(values[..., None, None], None if share is None else share[:, None, None])
            )
        return self.merge(answers, self._around(z, pixels, slab.around))

    def _lines_columns(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.divmod(pixels, len(self._across[1].lower))

    def _corners(self, z: int, pixels: np.ndarray, slab: Slab) -> list[tuple[int, Tensor, Tensor]]:
        """Prepared voxels around some pixels: slice, places in it, weights."""
        depth = self.sampling.depth
        device = slab.packs[0].organ_ids.device
        width = slab.shape[2]
        (y_low, y_high, y_part), (x_low, x_high, x_part) = (
            (axis.lower[at], axis.upper[at], axis.fraction[at])
            for axis, at in zip(self._across, self._lines_columns(pixels), strict=True)
        )
        part = depth.fraction[z]
        slices = [(depth.lower[z], 1 - part)] + ([(depth.upper[z], part)] if part > 0 else [])
        return [
            (
                int(at),
                torch.from_numpy(y * width + x).to(device),
                torch.from_numpy(share * y_share * x_share).to(device),
            )
            for (at, share), (y, y_share), (x, x_share) in product(
                slices,
                ((y_low, 1 - y_part), (y_high, y_part)),
                ((x_low, 1 - x_part), (x_high, x_part)),
            )
        ]

    def _interpolated(
        self, number: int, corners: list[tuple[int, Tensor, Tensor]], slab: Slab
    ) -> tuple[Tensor, Tensor | None]:
        """What one pack says at some pixels: (channel, pixel), and the share of its windows that ran."""
        values: Tensor | None = None
        share: Tensor | None = None
        for z, places, weights in corners:
            said, at = slab.said[number], z - slab.slices.start
            plane, shares = self._carried[number].at(0) if at < 0 else said.at(at)
            term = plane.index_select(1, places).float() * weights
            values = term if values is None else values.add_(term)
            part = weights if shares is None else shares[places] * weights
            share = part if share is None else share + part
        assert values is not None
        every = said.share is None and (not self._carried or self._carried[number].share is None)
        return values, None if every else share

    def _around(self, z: int, pixels: np.ndarray, around: Surroundings) -> Surroundings:
        at = int(self.sampling.depth.nearest[z])
        part, anomaly = around.body_part, around.anomaly
        if part is not None:
            part = part[at].expand(len(pixels))
        if anomaly is not None:
            y, x = (
                torch.from_numpy(axis.nearest[index]).to(anomaly.device)
                for axis, index in zip(self._across, self._lines_columns(pixels), strict=True)
            )
            anomaly = anomaly[at][y, x][:, None, None]
        return Surroundings(part, anomaly)
