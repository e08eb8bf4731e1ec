"""A pack's decoder, ready to run on windows, and its accumulator over the current slab."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from continual_segment.model import OrganPack
from continual_segment.networks import Decoder
from continual_segment.networks.heads import ProjectionHead
from continual_segment.organs import UNKNOWN_PART, Organ
from continual_segment.segmentation.backends import EAGER, Engine
from continual_segment.segmentation.padded_scan import Box
from continual_segment.segmentation.predictions import PackPrediction, PackProfile
from continual_segment.segmentation.window_accumulator import WindowAccumulator


@dataclass(frozen=True)
class DecoderOutput:
    """What the outputs of a decoder mean, and how they are computed."""

    regions: bool = False
    """Channels are organs that may overlap, without background."""
    mirror_axes: tuple[int, ...] = ()
    """Axes along which windows are mirrored as well."""
    as_nnunet: bool = False
    """Logits are rounded as stock nnU-Net does, also where that needs up to twice the memory."""


class PackDecoder:
    """Decodes windows, accumulates its outputs over a slab and turns their mean into a PackPrediction."""

    def __init__(
        self,
        decoder: Decoder | ProjectionHead,
        organ_ids: Sequence[int],
        device: torch.device,
        profile: PackProfile | None = None,
        engine: Engine = EAGER,
        output: DecoderOutput | None = None,
    ) -> None:
        output = output or DecoderOutput()
        self.decoder = decoder.to(device)
        self.organ_ids = torch.tensor([0, *organ_ids], dtype=torch.int32, device=device)
        self.profile = profile or PackProfile()
        self.regions, self.as_nnunet = output.regions, output.as_nnunet
        self.mirrorings = subsets(output.mirror_axes)
        """The axes to mirror in each pass of a window."""
        self._sum: Tensor | None = None
        """Of the passes of a batch of windows, while some are missing."""
        features, outputs = decoder.head.in_channels, decoder.head.out_channels
        self.accumulates_features = outputs > features * (2 if output.as_nnunet else 1)
        """Whether features are accumulated, or logits: those are fewer, or have to be nnU-Net's."""
        self.channels = features if self.accumulates_features else outputs
        self.decode = engine.decoder(self.decoder, self.accumulates_features, self.profile)

    @classmethod
    def of_pack(
        cls,
        pack: OrganPack,
        organs: Sequence[Organ],
        device: torch.device,
        engine: Engine = EAGER,
        mirror: bool = False,
        as_nnunet: bool = False,
    ) -> PackDecoder:
        """`organs` are the pack's, with their ids in the model."""
        profile = PackProfile(
            pack.name, pack.fingerprint, pack.coverage, bool(pack.anomalies), pack.distribution
        ).with_assessment(pack.assessment, organs)
        output = DecoderOutput(pack.regions, pack.mirror_axes if mirror else (), as_nnunet)
        return cls(pack.decoder(), [organ.id for organ in organs], device, profile, engine, output)

    def begin(self, total_weight: Tensor) -> None:
        self._sum = None  # a scan that failed between two passes has left one
        self.accumulator = WindowAccumulator(self.channels, total_weight)

    def end(self) -> None:
        """Free the accumulator."""
        del self.accumulator

    def covers(self, body_part: Tensor | None, below: float) -> bool:
        """Whether any of these slices is unknown or in a body part that is covered better than `below`."""
        if body_part is None:
            return True
        coverage = dict(enumerate(self.profile.relative_coverage)) | {UNKNOWN_PART: 1.0}
        return any(coverage[part] > below for part in body_part.unique().tolist())

    def add_batch(
        self, features: Sequence[Tensor], weights: Tensor, boxes: Sequence[Box], axes: tuple[int, ...] = ()
    ) -> None:
        """Decode a batch of windows, mirrored along `axes`, and add each at its place in the slab.

        Of several passes of a batch, the mean is added with the last.
        """
        if axes not in self.mirrorings:
            return
        outputs = self.decode(features)
        if len(self.mirrorings) > 1:
            outputs = outputs.float().flip(window_dims(axes))
            self._sum = outputs if self._sum is None else self._sum.add_(outputs)
            if axes != self.mirrorings[-1]:
                return
            outputs, self._sum = self._sum.div_(len(self.mirrorings)), None
        for value, box in zip(outputs, boxes, strict=True):
            self.accumulator.add(value.float(), weights, box)

    def predict(self, values: Tensor, share: Tensor | None) -> PackPrediction:
        """The prediction for mean outputs of windows: `values` (channel, z, y, x), `share` (z, y, x)."""
        logits = values.float().flatten(1)
        if self.accumulates_features:
            head = self.decoder.head
            logits = torch.addmm(head.bias[:, None], head.weight.flatten(1), logits)  # type: ignore[index]
        if self.as_nnunet:  # classes then tie more often, and the first, background, wins a tie
            logits = logits.half().float()
        probabilities = region_probabilities(logits) if self.regions else logits.softmax(dim=0)
        probabilities = probabilities.view(len(probabilities), *values.shape[1:])
        if share is not None:  # windows that did not run count as background
            probabilities *= share
            probabilities[0] += 1 - share
        return PackPrediction(self.profile, self.organ_ids, probabilities)


def subsets(axes: Sequence[int]) -> list[tuple[int, ...]]:
    """All subsets of some axes, smaller ones first."""
    ordered = sorted(axes)
    return [chosen for count in range(len(ordered) + 1) for chosen in combinations(ordered, count)]


def window_dims(axes: Sequence[int]) -> list[int]:
    """Axes of a window as dimensions of a batch (batch, channel, z, y, x)."""
    return [axis + 2 for axis in axes]


def region_probabilities(logits: Tensor) -> Tensor:
    """Logits (region, voxel) of regions that may overlap -> probabilities (1 + region, voxel).

    The last region above a probability of 0.5 wins, as in nnU-Net. Otherwise background, the first channel,
    wins, and the most probable region comes second.
    """
    probabilities = logits.sigmoid()
    numbers = torch.arange(1, len(logits) + 1, device=logits.device)[:, None]
    last = ((probabilities > 0.5) * numbers).amax(dim=0)
    shown = torch.where(last > 0, last - 1, probabilities.argmax(dim=0))[None]
    probability = probabilities.gather(0, shown)
    return torch.cat([1 - probability, torch.zeros_like(probabilities).scatter_(0, shown, probability)])
