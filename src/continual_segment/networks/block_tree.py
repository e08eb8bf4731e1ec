"""BlockTree: smaller blocks for a trained decoder, and all decoders that can be assembled from them.

A plan names one kernel per block, deepest first. What a block reads depends on the blocks before it, so a
block is stored by the beginning of the plans it belongs to: ("2d", "projection") is the projection behind a
2D block. Blocks with the trained decoder's own kernel are its blocks, wherever they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod
from typing import cast

from torch import Tensor, nn

from continual_segment.networks.blocks import ConvStack
from continual_segment.networks.decoder import Decoder, conv_block
from continual_segment.networks.decoder_plan import KERNELS, DecoderPlan, KernelName

Kernels = tuple[KernelName, ...]
"""Of a whole plan, or of its deepest blocks."""
Parts = tuple[Tensor, Tensor]
"""Enlarged features and the encoder's: what a block reads."""


class BlockTree(nn.Module):
    """A trained decoder and smaller blocks in its place."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder, self.blocks = decoder, nn.ModuleDict()

    @property
    def whole(self) -> Kernels:
        """The trained decoder's own plan."""
        return self.decoder.plan.kernels

    def smaller_kernels(self, number: int) -> list[KernelName]:
        """Kernels with fewer weights than the decoder's own has in this block."""
        own = self.decoder.plan.block_kernels(self.decoder.network)[number]
        weights = sum(map(prod, own))
        return [
            cast(KernelName, name) for name, kernels in KERNELS.items() if sum(map(prod, kernels)) < weights
        ]

    def choices(self, number: int) -> list[KernelName]:
        """The decoder's own kernel and the smaller ones."""
        return [self.whole[number], *self.smaller_kernels(number)]

    def add_block(self, kernels: Kernels) -> ConvStack:
        """A new block at the end of these."""
        number = len(kernels) - 1
        block = conv_block(self.decoder.network, number, KERNELS[kernels[-1]])
        self.blocks["-".join(kernels)] = block
        return block

    def block(self, kernels: Kernels) -> ConvStack:
        """The last of these blocks."""
        number = len(kernels) - 1
        own = kernels[-1] == self.whole[number]
        return cast(ConvStack, self.decoder.stages[number] if own else self.blocks["-".join(kernels)])

    def inputs(
        self, features: Sequence[Tensor], beginnings: Collection[Kernels]
    ) -> Iterator[tuple[Kernels, Parts]]:
        """What the next block reads behind each of these beginnings, all of one length."""
        for kernels, x in self.outputs(features, beginnings):
            yield kernels, self.decoder.block_input(len(kernels), x, features)

    def logits(
        self, features: Sequence[Tensor], plans: Collection[Kernels]
    ) -> Iterator[tuple[Kernels, Tensor]]:
        """The answers of several plans; blocks that they share run once."""
        for plan, x in self.outputs(features, plans):
            yield plan, self.decoder.head(x)

    def outputs(
        self,
        features: Sequence[Tensor],
        wanted: Collection[Kernels],
        begun: Kernels = (),
        x: Tensor | None = None,
    ) -> Iterator[tuple[Kernels, Tensor]]:
        """The outputs of the last blocks of these beginnings of plans."""
        x = features[-1] if x is None else x
        if begun in wanted:
            yield begun, x
        number = len(begun)
        following = dict.fromkeys(
            each[: number + 1] for each in wanted if len(each) > number and each[:number] == begun
        )
        if following:
            read = self.decoder.block_input(number, x, features)
        for kernels in following:
            yield from self.outputs(features, wanted, kernels, self.block(kernels)(*read))

    def assembled(self, plan: Kernels) -> Decoder:
        """One plan as a decoder of its own; other layers are copies of the trained decoder's."""
        whole = self.decoder
        decoder = Decoder(whole.network, DecoderPlan(plan), whole.organs, whole.background)
        decoder.transpconvs.load_state_dict(whole.transpconvs.state_dict())
        decoder.seg_layers.load_state_dict(whole.seg_layers.state_dict())
        for number, stage in enumerate(decoder.stages):
            stage.load_state_dict(self.block(plan[: number + 1]).state_dict())
        return decoder
