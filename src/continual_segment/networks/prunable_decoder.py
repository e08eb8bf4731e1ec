"""PrunableDecoder: a decoder whose blocks can each be replaced by a projection, 2 ** blocks decoders in one.

A mask names, deepest block first, the blocks that are replaced by their student. Blocks behind a student read
other features than those they were trained on. So, for each student, the decoder can be copied, and the finer
blocks and heads of the copy adapted to the student. A path takes each block from the copy that is adapted to
the nearest student before it, and from the decoder itself where there is none: the path without students is
the decoder, bit by bit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import product
from typing import cast

from torch import Tensor, nn

from continual_segment.networks.block_form import BlockForm
from continual_segment.networks.blocks import ConvStack, initialise
from continual_segment.networks.decoder import Decoder, conv_block
from continual_segment.networks.decoder_plan import DecoderPlan

Mask = tuple[bool, ...]
"""Per block, deepest first: is it a projection's turn?"""
Parts = tuple[Tensor, Tensor]
"""Enlarged features and the encoder's: what a block reads."""
NO_STUDENT = -1


class PrunableDecoder(nn.Module):
    """A decoder, students for its blocks, and copies of it that are adapted to them."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.network, self.organs, self.plan = decoder.network, decoder.organs, decoder.plan
        self.decoders = nn.ModuleDict({str(NO_STUDENT): decoder})
        self.students = nn.ModuleDict()

    @property
    def whole(self) -> Decoder:
        """The decoder without students."""
        return cast(Decoder, self.decoders[str(NO_STUDENT)])

    @property
    def no_students(self) -> Mask:
        return (False,) * len(self.plan.kernels)

    @property
    def replaceable(self) -> tuple[int, ...]:
        """Blocks that are no projections yet."""
        return tuple(number for number, name in enumerate(self.plan.kernels) if name != "projection")

    @property
    def masks(self) -> list[Mask]:
        """Every path; the one without students first."""
        choices = [
            (False, True) if n in self.replaceable else (False,) for n in range(len(self.plan.kernels))
        ]
        return list(product(*choices))

    def add_student(self, number: int) -> ConvStack:
        """A new projection for a block."""
        student = cast(ConvStack, conv_block(self.network, number, BlockForm("projection")))
        self.students[str(number)] = student.apply(initialise)
        return student

    def add_copy(self, number: int, mask: Mask) -> Decoder:
        """A copy of the decoder that is to get used to the student of a block, on a path to it."""
        source = self.used_to(mask, number)
        copy = Decoder(self.network, self.plan, self.organs, source.background)
        copy.load_state_dict(source.state_dict())
        self.decoders[str(number)] = copy
        return copy

    def used_to(self, mask: Mask, number: int) -> Decoder:
        """The decoder from which a path takes the blocks after its first `number`."""
        known = [n for n in range(number) if mask[n] and str(n) in self.decoders]
        return cast(Decoder, self.decoders[str(known[-1] if known else NO_STUDENT)])

    def block(self, number: int, mask: Mask) -> nn.Module:
        if mask[number]:
            return self.students[str(number)]
        return self.used_to(mask, number).stages[number]

    def block_input(self, number: int, x: Tensor, features: Sequence[Tensor], mask: Mask) -> Parts:
        return self.used_to(mask, number).block_input(number, x, features)

    def input_of(self, number: int, features: Sequence[Tensor], mask: Mask) -> Parts:
        """What a block reads at the end of a path."""
        x = features[-1]
        for before in range(number):
            x = self.block(before, mask)(*self.block_input(before, x, features, mask))
        return self.block_input(number, x, features, mask)

    def forward_supervised(self, features: Sequence[Tensor], mask: Mask) -> list[Tensor]:
        """Logits of every block of a path, finest first."""
        x, outputs = features[-1], []
        for number in range(len(mask)):
            x = self.block(number, mask)(*self.block_input(number, x, features, mask))
            outputs.append(self.used_to(mask, number + 1).seg_layers[number](x))
        return outputs[::-1]

    def answers(self, features: Sequence[Tensor], masks: Collection[Mask]) -> Iterator[tuple[Mask, Tensor]]:
        """Logits of many paths; what paths have in common is computed once."""
        yield from self._answers(features[-1], features, (), set(masks))

    def _answers(
        self, x: Tensor, features: Sequence[Tensor], begun: Mask, masks: set[Mask]
    ) -> Iterator[tuple[Mask, Tensor]]:
        number = len(begun)
        if number == len(self.plan.kernels):
            yield begun, self.used_to(begun, number).seg_layers[-1](x)
            return
        read = self.block_input(number, x, features, begun)
        for swapped in (False, True):
            path = (*begun, swapped)
            ahead = {mask for mask in masks if mask[number] == swapped}
            if ahead:
                yield from self._answers(self.block(number, path)(*read), features, path, ahead)

    def plan_of(self, mask: Mask) -> DecoderPlan:
        pairs = zip(self.plan.kernels, mask, strict=True)
        return DecoderPlan(tuple("projection" if swapped else name for name, swapped in pairs))

    def decoder(self, mask: Mask) -> Decoder:
        """One path as a decoder of its own."""
        decoder = Decoder(self.network, self.plan_of(mask), self.organs)
        for number in range(len(mask)):
            before, behind = self.used_to(mask, number), self.used_to(mask, number + 1)
            decoder.transpconvs[number].load_state_dict(before.transpconvs[number].state_dict())
            decoder.stages[number].load_state_dict(self.block(number, mask).state_dict())
            decoder.seg_layers[number].load_state_dict(behind.seg_layers[number].state_dict())
        return decoder
