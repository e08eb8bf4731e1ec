"""Made-up logits, and a small step with old, shared and new organs."""

import pytest
import torch

from continual_segment.lab.baselines.classes import StepClasses
from continual_segment.organs import find_organ


def organs(*names):
    return tuple(find_organ(name) for name in names)


@pytest.fixture
def overlapping():
    """Four old organs, of which one is labelled again after two new ones: channels 1 to 6."""
    known = organs("liver", "esophagus", "spleen", "aorta")
    return StepClasses.of(known, organs("sternum", "esophagus", "trachea"))


@pytest.fixture
def disjoint():
    return StepClasses.of(organs("liver", "spleen"), organs("sternum", "trachea"))


@pytest.fixture
def esophagus_again():
    """A step without a new class."""
    return StepClasses.of(organs("liver", "esophagus", "spleen"), organs("esophagus"))


@pytest.fixture
def draw():
    """Double precision logits (batch, channels, 3, 4, 5)."""

    def make(channels, seed=0, batch=2, scale=3.0, grad=False):
        generator = torch.Generator().manual_seed(seed)
        logits = scale * torch.randn(batch, channels, 3, 4, 5, generator=generator, dtype=torch.float64)
        return logits.requires_grad_(grad)

    return make


@pytest.fixture
def draw_labels():
    def make(organs, seed=1, batch=2):
        return torch.randint(0, organs + 1, (batch, 3, 4, 5), generator=torch.Generator().manual_seed(seed))

    return make
