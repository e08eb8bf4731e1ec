"""A decoder: reads the frozen encoder's features and names one dataset's organs.

In:  feature maps, finest first
Out: logits (batch, organ, z, y, x), channel 0 background unless there is none; with deep supervision one per
     block, finest first
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from torch import Tensor, nn

from continual_segment.networks.block_form import BlockForm
from continual_segment.networks.blocks import ConvStack, ReducedStack, initialise
from continual_segment.networks.decoder_plan import DecoderPlan
from continual_segment.networks.encoder import NetworkConfig
from continual_segment.networks.layers import FastTransposedConv


class BlockDecoder(nn.Module):
    """nnU-Net's decoder with blocks of any kind; `make_block` gives the one of a number, deepest first."""

    def __init__(
        self,
        network: NetworkConfig,
        organs: int,
        make_block: Callable[[int], nn.Module],
        background: bool = True,
        enlarged: Sequence[int] | None = None,
    ) -> None:
        """`enlarged` are the channels of every block's enlarged input, if not those of the features."""
        super().__init__()
        self.network, self.organs, self.background = network, organs, background
        pairs = list(pairwise(network.features[::-1]))  # deepest first, as the blocks
        strides = network.strides[:0:-1]
        self.transpconvs = nn.ModuleList(
            FastTransposedConv(deep, outputs, stride)
            for (deep, _), outputs, stride in zip(
                pairs, enlarged or network.features[-2::-1], strides, strict=True
            )
        )
        self.stages = nn.ModuleList(make_block(number) for number in range(len(pairs)))
        self.seg_layers = nn.ModuleList(nn.Conv3d(width, self.outputs, 1) for _, width in pairs)
        self.apply(initialise)

    @property
    def outputs(self) -> int:
        """Channels: one per organ and, unless organs are regions that may overlap, the background."""
        return self.organs + self.background

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        return self.head(self.finest(features))

    def finest(self, features: Sequence[Tensor]) -> Tensor:
        """All but the last layer: what it reads, (batch, channel, z, y, x)."""
        return self._blocks(features)[-1]

    @property
    def head(self) -> nn.Conv3d:
        """The last layer, 1x1x1: from the finest features to logits."""
        return self.seg_layers[-1]  # type: ignore[return-value]

    def forward_supervised(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Logits of every block, finest first: for training alone."""
        outputs = self._blocks(features)
        return [head(x) for head, x in zip(self.seg_layers, outputs, strict=True)][::-1]

    def block_input(self, number: int, x: Tensor, features: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """What a block reads: the output of the one before, enlarged, and the encoder's features."""
        return self.transpconvs[number](x), features[-2 - number]

    def _blocks(self, features: Sequence[Tensor]) -> list[Tensor]:
        x, outputs = features[-1], []
        for number, stage in enumerate(self.stages):
            x = stage(*self.block_input(number, x, features))
            outputs.append(x)
        return outputs


class Decoder(BlockDecoder):
    """nnU-Net's decoder with the blocks of a plan."""

    def __init__(
        self, network: NetworkConfig, plan: DecoderPlan, organs: int, background: bool = True
    ) -> None:
        forms = plan.forms_of(network)
        super().__init__(
            network,
            organs,
            lambda number: conv_block(network, number, forms[number]),
            background,
            [form.enlarged_width(network, number) for number, form in enumerate(forms)],
        )
        self.plan = plan

    @property
    def last_activations(self) -> list[nn.Module]:
        """Of every block, deepest first."""
        return [stage.last_activation for stage in self.stages]  # type: ignore[misc]


def conv_block(network: NetworkConfig, number: int, form: BlockForm) -> ConvStack | ReducedStack:
    """The convolutions of one decoder block."""
    features, depth = network.features[-2 - number], network.decoder_depths[number]
    kernels = form.kernels(network, number)
    if form.width is not None:
        return ReducedStack(features, kernels, form.width, depth)
    return ConvStack(2 * features, features, kernels * depth)
