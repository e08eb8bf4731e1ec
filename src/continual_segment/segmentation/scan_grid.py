"""From what packs say on the prepared grid to labels on the scan's own.

A label on the scan's grid is what the merge rule makes of the packs' answers interpolated there, linearly
in all three axes. Interpolating every organ at every voxel would take longer than the networks. But between
prepared voxels that all have one label, each organ's rivals lose at every corner and so in between: the
label is known. Only where the corners of a cell disagree are the packs asked again. Slices are written as
soon as the prepared ones around them are final; beyond the labels, nothing grows with the scan.

In:  slabs of a prepared scan, in order
Out: labels, and on request scores, on the scan's grid
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import torch
from torch import Tensor

from continual_segment.packed import PackedVoxels
from continual_segment.segmentation.answers import Decision, Surroundings
from continual_segment.segmentation.blend import Said
from continual_segment.segmentation.merge import Merge
from continual_segment.segmentation.rows import WHOLE, Box
from continual_segment.segmentation.slabs import Slab, voxels_at_once


@dataclass(frozen=True, eq=False)
class Axis:
    """Between which old voxels the middles of new ones lie, along one axis of the same box."""

    lower: np.ndarray
    upper: np.ndarray
    """The same as `lower` where a new voxel's middle is an old one's, or beyond the last."""
    fraction: np.ndarray
    """Of the way from lower to upper; float32."""
    own: slice
    """The new voxels told of, among all."""

    @classmethod
    def between(cls, old: int, new: int, part: slice | None = None) -> Axis:
        """`part` of the old voxels are at hand, counted from its first; new voxels beside it are left out."""
        start, stop, _ = (part or slice(None)).indices(old)
        centres = (np.arange(new) + 0.5) * (old / new) - 0.5
        inside = np.flatnonzero((centres >= start - 0.5) & (centres <= stop - 0.5))
        centres = np.clip(centres[inside] - start, 0, stop - start - 1)
        whole = np.rint(centres)
        centres = np.where(abs(centres - whole) < 1e-6, whole, centres)
        lower, upper = np.floor(centres).astype(np.int64), np.ceil(centres).astype(np.int64)
        own = slice(int(inside[0]), int(inside[-1]) + 1) if len(inside) else slice(0, 0)
        return cls(lower, upper, (centres - lower).astype(np.float32), own)

    @cached_property
    def nearest(self) -> np.ndarray:
        return np.where(self.fraction < 0.5, self.lower, self.upper)


@dataclass(frozen=True, eq=False)
class Plane:
    """A prepared slice, seen from the scan's pixels."""

    organ: np.ndarray
    """(y, x): organ of one prepared voxel around each pixel."""
    alike: np.ndarray
    """bool: whether all prepared voxels around it are of that organ."""


class LabelsOnScan:
    """Labels on a scan's grid by one merge rule, written slice by slice."""

    def __init__(
        self,
        merge: Merge,
        prepared_shape: tuple[int, int, int],
        shape: tuple[int, int, int],
        wanted: np.ndarray,
        scores: bool = False,
        box: Box = WHOLE,
    ) -> None:
        """`wanted` maps organ ids to what they are called, 0 for those not asked for.

        Slabs hold the `box` of the prepared slices alone; there is nothing around it.
        """
        self.merge, self.wanted = merge, wanted
        parts = (slice(None), *box)
        self.axes = [
            Axis.between(old, new, part) for old, new, part in zip(prepared_shape, shape, parts, strict=True)
        ]
        self._depth, *plane = shape
        self._inside = self.axes[1].own, self.axes[2].own
        self._organ = PackedVoxels((plane[0], plane[1]), np.uint16)
        self._score = PackedVoxels((plane[0], plane[1]), np.float16) if scores else None
        self._planes: dict[int, tuple[Plane, Tensor | None]] = {}
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
            score = None if self._score is None else self._planed_score(organ[z], decision.score[z])
            self._planes[slab.slices.start + z] = self._plane(organ[z]), score
        depth = self.axes[0]
        while len(self._organ) < self._depth and depth.upper[len(self._organ)] < slab.slices.stop:
            self._write(len(self._organ), slab)
        self._carried = tuple(said.last() for said in slab.said)
        self._planes = {z: plane for z, plane in self._planes.items() if z == slab.slices.stop - 1}

    def _plane(self, names: np.ndarray) -> Plane:
        _, y, x = self.axes
        corners = [
            names[rows][:, columns] for rows, columns in product((y.lower, y.upper), (x.lower, x.upper))
        ]
        return Plane(corners[0], np.logical_and.reduce([corners[0] == other for other in corners[1:]]))

    def _planed_score(self, organ: np.ndarray, score: Tensor) -> Tensor:
        kept = score * torch.from_numpy(self.wanted[organ] > 0).to(score.device)
        _, y, x = self.axes
        down, across = (torch.from_numpy(axis.fraction).to(kept.device) for axis in (y, x))
        lines = torch.lerp(kept[y.lower], kept[y.upper], down[:, None])
        return torch.lerp(lines[:, x.lower], lines[:, x.upper], across)

    def _write(self, z: int, slab: Slab) -> None:
        depth = self.axes[0]
        (below, low_score), (above, high_score) = (self._planes[at[z]] for at in (depth.lower, depth.upper))
        known = below.alike & above.alike & (below.organ == above.organ)
        labels, scores = self.wanted[below.organ], None
        if low_score is not None and high_score is not None:
            scores = torch.lerp(low_score, high_score, float(depth.fraction[z])).cpu().numpy()
        asked = np.flatnonzero(~known)
        for first in range(0, len(asked), voxels_at_once(slab.packs)):
            pixels = asked[first : first + voxels_at_once(slab.packs)]
            decision = self._ask(z, pixels, slab)
            names = self.wanted[decision.organ.flatten().cpu().numpy()]
            labels.flat[pixels] = names
            if scores is not None:
                scores.flat[pixels] = np.where(names > 0, decision.score.flatten().cpu().numpy(), 0)
        self._organ.append(labels, self._inside)
        if self._score is not None and scores is not None:
            self._score.append(scores, self._inside)

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

    def _corners(self, z: int, pixels: np.ndarray, slab: Slab) -> list[tuple[int, Tensor, Tensor]]:
        """Prepared voxels around some pixels: slice, places in it, weights."""
        depth, *across = self.axes
        device = slab.packs[0].organ_ids.device
        width = slab.shape[2]
        (y_low, y_high, y_part), (x_low, x_high, x_part) = (
            (axis.lower[at], axis.upper[at], axis.fraction[at])
            for axis, at in zip(across, np.divmod(pixels, len(self.axes[2].lower)), strict=True)
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
        depth, *across = self.axes
        at = int(depth.nearest[z])
        part, anomaly = around.body_part, around.anomaly
        if part is not None:
            part = part[at].expand(len(pixels))
        if anomaly is not None:
            y, x = (
                torch.from_numpy(axis.nearest[index]).to(anomaly.device)
                for axis, index in zip(across, np.divmod(pixels, len(self.axes[2].lower)), strict=True)
            )
            anomaly = anomaly[at][y, x][:, None, None]
        return Surroundings(part, anomaly)
