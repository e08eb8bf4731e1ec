"""Steps on made-up batches, and on a phantom, small enough that a search takes a second."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import Dataset

from continual_segment.data.augment import AugmentConfig
from continual_segment.data.patches import PatchConfig
from continual_segment.learning.train_decoder import FrozenStep, PatchSource
from continual_segment.networks import GeneralEncoder, NetworkConfig
from continual_segment.training import TrainConfig, history

SIZE = (8, 8, 8)


class MadeUp(Dataset):
    """Noise whose labels follow from a rule; batch i follows from the seed and i alone."""

    def __init__(self, rule, seed):
        self.rule, self.seed, self.read = rule, seed, []

    def __getitem__(self, number):
        self.read.append(number)
        images = torch.randn(2, 1, *SIZE, generator=torch.Generator().manual_seed(1000 * self.seed + number))
        return images, self.rule(images[:, 0])


def bright(images):
    """A voxel's label can be told from the voxel alone."""
    return (images > 0).long()


def bright_below(images):
    """A voxel's label is told by the voxel one slice below."""
    return (images.roll(1, dims=1) > 0).long()


@dataclass(frozen=True)
class MadeUpSource(PatchSource):
    """Stands in for the patches of a dataset."""

    rule: object = bright

    def training(self, config):
        return MadeUp(self.rule, config.seed)

    def validation(self, config):
        return MadeUp(self.rule, 99)


@pytest.fixture
def no_pictures(monkeypatch):
    monkeypatch.setattr(history, "curves_png", lambda rows: b"")  # drawing takes longer than these runs


@pytest.fixture
def pointwise():
    """A network without any context: what a voxel's neighbours say only the decoder's kernels can see."""
    return NetworkConfig((6, 8), ((1, 1, 1), (1, 1, 1)), ((1, 1, 1), (1, 2, 2)))


@pytest.fixture
def make_step(tmp_path, pointwise, no_pictures):
    """A step on made-up batches whose labels follow from a rule."""

    def make(rule=bright, network=pointwise, iterations=100, **settings):
        torch.manual_seed(0)
        dataset = SimpleNamespace(fingerprint="made up", organs=("one",), folder=tmp_path)
        source = MadeUpSource(dataset, PatchConfig(SIZE), AugmentConfig.none(), rule)
        known = {"optimiser": "adamw", "learning_rate": 0.01, "validation_batches": 1} | settings
        config = TrainConfig(iterations, **known)
        return FrozenStep(GeneralEncoder(network).freeze(), source, config, tmp_path / "run", "made up")

    return make


@pytest.fixture
def phantom_step(datasets, preset, quick, tmp_path, no_pictures):
    """A step on a phantom with an encoder that never learned."""
    settings = quick(preset, iterations=6, report_every=3).later
    torch.manual_seed(0)
    encoder = GeneralEncoder(preset.network).freeze()
    source = PatchSource(datasets["totalseg"], preset.patches, preset.augment)
    return FrozenStep(encoder, source, settings, tmp_path / "run", "totalseg")
