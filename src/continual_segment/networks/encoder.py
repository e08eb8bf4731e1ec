"""The General Encoder: trained once on a broad dataset, then frozen for ever.

In:  scan window (batch, 1, z, y, x), HU mapped to [-1, 1]
Out: one feature map per stage, finest first: what every decoder reads
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from continual_segment.networks.blocks import ConvStack, Kernel, initialise


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of nnU-Net's plain U-Net, one entry per encoder stage, finest first."""

    features: tuple[int, ...]
    """Channels."""
    kernels: tuple[Kernel, ...]
    """Convolution kernel (z, y, x)."""
    strides: tuple[Kernel, ...]
    """Down-sampling on entering the stage; (1, 1, 1) for the first."""
    convs_per_stage: int = 2
    """Convolutions in each stage of the encoder and in each block of a decoder."""

    def __post_init__(self) -> None:
        lengths = {len(self.features), len(self.kernels), len(self.strides)}
        if len(lengths) != 1 or len(self.features) < 2:
            raise ValueError(
                "features, kernels and strides need one entry per stage, two stages at least, not "
                f"{len(self.features)}, {len(self.kernels)} and {len(self.strides)}."
            )
        if any(size % 2 == 0 for kernel in self.kernels for size in kernel):
            raise ValueError(f"Kernels have odd sizes, not {self.kernels}.")

    @property
    def total_stride(self) -> Kernel:
        """What every window's size must be a multiple of."""
        z, y, x = np.prod(self.strides, axis=0)
        return int(z), int(y), int(x)

    def check_window(self, size: Sequence[int]) -> None:
        """Raise where a window cannot pass the network."""
        if any(length % stride for length, stride in zip(size, self.total_stride, strict=True)):
            raise ValueError(f"A window of {tuple(size)} voxels is no multiple of {self.total_stride}.")


class GeneralEncoder(nn.Module):
    """Strided convolution stages of nnU-Net's plain U-Net."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        inputs = (1, *config.features[:-1])
        self.stages = nn.Sequential(
            *(
                # nnU-Net wraps each stage in a Sequential of one; kept for the names
                nn.Sequential(ConvStack(i, f, [kernel] * config.convs_per_stage, stride))
                for i, f, kernel, stride in zip(
                    inputs, config.features, config.kernels, config.strides, strict=True
                )
            )
        )
        self.apply(initialise)

    def forward(self, window: Tensor) -> list[Tensor]:
        features = []
        for stage in self.stages:
            window = stage(window)
            features.append(window)
        return features

    def freeze(self) -> GeneralEncoder:
        """No gradient, evaluation mode: from here on only read."""
        return self.eval().requires_grad_(False)
