"""A small 2D network that gives an axial slice one number: its height in the body.

In:  slices (batch, 1, y, x), Hounsfield units / 1000
Out: scores (batch,)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

SOFT_TISSUE = 5.0
"""A second channel shows -200 to 200 HU at this contrast: organs differ little."""


class SliceScorer(nn.Module):
    """Strided convolutions, then mean and maximum over the slice: positions in a slice matter little."""

    def __init__(self, features: tuple[int, ...] = (16, 32, 64, 96)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in zip((2, *features), features, strict=False):
            layers += [
                nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.LeakyReLU(0.01, inplace=True),
            ]
        self.features = nn.Sequential(*layers)
        self.score = nn.Sequential(
            nn.Linear(2 * features[-1], 64), nn.LeakyReLU(0.01, inplace=True), nn.Linear(64, 1)
        )

    @property
    def hidden(self) -> list[nn.Conv2d]:
        """The convolutions that the image does not enter."""
        return [layer for layer in self.features if isinstance(layer, nn.Conv2d)][1:]

    def forward(self, slices: Tensor) -> Tensor:
        both = torch.cat((slices, (slices * SOFT_TISSUE).clamp(-1, 1)), dim=1)
        found = self.features(both)
        return self.score(torch.cat((found.mean(dim=(2, 3)), found.amax(dim=(2, 3))), dim=1))[:, 0]
