"""Encoder and decoder as one network: what is trained as a whole, and what is not ours to freeze."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from continual_segment.networks.blocks import ConvBlock, ConvStack
from continual_segment.networks.decoder import Decoder
from continual_segment.networks.general_encoder import GeneralEncoder


class SegmentationNetwork(nn.Module):
    """nnU-Net: scan window in, logits out."""

    def __init__(self, encoder: GeneralEncoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, window: Tensor) -> Tensor:
        return self.decoder(self.encoder(window))

    def freeze(self) -> SegmentationNetwork:
        """No gradient, evaluation mode: a teacher."""
        return self.eval().requires_grad_(False)

    def trainable_copy(self) -> SegmentationNetwork:
        """The same weights in tensors of their own that may change."""
        return copy.deepcopy(self).train().requires_grad_(True)


class Taps:
    """Catches what leaves the last norm of every encoder stage and decoder block, before its activation."""

    def __init__(self, network: SegmentationNetwork) -> None:
        self.caught: dict[int, Tensor] = {}
        stacks = [module for module in network.modules() if isinstance(module, ConvStack)]
        for number, stack in enumerate(stacks):
            last = stack.convs[-1]
            assert isinstance(last, ConvBlock)
            last.norm.register_forward_hook(self._catcher(number))

    def _catcher(self, number: int):  # type: ignore[no-untyped-def]
        def catch(module: nn.Module, inputs: object, output: Tensor) -> None:
            self.caught[number] = output.clone()  # the activation works in place

        return catch

    def take(self) -> list[Tensor]:
        """What the last pass left, encoder stages first; kept no longer than that."""
        found, self.caught = self.caught, {}
        return [found[number] for number in sorted(found)]
