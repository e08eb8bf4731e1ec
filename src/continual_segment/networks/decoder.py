"""A decoder: reads the frozen encoder's features and names one dataset's organs.

In:  feature maps, finest first
Out: logits (batch, organ, z, y, x), channel 0 background; with deep supervision one per block, finest first
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from continual_segment.networks.blocks import ConvStack, initialise
from continual_segment.networks.decoder_plan import DecoderPlan
from continual_segment.networks.general_encoder import NetworkConfig


class Decoder(nn.Module):
    """nnU-Net's decoder with the kernels of a plan."""

    def __init__(self, network: NetworkConfig, plan: DecoderPlan, organs: int) -> None:
        super().__init__()
        self.network, self.plan, self.organs = network, plan, organs
        widths = network.features[::-1]  # deepest first, as the blocks
        pairs = list(pairwise(widths))
        strides = network.strides[:0:-1]
        self.transpconvs = nn.ModuleList(
            nn.ConvTranspose3d(deep, width, stride, stride)
            for (deep, width), stride in zip(pairs, strides, strict=True)
        )
        self.stages = nn.ModuleList(
            ConvStack(2 * width, width, kernels * network.convs_per_stage)
            for (_, width), kernels in zip(pairs, plan.block_kernels(network), strict=True)
        )
        self.seg_layers = nn.ModuleList(nn.Conv3d(width, organs + 1, 1) for _, width in pairs)
        self.apply(initialise)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        return self.seg_layers[-1](self._blocks(features)[-1])

    def forward_supervised(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Logits of every block, finest first: for training alone."""
        outputs = self._blocks(features)
        return [head(x) for head, x in zip(self.seg_layers, outputs, strict=True)][::-1]

    def _blocks(self, features: Sequence[Tensor]) -> list[Tensor]:
        x, outputs = features[-1], []
        for block in range(len(self.stages)):
            x = torch.cat((self.transpconvs[block](x), features[-2 - block]), dim=1)
            x = self.stages[block](x)
            outputs.append(x)
        return outputs
