"""A model with one encoder and many packs of five organs, and a scan for it, for speed and memory.

Untrained packs would find organs everywhere. Here every organ is found where the features of its decoder are
like those at one voxel of the scan: a linear discriminant is put in place of the decoder's last layer, with a
bias by which a given share of a window exceeds background. Kernels are smooth in space, so that a smooth scan
has smooth features. So packs find their organs in different small places, as trained ones do, though in more
pieces, and elsewhere background.

All else is as `conseg learn` stores it: coverage of body parts with a regressor that finds them, Dice and
domain for the merge rule `weighted`. Pieces for clean-up are left out: made-up organs are scattered over the
scan, which those of trained packs are not, and looking for their islands would take longer. The first organ
of a pack is the last of the pack before it, and one pack in four is disease-aware.

The scan is a body whose Hounsfield units vary smoothly and rise from the hip to the neck; the regressor reads
this rise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from made_up import kernels, make_scan
from torch import Tensor, nn
from torch.nn import functional

from continual_segment.body_parts import BodyPartRegressor
from continual_segment.body_parts.regions import Calibration
from continual_segment.body_parts.regressor import FILE as REGRESSOR
from continual_segment.body_parts.regressor import score_slices
from continual_segment.body_parts.slices import SliceView, make_thumbnails
from continual_segment.body_parts.spine import LANDMARKS
from continual_segment.config import ExperimentConfig, load_preset
from continual_segment.data.prepare import on_spacing
from continual_segment.files import read_scan, write_scan
from continual_segment.model import Model, OrganPack
from continual_segment.model.assessment import Assessment, OrganAssessment
from continual_segment.model.model import encoder_fingerprint, pack_file
from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder
from continual_segment.networks.layers import FastTransposedConv
from continual_segment.networks.slice_scorer import SliceScorer
from continual_segment.organs import BODY_PARTS, Organ, find_organ
from continual_segment.segmentation.domain import domain_of
from continual_segment.volume import Volume

Network = TypeVar("Network", bound=nn.Module)
ORGANS = 5
EDGES = (1 / 6, 1 / 2, 5 / 6)
"""Where abdomen, chest and neck begin, as shares of the scan's height."""
CONTRAST = 6.0
"""Standard deviation of an organ's logit."""
FIELD_HU, FIELD_MM, RISE_HU = 60.0, 60.0, 400.0
"""Smooth variation of the body: its amplitude and scale, and the rise from the lowest slice on."""


@dataclass(frozen=True)
class Hub:
    """What a made-up hub has."""

    packs: int
    preset: str = "demo"
    plan: str = "projection,2d,projection"
    """Kernels of every decoder, deepest first, as `made_up.kernels` takes them."""
    found_share: float = 0.0005
    """Of the voxels of a window, by each organ."""
    spacing_mm: float = 3.0
    """Of the prepared scan, along each axis."""

    def config(self) -> ExperimentConfig:
        """The preset with this spacing."""
        preset = load_preset(self.preset)
        return replace(preset, prepare=replace(preset.prepare, spacing_mm=(self.spacing_mm,) * 3))


def make_body(path: Path, shape: tuple[int, int, int], spacing_mm: tuple[float, float, float]) -> Path:
    """The scan."""
    scan = read_scan(make_scan(path, shape, spacing_mm))
    coarse = [max(2, round(n * mm / FIELD_MM)) for n, mm in zip(shape, spacing_mm, strict=True)]
    field = torch.randn(1, 1, *coarse, generator=torch.Generator().manual_seed(1))
    smooth = functional.interpolate(field, shape, mode="trilinear")[0, 0].numpy()
    voxels = np.array(scan.voxels)
    for z, plane in enumerate(voxels):
        inside = plane > -900
        extra = FIELD_HU * (smooth[z] - smooth[z][inside].mean()) + RISE_HU * z / shape[0]
        plane[inside] += extra[inside].astype(np.int16)
    write_scan(path, Volume(voxels, scan.grid))
    return path


def make_hub(folder: Path, hub: Hub, scan: Path) -> Path:
    """The model folder."""
    torch.manual_seed(0)
    preset = hub.config()
    encoder = smoothed(GeneralEncoder(preset.network)).freeze()
    body = on_spacing(read_scan(scan), preset.prepare)
    packs = list(made_up_packs(hub, preset, encoder, body))
    more = {pack_file(pack.name): pack.to_bytes() for pack in packs[1:]}
    more[REGRESSOR] = make_regressor(read_scan(scan)).to_bytes()
    Model.create(folder, encoder, preset.prepare, preset.patches.size, packs[0], more)
    return folder


def made_up_packs(
    hub: Hub, preset: ExperimentConfig, encoder: GeneralEncoder, body: Volume
) -> Iterator[OrganPack]:
    rng = np.random.default_rng(0)
    plan = DecoderPlan(kernels(hub.plan, len(preset.network.features) - 1))
    fingerprint = encoder_fingerprint(encoder, preset.prepare)
    for number in range(hub.packs):
        first = number * (ORGANS - 1)  # the last organ is the first of the next pack
        organs = tuple(find_organ(f"made_up_{first + index}") for index in range(ORGANS))
        decoder = smoothed(Decoder(preset.network, plan, ORGANS)).eval()
        features = encoder(window_in(body, preset, number, rng))
        find_places(decoder, features, hub.found_share, rng)
        known = known_of(organs, number, features, rng)
        yield OrganPack.of(f"pack{number:03}", organs, encoder, decoder, fingerprint, **known)


