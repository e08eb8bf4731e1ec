"""The General Encoder: trained once on a broad dataset, then frozen.

NetworkConfig describes its shape, and with it the shape of every decoder that reads it. The stages are those
of nnU-Net's PlainConvUNet or of its ResidualEncoderUNet.

In:  scan window (batch, channel, z, y, x), normalised (data/intensity.py)
Out: one feature map per stage, finest first
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Literal, get_args

import numpy as np
from torch import Tensor, nn

from continual_segment.networks.blocks import ConvStack, Kernel, initialise
from continual_segment.networks.residual_encoder import ResidualStage, zero_last_norm

# Far above what is trained today; below what would exhaust a machine that is given a hostile description.
MOST_STAGES, MOST_FEATURES, MOST_CONVS, MOST_CHANNELS = 12, 4096, 16, 16
LARGEST_KERNEL, LARGEST_STRIDE, LARGEST_TOTAL_STRIDE = 15, 8, 256
MOST_WEIGHTS = 1_000_000_000

EncoderKind = Literal["plain", "residual"]
PerStage = int | tuple[int, ...]


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of nnU-Net's U-Net; lists have one entry per encoder stage, finest first."""

    features: tuple[int, ...]
    """Channels."""
    kernels: tuple[Kernel, ...]
    """Convolution kernel (z, y, x), also of the decoder block at the same resolution."""
    strides: tuple[Kernel, ...]
    """Down-sampling on entering the stage; (1, 1, 1) for the first."""
    encoder_convs: PerStage = 2
    """Convolutions of each stage of a plain encoder, blocks of each stage of a residual one. One number is
    the same for all; once constructed, a tuple."""
    decoder_convs: PerStage = 2
    """Convolutions of each decoder block, deepest block first, one entry fewer than stages; as above."""
    encoder: EncoderKind = "plain"
    """plain: PlainConvUNet; residual: ResidualEncoderUNet."""
    input_channels: int = 1
    """Of the scan window; a CT has one."""
    convs_per_stage: int | None = None
    """Short for the same `encoder_convs` and `decoder_convs`, and wins over them; once constructed, None."""

    def __post_init__(self) -> None:
        self._check_lengths()
        stages = len(self.features)
        for name, length in (("encoder_convs", stages), ("decoder_convs", stages - 1)):
            object.__setattr__(self, name, self._per_stage(name, length))
        object.__setattr__(self, "convs_per_stage", None)
        self._check_sizes()
        if any(size % 2 == 0 for kernel in self.kernels for size in kernel):
            raise ValueError(f"Kernels have odd sizes, not {self.kernels}.")
        if self.encoder not in get_args(EncoderKind):
            raise ValueError(f"encoder is one of {', '.join(get_args(EncoderKind))}, not {self.encoder!r}.")
        if any(stride != 1 for stride in self.strides[0]):
            raise ValueError(f"The first stage has stride (1, 1, 1), not {self.strides[0]}.")
        if self.encoder_weights > MOST_WEIGHTS or max(self.total_stride) > LARGEST_TOTAL_STRIDE:
            raise ValueError(
                f"An encoder has at most {MOST_WEIGHTS:,} weights and a total stride of at most "
                f"{LARGEST_TOTAL_STRIDE}, not {self.encoder_weights:,} and {self.total_stride}."
            )

    def _check_lengths(self) -> None:
        lengths = {len(self.features), len(self.kernels), len(self.strides)}
        if len(lengths) != 1 or not 2 <= len(self.features) <= MOST_STAGES:
            raise ValueError(
                f"features, kernels and strides need one entry per stage, 2 to {MOST_STAGES} stages, not "
                f"{len(self.features)}, {len(self.kernels)} and {len(self.strides)}."
            )
        if any(len(kernel) != 3 for kernel in (*self.kernels, *self.strides)):
            raise ValueError(f"Kernels and strides have three sizes, not {self.kernels} and {self.strides}.")

    def _check_sizes(self) -> None:
        """Raise where a size is no whole number within its limits: the config may come from a stranger."""
        sizes = {
            "features": (self.features, MOST_FEATURES),
            "kernels": ([size for kernel in self.kernels for size in kernel], LARGEST_KERNEL),
            "strides": ([size for stride in self.strides for size in stride], LARGEST_STRIDE),
            "encoder_convs": (self.encoder_depths, MOST_CONVS),
            "decoder_convs": (self.decoder_depths, MOST_CONVS),
            "input_channels": ([self.input_channels], MOST_CHANNELS),
        }
        for name, (values, largest) in sizes.items():
            if not all(type(value) is int and 1 <= value <= largest for value in values):
                raise ValueError(f"{name} are whole numbers from 1 to {largest}, not {values}.")

    def _per_stage(self, name: str, length: int) -> tuple[int, ...]:
        given = getattr(self, name) if self.convs_per_stage is None else self.convs_per_stage
        counts = (given,) * length if isinstance(given, int) else tuple(given)
        if len(counts) != length:
            raise ValueError(f"{name} is one number of 1 or more, or {length} of them, not {given}.")
        return counts

    @property
    def encoder_depths(self) -> tuple[int, ...]:
        """`encoder_convs` as the tuple that construction makes of it."""
        assert isinstance(self.encoder_convs, tuple)
        return self.encoder_convs

    @property
    def decoder_depths(self) -> tuple[int, ...]:
        """`decoder_convs` as the tuple that construction makes of it."""
        assert isinstance(self.decoder_convs, tuple)
        return self.decoder_convs

    @property
    def encoder_weights(self) -> int:
        """Weights of the encoder's convolutions; those of skip connections are not counted."""
        inputs = (self.input_channels, *self.features[:-1])
        per_block = 2 if self.encoder == "residual" else 1
        return sum(
            prod(kernel) * width * (before + (per_block * convs - 1) * width)
            for before, width, kernel, convs in zip(
                inputs, self.features, self.kernels, self.encoder_depths, strict=True
            )
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

    def build_encoder(self) -> GeneralEncoder:
        """A new encoder of this shape with random weights."""
        return GeneralEncoder(self)

    def described(self) -> dict[str, Any]:
        """The config as model.json, packs and fingerprints have it.

        What format 1 can express keeps its form, and so every model of format 1 its fingerprint.
        """
        known = asdict(self)
        del known["convs_per_stage"]
        counts = {*self.encoder_depths, *self.decoder_depths}
        if self.encoder == "plain" and self.input_channels == 1 and len(counts) == 1:
            old = {name: known[name] for name in ("features", "kernels", "strides")}
            return old | {"convs_per_stage": counts.pop()}
        return known


class GeneralEncoder(nn.Module):
    """nnU-Net's encoder, plain or residual; layers have its names."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.config = config
        first, make_stage = config.input_channels, STAGES[config.encoder]
        if config.encoder == "residual":
            first = config.features[0]
            self.stem = ConvStack(config.input_channels, first, config.kernels[:1])
        inputs = (first, *config.features[:-1])
        sizes = zip(
            inputs, config.features, config.kernels, config.strides, config.encoder_depths, strict=True
        )
        self.stages = nn.Sequential(*(make_stage(*size) for size in sizes))
        self.apply(initialise)
        self.apply(zero_last_norm)

    def forward(self, window: Tensor) -> list[Tensor]:
        x, features = self.stem(window) if self.config.encoder == "residual" else window, []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features

    @property
    def last_activations(self) -> list[nn.Module]:
        """Of every stage, finest first."""
        return [stage.last_activation for stage in self.stages]  # type: ignore[misc]

    def freeze(self) -> GeneralEncoder:
        """No gradient, evaluation mode: from here on only read."""
        return self.eval().requires_grad_(False)


class PlainStage(nn.Sequential):
    """Convolutions in a row; a Sequential of one, as in nnU-Net, for the names."""

    def __init__(self, inputs: int, outputs: int, kernel: Kernel, stride: Kernel, convs: int) -> None:
        super().__init__(ConvStack(inputs, outputs, [kernel] * convs, stride))

    @property
    def last_activation(self) -> nn.Module:
        stack = self[0]
        assert isinstance(stack, ConvStack)
        return stack.last_activation


STAGES: dict[EncoderKind, type[PlainStage] | type[ResidualStage]] = {
    "plain": PlainStage,
    "residual": ResidualStage,
}
