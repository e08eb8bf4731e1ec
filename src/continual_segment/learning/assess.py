"""assess: what a new pack knows of itself, measured before it is stored.

Windows side by side over the validation scans show how well each organ is found, and whether what has a
probability of 0.8 is right in 8 of 10 voxels. Organs that these windows hardly show are not measured. A few
windows of every training scan show what the scans look like to the encoder.

In:  a step with a frozen encoder, its decoder
Out: Assessment
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from continual_segment.body_parts.learn import training_cases
from continual_segment.data.patches import read_box
from continual_segment.learning.train_decoder import FrozenStep
from continual_segment.learning.validation import CoveringWindows
from continual_segment.model.assessment import (
    LEAST_TEMPERATURE,
    MOST_TEMPERATURE,
    Assessment,
    Domain,
    OrganAssessment,
)
from continual_segment.networks import Decoder
from continual_segment.segmentation.domain import describe_windows, describing_corners, domain_of
from continual_segment.training.validate import Overlaps

DIGITS = 4
MOST_ODDS, BINS = 10.0, 80
"""Log-odds of a probability are counted in so many bins up to these, which are certain enough."""
LEAST_VOXELS = 100
"""Of an organ that is measured: the corner of one in one window shows nothing."""


@dataclass(frozen=True)
class AssessConfig:
    """How a new pack is assessed."""

    windows: int = 60
    """Of the validation scans, at most, to measure reliability and temperature; 0: no assessment."""
    scans: int = 60
    """Of the training scans, at most, to measure the domain."""
    directions: int = 4
    """In which scans of the domain differ that are kept, at most."""

    def __post_init__(self) -> None:
        if self.windows < 0 or self.scans < 2 or not 0 <= self.directions <= 16:
            raise ValueError("windows are at least 0, scans at least 2, directions 0 to 16.")


def assess(step: FrozenStep, decoder: Decoder, config: AssessConfig) -> Assessment | None:
    """The assessment of a decoder that a step has ended with; None if it is switched off."""
    if not config.windows:
        return None
    windows = CoveringWindows(step.source.dataset, step.source.patches.size, config.windows)
    counts = CalibrationCounts(step.organs)
    for number in range(len(windows)):
        images, labels = windows[number]
        with torch.no_grad():
            counts.add(decoder(step.encoder(images.to(step.settings.device))).cpu(), labels)
    found = zip(step.source.dataset.organs, counts.assessed(), strict=True)
    measured = {organ.name: each for organ, each in found if each.voxels >= LEAST_VOXELS}
    return Assessment(measured, measure_domain(step, config))


class CalibrationCounts:
    """Voxels of each organ, found, true and both; and how often it is there, by its predicted log-odds."""

    def __init__(self, organs: int) -> None:
        self.organs, self.overlaps = organs, Overlaps(organs)
        self.voxels, self.true = torch.zeros(2, organs, BINS, dtype=torch.float64)

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Count one batch: logits (batch, 1 + organ, z, y, x), labels (batch, z, y, x)."""
        self.overlaps.add(logits.argmax(dim=1), labels)
        log_p = logits.float().log_softmax(dim=1)[:, 1:].transpose(0, 1).flatten(1).clamp(max=-1e-6)
        odds = log_p - torch.log(-torch.expm1(log_p))  # (organ, voxel)
        bins = ((odds / MOST_ODDS + 1) * BINS / 2).long().clamp(0, BINS - 1)
        bins += BINS * torch.arange(self.organs)[:, None]
        there = labels.flatten() == torch.arange(1, self.organs + 1)[:, None]
        for sums, chosen in ((self.voxels, bins.flatten()), (self.true, bins[there])):
            sums += torch.bincount(chosen, minlength=self.organs * BINS).view(self.organs, BINS)

    def assessed(self) -> list[OrganAssessment]:
        """Every organ, also those that were hardly shown."""
        dice, true = self.overlaps.dice_per_organ.tolist(), self.overlaps.true[1:].tolist()
        temperatures = map(fit_temperature, self.voxels, self.true)
        found = zip(dice, temperatures, true, strict=True)
        return [OrganAssessment(round(d, DIGITS), t, int(voxels)) for d, t, voxels in found]


def fit_temperature(voxels: Tensor, there: Tensor) -> float:
    """By which log-odds are to be divided: the likeliest of some temperatures, for counts by bins of them."""
    odds = ((torch.arange(BINS, dtype=torch.float64) + 0.5) * 2 / BINS - 1) * MOST_ODDS
    grid = torch.logspace(np.log2(LEAST_TEMPERATURE), np.log2(MOST_TEMPERATURE), 97, 2.0, dtype=torch.float64)
    scaled = odds / grid[:, None]
    softplus = torch.nn.functional.softplus
    cost = (there * softplus(-scaled) + (voxels - there) * softplus(scaled)).sum(dim=1)
    return round(float(grid[cost.argmin()]), DIGITS)


def measure_domain(step: FrozenStep, config: AssessConfig) -> Domain | None:
    """What the training scans look like; None if there is one alone."""
    size, device = step.source.patches.size, torch.device(step.settings.device)
    described = []
    for case in training_cases(step.source.dataset, config.scans):
        corners = describing_corners(case.shape, size)
        windows = (read_box(case, corner, size)[0] for corner in corners)
        described.append(describe_windows(windows, step.encoder, device))
    return domain_of(described, config.directions) if len(described) > 1 else None