@torch.no_grad()
def smoothed(network: Network) -> Network:
    """The network with kernels that are smooth in space: untrained ones turn a smooth scan into noise."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv3d | FastTransposedConv):
            mixing = layer.weight.mean(dim=(2, 3, 4), keepdim=True)
            mixing *= layer.weight.std() / mixing.std()
            upsamples = isinstance(layer, FastTransposedConv)
            layer.weight.copy_(mixing if upsamples else mixing * binomial(layer.weight.shape[2:]))
    return network


def binomial(shape: Sequence[int]) -> Tensor:
    """A smoothing kernel of 1 or 3 voxels along each axis."""
    z, y, x = (torch.tensor([1.0, 2.0, 1.0]) if size == 3 else torch.ones(1) for size in shape)
    kernel = z[:, None, None] * y[:, None] * x
    return kernel / kernel.sum()


def window_in(body: Volume, preset: ExperimentConfig, number: int, rng: np.random.Generator) -> Tensor:
    """A window of the scan in the body part that a pack knows best, (1, 1, z, y, x)."""
    voxels, size = np.asarray(body.voxels), preset.patches.size
    part = number % len(BODY_PARTS)
    low, high = (round(edge * len(voxels)) for edge in (0, *EDGES, 1)[part : part + 2])
    middle = rng.integers(low, high), voxels.shape[1] // 2, rng.integers(0, voxels.shape[2])
    sizes = zip(middle, size, voxels.shape, strict=True)
    z, y, x = (slice(max(0, min(at - n // 2, length - n)), None) for at, n, length in sizes)
    cut = preset.prepare.intensity.fitted(voxels).normalise(voxels[z, y, x][tuple(map(slice, size))])
    missing = [(0, n - length) for n, length in zip(size, cut.shape, strict=True)]
    return torch.from_numpy(np.pad(cut, missing, mode="edge"))[None, None]


@torch.no_grad()
def find_places(decoder: Decoder, features: list[Tensor], share: float, rng: np.random.Generator) -> None:
    """Set the last layer so that each organ is found where features are like those at a voxel of its own."""
    finest = decoder.finest(features)[0].flatten(1)  # (channel, voxel)
    centred = finest - finest.mean(dim=1, keepdim=True)
    covariance = centred @ centred.T / centred.shape[1]
    covariance += 0.01 * covariance.diagonal().mean() * torch.eye(len(covariance))
    chosen = torch.from_numpy(rng.integers(0, finest.shape[1], ORGANS))
    weights = torch.linalg.solve(covariance, centred[:, chosen]).T  # (organ, channel)
    weights *= CONTRAST / (weights @ centred).std(dim=1, keepdim=True)
    logits = weights @ finest
    kept = max(1, round(share * finest.shape[1]))
    decoder.head.weight.zero_()
    decoder.head.weight[1:] = weights.view(ORGANS, -1, 1, 1, 1)
    decoder.head.bias[0] = 0.0  # type: ignore[index]
    decoder.head.bias[1:] = -logits.topk(kept, dim=1).values[:, -1]  # type: ignore[index]


def known_of(
    organs: tuple[Organ, ...], number: int, features: list[Tensor], rng: np.random.Generator
) -> dict[str, Any]:
    """What a pack knows of itself and of the scans that it was learned from."""
    described = torch.cat([stage[0].flatten(1).std(dim=1) for stage in features]).numpy()
    scans = [described * rng.normal(1, 0.05, len(described)) for _ in range(8)]
    assessed = {organ.name: OrganAssessment(rng.uniform(0.6, 0.95), 1.0, 1000) for organ in organs}
    return {
        "coverage": coverage_of(number),
        "anomalies": ("tumour",) if number % 4 == 0 else (),
        "assessment": Assessment(assessed, domain_of(scans, 4)),
    }


def coverage_of(number: int) -> dict[str, float]:
    """One pack in eight is of the whole body; others are of one part, and of half of the one above it."""
    if number % 8 == 0:
        return dict.fromkeys(BODY_PARTS, 1.0)
    best = number % len(BODY_PARTS)
    return dict(zip(BODY_PARTS[best:], (1.0, 0.5), strict=False))


@torch.no_grad()
def make_regressor(scan: Volume) -> BodyPartRegressor:
    """Scores are means of Hounsfield units, which rise along the scan; landmarks are where EDGES are."""
    scorer = SliceScorer().eval()
    for parameter in scorer.parameters():
        parameter.zero_()
    for conv in (scorer.features[0], *scorer.hidden):
        conv.weight[0, 0] = 1 / 9  # type: ignore[union-attr]
    for norm in scorer.features[1::3]:
        norm.weight.fill_(1)
    scorer.features[1].bias[0] = 2.0  # all is positive, where activations are linear
    for linear in (scorer.score[0], scorer.score[2]):
        linear.weight[0, 0] = 10.0
    thumbnails = make_thumbnails(scan, SliceView())
    scores = score_slices(scorer, thumbnails.images())
    at = [round(edge * len(scores)) for edge in EDGES]
    rise = float(scores[-1] - scores[0]) / (len(scores) * thumbnails.slice_mm)
    landmarks = {name: float(scores[index]) for name, index in zip(LANDMARKS, at, strict=True)}
    known = Calibration(landmarks, rise, float(scores.min()), float(scores.max()))
    regressor = BodyPartRegressor(scorer.state_dict(), SliceView(), known)
    assert not (why := regressor.regions(scan).reasons), why
    return regressor
