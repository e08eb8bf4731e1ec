"""ProjectionHead: the form of anomaly heads that version 0.1 learned, to read and run those.

Every stage is projected to a few channels; from the deepest up these are enlarged and added. Heads of today
are decoders of projections (DecoderPlan.projections).

In:  feature maps, finest first
Out: logits (batch, class, z, y, x), class 0 for nothing
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from continual_segment.networks.blocks import initialise
from continual_segment.networks.decoder import Decoder
from continual_segment.networks.decoder_plan import DecoderPlan, true_count
from continual_segment.networks.encoder import NetworkConfig

LARGEST_SHARE = 0.04
"""Of the parameters of nnU-Net's decoder for the same encoder and classes."""
LARGEST_WIDTH = 32


class ProjectionHead(nn.Module):
    """One head; used as a decoder."""

    def __init__(self, network: NetworkConfig, classes: int) -> None:
        """`classes` without that for nothing."""
        super().__init__()
        self.network = network
        width = head_width(network, classes)
        self.projections = nn.ModuleList(nn.Conv3d(f, width, 1) for f in network.features)
        self.head = nn.Conv3d(width, classes + 1, 1)
        self.apply(initialise)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        return self.head(self.finest(features))

    def finest(self, features: Sequence[Tensor]) -> Tensor:
        """What goes into the last, linear layer."""
        x = self.projections[-1](features[-1])
        for projection, finer in zip(list(self.projections)[-2::-1], features[-2::-1], strict=True):
            coarse = functional.leaky_relu(x, 0.01)
            x = functional.interpolate(coarse, size=finer.shape[2:], mode="trilinear") + projection(finer)
        return functional.leaky_relu(x, 0.01)


def head_width(network: NetworkConfig, classes: int) -> int:
    """The widest projections that keep a head within its share of a decoder."""
    decoder = true_count(Decoder(network, DecoderPlan.nnunet(network), classes))
    per_channel = sum(network.features) + len(network.features) + classes + 1
    return max(1, min(LARGEST_WIDTH, int((LARGEST_SHARE * decoder - classes - 1) // per_channel)))
