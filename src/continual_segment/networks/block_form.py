"""BlockForm: the shape of one decoder block as plain data, and the convolutions it is made of.

In a plan a form is one word: a kernel, as "2d", or a kernel and a width, as "2d@8". With a width, every
convolution first reduces what it reads to so many channels, and its kernel works on those. Nothing but
linear maps are in between, so a trained convolution can be reduced without a search (learning/low_rank.py).
What a block writes always has the width of the encoder's features at its resolution.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Literal, cast, get_args

from continual_segment.networks.blocks import Kernel
from continual_segment.networks.encoder import MOST_FEATURES, NetworkConfig

KernelName = Literal["projection", "2d", "p3d", "3d", "nnunet"]

KERNELS: dict[str, tuple[Kernel, ...]] = {
    "projection": ((1, 1, 1),),
    "2d": ((1, 3, 3),),
    "p3d": ((1, 3, 3), (3, 1, 1)),  # in-plane, then across slices
    "3d": ((3, 3, 3),),
}
PAPER_WEIGHTS = {"projection": 1, "2d": 9, "p3d": 12, "3d": 27}
WIDTH = re.compile(r"[1-9][0-9]{0,3}")


@dataclass(frozen=True)
class ConvShape:
    """The sizes of one convolution."""

    inputs: int
    outputs: int
    kernel: Kernel

    @property
    def weights(self) -> int:
        """Without biases; also the multiply-adds of one voxel of its output."""
        return self.inputs * self.outputs * prod(self.kernel)


POINT: Kernel = (1, 1, 1)


@dataclass(frozen=True)
class BlockForm:
    """The kernel of a block's convolutions, and the width that they are reduced to."""

    kernel: KernelName
    width: int | None = None
    """Channels inside its convolutions; None: they are not reduced."""

    @classmethod
    def of(cls, name: str) -> BlockForm:
        """The form of a word in a plan, which may come from a stranger."""
        kernel, at, width = name.partition("@") if isinstance(name, str) else ("", "", "")
        good = kernel in get_args(KernelName) and (not at or WIDTH.fullmatch(width))
        if not good or (at and int(width) > MOST_FEATURES):
            known = ", ".join(get_args(KernelName))
            raise ValueError(
                f"A decoder block is one of {known}, alone or with a width from 1 to {MOST_FEATURES} as in "
                f"2d@8, not {name}."
            )
        return cls(cast(KernelName, kernel), int(width) if at else None)

    @property
    def name(self) -> str:
        """The word that stands for it in a plan."""
        return self.kernel if self.width is None else f"{self.kernel}@{self.width}"

    def kernels(self, network: NetworkConfig, number: int) -> tuple[Kernel, ...]:
        """What one step of a block is made of; blocks are counted from the deepest."""
        return (network.kernels[-2 - number],) if self.kernel == "nnunet" else KERNELS[self.kernel]

    def enlarged_width(self, network: NetworkConfig, number: int) -> int:
        """Channels of the block's enlarged input: it is reduced before it is enlarged, which costs less."""
        return network.features[-2 - number] if self.width is None else self.width

    def convs(self, network: NetworkConfig, number: int) -> list[ConvShape]:
        """All convolutions of a block, in order."""
        features, depth = network.features[-2 - number], network.decoder_depths[number]
        kernels = self.kernels(network, number)
        if self.width is None:
            first, *others = kernels * depth
            return [
                ConvShape(2 * features, features, first),
                *(ConvShape(features, features, kernel) for kernel in others),
            ]
        return self.reduced_convs(features, kernels) * depth

    def reduced_convs(self, features: int, kernels: tuple[Kernel, ...]) -> list[ConvShape]:
        """Those of one step of a block with a width: to that width, inside it, and back.

        The first step of a block reduces the encoder's features; what is enlarged has the width already.
        """
        assert self.width is not None
        *inside, last = kernels
        return [
            ConvShape(features, self.width, POINT),
            *(ConvShape(self.width, self.width, kernel) for kernel in inside),
            ConvShape(self.width, features, last),
        ]
