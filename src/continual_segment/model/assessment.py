"""Assessment: what a pack knows of itself, measured on its own scans when it was learned.

Merging weighs packs by it. Per organ: how well the pack finds it in its validation scans, and how far its
probabilities are to be trusted. Of the pack: what its scans look like to the encoder. All of it are
statistics over scans, nothing of a patient; packs without it weigh as much as the best of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from continual_segment.errors import ModelError
from continual_segment.files.records import as_record

FIELD = "assessment"
"""Of a pack's description."""
LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.25, 4.0
"""Probabilities that would need more than this are no probabilities."""
SMALLEST, LARGEST = 1e-6, 1e6
"""Of a domain's numbers: features are normalised, and distances must stay finite."""
MOST_DIRECTIONS = 16


@dataclass(frozen=True)
class OrganAssessment:
    """How well a pack finds one of its organs."""

    dice: float
    """On windows that cover validation scans."""
    temperature: float
    """By which the log-odds of its probability are divided, so that they are right on these windows: above 1
    where the pack is too certain."""
    voxels: int
    """Of the organ in these windows."""

    def __post_init__(self) -> None:
        check_rules(
            "assessment of an organ",
            dice=0 <= self.dice <= 1,
            temperature=LEAST_TEMPERATURE <= self.temperature <= MOST_TEMPERATURE,
            voxels=self.voxels >= 0,
        )


@dataclass(frozen=True)
class Domain:
    """What the training scans look like to the encoder.

    A scan is described by one number per channel (segmentation/domain.py). Over all training scans these have
    a mean and a covariance, which is kept as a few directions and, for each channel, what they leave.
    """

    mean: tuple[float, ...]
    directions: tuple[tuple[float, ...], ...]
    """In which scans differ most, each with the length of one standard deviation."""
    rest: tuple[float, ...]
    """Standard deviation of each channel apart from the directions."""
    scans: int

    def __post_init__(self) -> None:
        channels = len(self.mean)
        check_rules(
            "domain",
            mean=channels > 0 and within(self.mean, -LARGEST),
            directions=len(self.directions) <= MOST_DIRECTIONS
            and all(len(each) == channels and within(each, -LARGEST) for each in self.directions),
            rest=len(self.rest) == channels and within(self.rest, SMALLEST),
            scans=self.scans >= 2,
        )


def within(numbers: Sequence[float], least: float) -> bool:
    return all(least <= each <= LARGEST for each in numbers)  # NaN is not


@dataclass(frozen=True)
class Assessment:
    """All that a pack knows of itself."""

    organs: Mapping[str, OrganAssessment] = field(default_factory=dict)
    """By name; those that validation scans hardly show are missing."""
    domain: Domain | None = None


def assessment_from_json(data: Any) -> Assessment | None:
    """Of a description that may come from a stranger; None where the pack was not assessed."""
    if data is None:
        return None
    found: Assessment = as_record(data, Assessment, FIELD, ModelError)
    return found


def check_rules(what: str, **kept: bool) -> None:
    """Raise for the first field that breaks its rule."""
    for name, good in kept.items():
        if not good:
            raise ValueError(f"the {what} cannot have such {name}")
