"""A network of one convolution and numbered batches: the loop without the rest of the package."""

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from continual_segment.training import Objective, TrainConfig, TrainingRun, history, supervised_loss, train


class NumberedBatches(Dataset):
    """Two classes told apart by a threshold; batch i follows from i alone."""

    def __init__(self, count=1000):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        if not 0 <= number < self.count:
            raise IndexError
        images = torch.randn(2, 1, 4, 4, 4, generator=torch.Generator().manual_seed(number))
        return images, (images[:, 0] > 0.3).long()


class Run:
    """A run of the training loop in a folder, and what it did."""

    def __init__(self, folder, signature="these settings", **settings):
        self.folder, self.signature = folder, signature
        self.config = TrainConfig(
            **{"iterations": 10, "report_every": 4, "optimiser": "adamw", "learning_rate": 0.05} | settings
        )
        torch.manual_seed(self.config.seed)
        self.module = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.LeakyReLU(), nn.Conv3d(4, 2, 1))
        self.batches_seen = 0

    def loss_of(self, images, labels):
        self.batches_seen += 1
        return supervised_loss([self.module(images)], labels)

    def objective(self, loss_of=None):
        return Objective(loss_of or self.loss_of, network=self.module)

    def go(self, loss_of=None, **known):
        objective, batches = self.objective(loss_of), NumberedBatches()
        return train(TrainingRun(objective, batches, self.config, self.folder, self.signature, **known))

    @property
    def weights(self):
        return torch.cat([parameter.detach().flatten() for parameter in self.module.parameters()])


@pytest.fixture
def make_run(tmp_path, monkeypatch):
    """make_run("name", iterations=5) is a new run in a folder of that name."""
    monkeypatch.setattr(history, "curves_png", lambda rows: b"")  # drawing takes longer than these runs
    return lambda name="run", **settings: Run(tmp_path / name, **settings)


@pytest.fixture
def numbered_batches():
    return NumberedBatches()
