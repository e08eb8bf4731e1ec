"""MixedDecoder: every kernel in every block at once, so that a search can weigh them against each other.

A block's answer is the mean of what its four kernels answer, weighted by the softmax of the block's row of
`alpha`. While alpha is zero, each counts a quarter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from continual_segment.networks.block_form import BlockForm, KernelName
from continual_segment.networks.decoder import BlockDecoder, conv_block
from continual_segment.networks.decoder_plan import DecoderPlan, block_multiply_adds, multiply_adds
from continual_segment.networks.encoder import NetworkConfig

CHOICES: tuple[KernelName, ...] = ("projection", "2d", "p3d", "3d")  # fewer parameters first


class MixedBlock(nn.Module):
    """All kernels on the same input; the caller sets their weights before each pass."""

    def __init__(self, network: NetworkConfig, number: int) -> None:
        super().__init__()
        self.kernels = nn.ModuleList(conv_block(network, number, BlockForm(name)) for name in CHOICES)
        self.weights: Tensor | None = None

    def forward(self, *parts: Tensor) -> Tensor:
        assert self.weights is not None
        mixed = self.weights[0] * self.kernels[0](*parts)
        for weight, kernel in zip(self.weights[1:], list(self.kernels)[1:], strict=True):
            mixed = mixed + weight * kernel(*parts)
        return mixed


class MixedDecoder(BlockDecoder):
    """A decoder whose blocks are mixtures; `alpha` (block, kernel) is no weight and has its own optimiser."""

    def __init__(self, network: NetworkConfig, organs: int) -> None:
        super().__init__(network, organs, lambda number: MixedBlock(network, number))
        self.alpha = nn.Parameter(torch.zeros(len(self.stages), len(CHOICES)), requires_grad=False)

    def _blocks(self, features: Sequence[Tensor]) -> list[Tensor]:
        for block, weights in zip(self.stages, self.alpha.softmax(dim=1), strict=True):
            block.weights = weights
        return super()._blocks(features)

    @property
    def kernel_weights(self) -> list[list[float]]:
        """Per block, deepest first, how much each kernel counts."""
        return self.alpha.detach().softmax(dim=1).tolist()

    @property
    def plan(self) -> DecoderPlan:
        """The kernel that counts most in each block; between equals the one with fewer parameters."""
        rows = self.alpha.detach().tolist()
        return DecoderPlan(tuple(CHOICES[row.index(max(row))] for row in rows))

    def expected_cost(self, window: Sequence[int]) -> Tensor:
        """Multiply-adds of the blocks, weighted as the kernels are, per multiply-add of nnU-Net's decoder."""
        costs = [
            [block_multiply_adds(BlockForm(name), self.network, window, number) for name in CHOICES]
            for number in range(len(self.stages))
        ]
        nnunet = multiply_adds(DecoderPlan.nnunet(self.network), self.network, window, self.organs)
        shares = torch.tensor(costs, dtype=torch.float64) / nnunet  # on the CPU: not every device has float64
        return (self.alpha.softmax(dim=1) * shares.to(self.alpha)).sum()
