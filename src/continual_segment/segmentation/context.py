"""What is known about a scan besides the packs' predictions: body part per slice, disease per voxel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from continual_segment.data.resample import resample_scan
from continual_segment.segmentation.padded_scan import Box
from continual_segment.segmentation.predictions import PackProfile
from continual_segment.segmentation.sampling import nearest_neighbour
from continual_segment.volume import Grid, Volume


@dataclass(frozen=True, eq=False)
class ScanContext:
    """Body part and disease of a scan or of a part of it."""

    body_part: Tensor | None = None
    """int64: index in BODY_PARTS, or UNKNOWN_PART, of every slice: (z, 1, 1), or as long along another axis
    where a network has other axes. None: unknown everywhere."""
    anomaly: Tensor | None = None
    """(z, y, x): probability of diseased tissue. None: 0 everywhere."""
    familiar: Mapping[str, float] = field(default_factory=dict)
    """Fingerprint of a pack -> how much the scan looks like its training scans, 1 for the pack that it looks
    most like (segmentation/domain.py). Packs that are missing: not measured; 1."""

    @classmethod
    def of(cls, body_part: np.ndarray | None = None, anomaly: np.ndarray | None = None) -> ScanContext:
        """From arrays on the scan's own grid: body parts (z,), or as the field has them."""
        if body_part is not None and body_part.ndim == 1:
            body_part = body_part[:, None, None]
        return cls(
            None if body_part is None else torch.from_numpy(np.array(body_part, np.int64)),
            None if anomaly is None else torch.from_numpy(np.asarray(anomaly, np.float32)),
        )

    def on_grid(self, own: Grid, prepared: Grid) -> ScanContext:
        """The context of a scan on its `own` grid, resampled to the prepared grid."""
        part, anomaly = self.body_part, self.anomaly
        found = ScanContext.of(
            None if part is None else nearest_neighbour(part.numpy(), (prepared.shape[0], 1, 1)),
            None
            if anomaly is None
            else resample_scan(Volume(anomaly.numpy(), own), prepared).voxels.clip(0, 1),
        )
        return replace(found, familiar=self.familiar)

    def crop(self, box: Box) -> ScanContext:
        """The context of a box of every slice."""
        return self.at(slice(None), *box)

    def to(self, device: torch.device) -> ScanContext:
        part, anomaly = self.body_part, self.anomaly
        return replace(
            self,
            body_part=None if part is None else part.to(device),
            anomaly=None if anomaly is None else anomaly.to(device),
        )

    def at(self, slices: slice, lines: slice = slice(None), columns: slice = slice(None)) -> ScanContext:
        """The context of some slices, or of a part of them."""
        box = slices, lines, columns
        return replace(
            self,
            body_part=None if self.body_part is None else self.body_part[_where_long(self.body_part, box)],
            anomaly=None if self.anomaly is None else self.anomaly[box],
        )

    def at_voxels(self, *places: Tensor) -> ScanContext:
        """The context of some voxels by their z, y and x, each as a slice of its own (voxel, 1, 1)."""

        def of(values: Tensor | None) -> Tensor | None:
            if values is None:
                return None
            box = (at if n > 1 else torch.zeros_like(at) for at, n in zip(places, values.shape, strict=True))
            return values[*(at.to(values.device) for at in box)][:, None, None]

        return replace(self, body_part=of(self.body_part), anomaly=of(self.anomaly))

    def with_empty_anomaly(self, shape: Sequence[int], device: torch.device) -> ScanContext:
        """The context with an anomaly map of zeros (z, y, x), which anomaly heads then fill."""
        return replace(self, anomaly=torch.zeros(*shape, dtype=torch.float16, device=device))

    def per_slice(self, values: Sequence[float]) -> Tensor | float:
        """One value per body part -> the value of each slice, as `body_part`; 1 where it is unknown."""
        if self.body_part is None:
            return 1.0
        known = tuple(values)
        if known not in self._per_slice:  # rules ask about every pair of packs
            table = torch.tensor([*known, 1.0], device=self.body_part.device)  # UNKNOWN_PART, -1, is the last
            self._per_slice[known] = table[self.body_part.long()]
        return self._per_slice[known]

    @cached_property
    def _per_slice(self) -> dict[tuple[float, ...], Tensor]:
        """What `per_slice` has found, by its values."""
        return {}

    def coverage(self, profile: PackProfile) -> Tensor | float:
        """How well the pack covers each slice (z, 1, 1), 1 for its best covered body part."""
        return self.per_slice(profile.relative_coverage)

    def familiarity(self, profile: PackProfile) -> float:
        """How much the scan looks like those that the pack was trained on."""
        return self.familiar.get(profile.fingerprint, 1.0)

    def disease(self, profile: PackProfile | None = None) -> Tensor | float:
        """Probability of a disease that this pack was not trained on; without a pack, of any disease."""
        aware = profile is not None and profile.anomaly_aware
        return 0.0 if self.anomaly is None or aware else self.anomaly


def _where_long(values: Tensor, box: tuple[slice, slice, slice]) -> tuple[slice, ...]:
    """The box along the axes that have more than the one value that counts for all."""
    return tuple(slice(None) if n == 1 else part for n, part in zip(values.shape, box, strict=True))
