"""The General Encoder: trained once on a broad dataset, then frozen for ever.

In:  scan window (batch, 1, z, y, x), HU mapped to [-1, 1]
Out: one feature map per stage, finest first: what every decoder reads
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from torch import Tensor, nn

from continual_segment.networks.blocks import ConvStack, Kernel, initialise

# Far above what is trained today; below what would exhaust a machine that is given a hostile description.
MOST_STAGES, MOST_FEATURES, MOST_CONVS = 12, 4096, 16
LARGEST_KERNEL, LARGEST_STRIDE, LARGEST_TOTAL_STRIDE = 15, 8, 256
MOST_WEIGHTS = 1_000_000_000


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
        if len(lengths) != 1 or not 2 <= len(self.features) <= MOST_STAGES:
            raise ValueError(
                f"features, kernels and strides need one entry per stage, 2 to {MOST_STAGES} stages, not "
                f"{len(self.features)}, {len(self.kernels)} and {len(self.strides)}."
            )
        self._check_sizes()
        if any(size % 2 == 0 for kernel in self.kernels for size in kernel):
            raise ValueError(f"Kernels have odd sizes, not {self.kernels}.")
        if any(stride != 1 for stride in self.strides[0]):
            raise ValueError(f"The first stage has stride (1, 1, 1), not {self.strides[0]}.")
        if self.encoder_weights > MOST_WEIGHTS or max(self.total_stride) > LARGEST_TOTAL_STRIDE:
            raise ValueError(
                f"An encoder has at most {MOST_WEIGHTS:,} weights and a total stride of at most "
                f"{LARGEST_TOTAL_STRIDE}, not {self.encoder_weights:,} and {self.total_stride}."
            )

    def _check_sizes(self) -> None:
        """Raise where a size is no whole number within its limits: the config may come from a stranger."""
        sizes = {
            "features": (self.features, MOST_FEATURES),
            "kernels": ([size for kernel in self.kernels for size in kernel], LARGEST_KERNEL),
            "strides": ([size for stride in self.strides for size in stride], LARGEST_STRIDE),
            "convs_per_stage": ([self.convs_per_stage], MOST_CONVS),
        }
        if any(len(kernel) != 3 for kernel in (*self.kernels, *self.strides)):
            raise ValueError(f"Kernels and strides have three sizes, not {self.kernels} and {self.strides}.")
        for name, (values, largest) in sizes.items():
            if not all(type(value) is int and 1 <= value <= largest for value in values):
                raise ValueError(f"{name} are whole numbers from 1 to {largest}, not {values}.")

    @property
    def encoder_weights(self) -> int:
        """Weights of the encoder's convolutions."""
        inputs = (1, *self.features[:-1])
        return sum(
            prod(kernel) * width * (before + (self.convs_per_stage - 1) * width)
            for before, width, kernel in zip(inputs, self.features, self.kernels, strict=True)
        )

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
