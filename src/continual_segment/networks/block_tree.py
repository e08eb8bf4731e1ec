"""BlockTree: smaller blocks for a trained decoder, and all decoders that can be assembled from them.

A plan names one form per block, deepest first. What a block reads depends on the blocks before it, so a
block is stored by the beginning of the plans it belongs to: ("2d", "projection") is the projection behind a
2D block. Blocks with the trained decoder's own form are its blocks, wherever they are. A block with a width
has its own transposed convolution, which enlarges so many channels.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import cast

from torch import Tensor, nn

from continual_segment.networks.block_form import BlockForm
from continual_segment.networks.blocks import ConvStack, ReducedStack
from continual_segment.networks.decoder import Decoder, conv_block
from continual_segment.networks.decoder_plan import DecoderPlan
from continual_segment.networks.layers import FastTransposedConv

Kernels = tuple[str, ...]
"""Of a whole plan, or of its deepest blocks."""
Parts = tuple[Tensor, Tensor]
"""Enlarged features and the encoder's: what a block reads."""


class BlockTree(nn.Module):
    """A trained decoder and smaller blocks in its place."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder, self.blocks, self.enlargers = decoder, nn.ModuleDict(), nn.ModuleDict()

    @property
    def whole(self) -> Kernels:
        """The trained decoder's own plan."""
        return self.decoder.plan.kernels

    def smaller_forms(self, number: int, offered: Sequence[BlockForm]) -> list[str]:
        """Those of some forms that have fewer weights than the decoder's own has in this block."""
        own = self.weights(number, BlockForm.of(self.whole[number]))
        return [form.name for form in offered if self.weights(number, form) < own]

    def has(self, kernels: Kernels) -> bool:
        """Whether the last of these blocks is there."""
        return kernels[-1] == self.whole[len(kernels) - 1] or "-".join(kernels) in self.blocks

    def weights(self, number: int, form: BlockForm) -> int:
        """Of the convolutions of a block."""
        return sum(conv.weights for conv in form.convs(self.decoder.network, number))

    def add_block(self, kernels: Kernels) -> ConvStack | ReducedStack:
        """A new block at the end of these."""
        number, form, network = len(kernels) - 1, BlockForm.of(kernels[-1]), self.decoder.network
        block = conv_block(network, number, form)
        self.blocks["-".join(kernels)] = block
        if form.width is not None:
            enlarger = FastTransposedConv(
                network.features[-1 - number], form.width, network.strides[-1 - number]
            )
            self.enlargers["-".join(kernels)] = enlarger
        return block

    def block(self, kernels: Kernels) -> ConvStack | ReducedStack:
        """The last of these blocks."""
        number = len(kernels) - 1
        own = kernels[-1] == self.whole[number]
        block = self.decoder.stages[number] if own else self.blocks["-".join(kernels)]
        return cast(ConvStack | ReducedStack, block)

    def enlarger(self, kernels: Kernels) -> FastTransposedConv:
        """The transposed convolution before the last of these blocks."""
        name = "-".join(kernels)
        found = self.enlargers[name] if name in self.enlargers else self.decoder.transpconvs[len(kernels) - 1]
        return cast(FastTransposedConv, found)

    def inputs(
        self, features: Sequence[Tensor], wanted: Collection[Kernels]
    ) -> Iterator[tuple[Kernels, Parts]]:
        """What the last of these blocks read; the blocks before them are in the tree."""
        for begun, x in self.outputs(features, {kernels[:-1] for kernels in wanted}):
            for kernels in (each for each in wanted if each[:-1] == begun):
                yield kernels, self.read_by(kernels, x, features)

    def read_by(self, kernels: Kernels, x: Tensor, features: Sequence[Tensor]) -> Parts:
        """What the last of these blocks reads behind the output of the one before."""
        return self.enlarger(kernels)(x), features[-1 - len(kernels)]

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
        for kernels in following:
            written = self.block(kernels)(*self.read_by(kernels, x, features))
            yield from self.outputs(features, wanted, kernels, written)

    def assembled(self, plan: Kernels) -> Decoder:
        """One plan as a decoder of its own; heads are copies of the trained decoder's."""
        whole = self.decoder
        decoder = Decoder(whole.network, DecoderPlan(plan), whole.organs, whole.background)
        decoder.seg_layers.load_state_dict(whole.seg_layers.state_dict())
        for number, stage in enumerate(decoder.stages):
            begun = plan[: number + 1]
            stage.load_state_dict(self.block(begun).state_dict())
            decoder.transpconvs[number].load_state_dict(self.enlarger(begun).state_dict())
        return decoder
