"""Encoder and decoder as one network: what is trained as a whole, and what is not ours to freeze."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from continual_segment.networks.decoder import Decoder
from continual_segment.networks.encoder import GeneralEncoder


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


@contextmanager
def tapped(network: SegmentationNetwork) -> Iterator[list[Tensor]]:
    """Collects the features before the last activation of every encoder stage and decoder block in a pass.

    Encoder stages come first, finest first, then decoder blocks, deepest first.
    """
    caught: list[Tensor] = []

    def catch(module: nn.Module, inputs: tuple[Tensor]) -> None:
        caught.append(inputs[0].clone())  # the activation works in place

    activations = (*network.encoder.last_activations, *network.decoder.last_activations)
    hooks = [activation.register_forward_pre_hook(catch) for activation in activations]
    try:
        yield caught
    finally:
        for hook in hooks:  # a copy of the network would catch, and keep, its own passes too
            hook.remove()
