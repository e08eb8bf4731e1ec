"""A pack's decoder, ready to run on windows, and its accumulator over the current slab."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from continual_segment.model import OrganPack
from continual_segment.model.head import AnomalyHead
from continual_segment.networks import Decoder
from continual_segment.networks.heads import ProjectionHead
from continual_segment.organs import UNKNOWN_PART
from continual_segment.segmentation.backends import BackendName, start_decoder
from continual_segment.segmentation.padded_scan import Box
from continual_segment.segmentation.predictions import PackPrediction, PackProfile
from continual_segment.segmentation.window_accumulator import WindowAccumulator


class PackDecoder:
    """Decodes windows, accumulates its outputs over a slab and turns their mean into a PackPrediction."""

    def __init__(
        self,
        decoder: Decoder | ProjectionHead,
        organ_ids: Sequence[int],
        device: torch.device,
        profile: PackProfile | None = None,
        backend: BackendName = "eager",
    ) -> None:
        self.decoder = decoder.to(device)
        self.organ_ids = torch.tensor([0, *organ_ids], dtype=torch.int32, device=device)
        self.profile = profile or PackProfile()
        features = decoder.head.in_channels
        self.accumulates_features = features < len(self.organ_ids)
        """Whether features are accumulated, or logits, because those are fewer."""
        self.channels = min(features, len(self.organ_ids))
        self.decode = start_decoder(self.decoder, self.accumulates_features, backend)

    @classmethod
    def of_pack(cls, pack: OrganPack, device: torch.device, backend: BackendName = "eager") -> PackDecoder:
        profile = PackProfile(
            pack.name, pack.fingerprint, pack.coverage, bool(pack.anomalies), pack.distribution
        )
        return cls(pack.decoder(), [organ.id for organ in pack.organs], device, profile, backend)

    @classmethod
    def of_head(cls, head: AnomalyHead, device: torch.device) -> PackDecoder:
        """An anomaly head, as a decoder with one organ."""
        return cls(head.head(), [1], device, PackProfile(head.name, head.fingerprint))

    def begin(self, slab_shape: Sequence[int]) -> None:
        self.accumulator = WindowAccumulator(self.channels, slab_shape, self.organ_ids.device)

    def end(self) -> None:
        """Free the accumulator."""
        del self.accumulator

    def covers(self, body_part: Tensor | None, below: float) -> bool:
        """Whether any of these slices is unknown or in a body part that is covered better than `below`."""
        if body_part is None:
            return True
        coverage = dict(enumerate(self.profile.relative_coverage)) | {UNKNOWN_PART: 1.0}
        return any(coverage[part] > below for part in body_part.unique().tolist())

    def add_batch(self, features: Sequence[Tensor], weights: Tensor, boxes: Sequence[Box]) -> None:
        """Decode a batch of windows and add each at its lines and columns of the slab."""
        for value, box in zip(self.decode(features), boxes, strict=True):
            self.accumulator.add(value.float(), weights, box)

    def predict(self, values: Tensor, share: Tensor | None) -> PackPrediction:
        """The prediction for mean outputs of windows: `values` (channel, z, y, x), `share` (z, y, x)."""
        logits = values.float().flatten(1)
        if self.accumulates_features:
            head = self.decoder.head
            logits = torch.addmm(head.bias[:, None], head.weight.flatten(1), logits)  # type: ignore[index]
        probabilities = logits.softmax(dim=0).view(len(logits), *values.shape[1:])
        if share is not None:  # windows that did not run count as background
            probabilities *= share
            probabilities[0] += 1 - share
        return PackPrediction(self.profile, self.organ_ids, probabilities)
