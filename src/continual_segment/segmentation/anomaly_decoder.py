"""AnomalyDecoder: an anomaly head, ready to run on windows; its answer spreads as far as tumours are wide.

Packs that do not know a disease go wrong around it as well, and a head finds some tumours only in part. As in
the paper, the map is smoothed by the average size of tumours: with half their radius, which keeps a disc of
that radius a disc. It is smoothed within slices, for slabs of slices are merged before those above are known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from continual_segment.model.head import AnomalyHead
from continual_segment.segmentation.pack_decoder import PackDecoder
from continual_segment.segmentation.predictions import PackProfile

PEAK = 1 - math.exp(-2)
"""What smoothing leaves in the middle of a disc whose radius is twice the standard deviation."""


class AnomalyDecoder(PackDecoder):
    """A head as a decoder with one organ."""

    def __init__(self, head: AnomalyHead, device: torch.device, plane_mm: Sequence[float]) -> None:
        """`plane_mm` is the size of prepared voxels within a slice (y, x)."""
        super().__init__(head.head(), [1], device, PackProfile(head.name, head.fingerprint))
        radius = head.radius_mm
        self.kernels = [gaussian(0.5 * radius / mm).to(device) for mm in plane_mm] if radius else []

    def disease(self, values: Tensor, share: Tensor | None) -> Tensor:
        """Probability of disease (z, y, x) for mean outputs of windows."""
        found = 1 - self.predict(values, share).background
        if not self.kernels:
            return found
        return torch.maximum(found, (smoothed(found, *self.kernels) / PEAK).clamp_max(1.0))


def gaussian(deviation: float) -> Tensor:
    """Weights up to three standard deviations, in voxels, to both sides."""
    reach = math.ceil(3 * deviation)
    places = torch.arange(-reach, reach + 1, dtype=torch.float32)
    weights = torch.exp(-0.5 * (places / deviation) ** 2)
    return weights / weights.sum()


def smoothed(values: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Each slice (z, y, x) convolved with weights along y and x; there is no disease outside."""
    slices = values[:, None]
    slices = functional.conv2d(slices, rows.view(1, 1, -1, 1), padding=(len(rows) // 2, 0))
    return functional.conv2d(slices, columns.view(1, 1, 1, -1), padding=(0, len(columns) // 2))[:, 0]
