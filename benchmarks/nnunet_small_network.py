"""A small network trained for a minute on one phantom scan, for nnunet_deviations.py."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import trange

WINDOW = (32, 32, 32)


class SmallNetwork(nn.Module):
    """Two scales, instance normalisation, a last layer of 1 x 1 x 1: what matters here of a U-Net."""

    def __init__(self, classes: int, channels: int = 12) -> None:
        super().__init__()
        self.fine = self.block(1, channels)
        self.coarse = nn.Sequential(
            self.block(channels, 2 * channels, stride=2),
            self.block(2 * channels, 4 * channels, stride=2),
            nn.ConvTranspose3d(4 * channels, channels, 4, 4),
        )
        self.join = self.block(2 * channels, channels)
        self.head = nn.Conv3d(channels, classes, 1)

    @staticmethod
    def block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
        convolution = nn.Conv3d(inputs, outputs, 3, stride, 1)
        return nn.Sequential(convolution, nn.InstanceNorm3d(outputs, affine=True), nn.LeakyReLU())

    def features(self, window: Tensor) -> Tensor:
        fine = self.fine(window)
        return self.join(torch.cat([fine, self.coarse(fine)], dim=1))

    def forward(self, window: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(window))
        return logits


def trained_network(scan: np.ndarray, labels: np.ndarray, iterations: int) -> SmallNetwork:
    """Cross-entropy on random windows of a prepared scan, every second one around an organ."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    network = SmallNetwork(int(labels.max()) + 1)
    optimiser = torch.optim.Adam(network.parameters(), 5e-3)
    organs = np.argwhere(labels)
    for number in trange(iterations, desc="training", leave=False, disable=None):
        middle = organs[rng.integers(len(organs))] if number % 2 else rng.integers(labels.shape)
        first = np.clip(middle - np.array(WINDOW) // 2, 0, np.subtract(labels.shape, WINDOW))
        place = tuple(slice(start, start + side) for start, side in zip(first, WINDOW, strict=True))
        window = torch.from_numpy(np.ascontiguousarray(scan[place]))
        truth = torch.from_numpy(labels[place].astype(np.int64))
        loss = functional.cross_entropy(network(window[None, None]), truth[None])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network.eval()
