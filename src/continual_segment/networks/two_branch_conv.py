"""A convolution with an old, frozen branch and a new one that learns (RCIL).

Both branches are added before the norm they share, so they merge exactly: a mean of two linear maps is the
map with the mean of the weights. For the same reason one convolution with mixed weights does for both.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from continual_segment.networks.layers import SplitInputConv


class TwoBranchConv(SplitInputConv):
    """Its own weights are the new branch; the old branch is stored in buffers, which no optimiser changes.

    While it trains, each output channel takes the old branch, the new one or their mean, a third of the time
    each; else the mean. What is drawn follows from the seed and the number of the pass, which is part of the
    state, so that a resumed run continues with the same draws.
    """

    old_weight: Tensor
    old_bias: Tensor | None
    passes: Tensor

    def __init__(self, conv: nn.Conv3d, seed: int = 0) -> None:
        super().__init__(
            conv.in_channels,
            conv.out_channels,
            conv.kernel_size,  # type: ignore[arg-type]
            conv.stride,  # type: ignore[arg-type]
            conv.padding,  # type: ignore[arg-type]
            bias=conv.bias is not None,
        )
        self.seed = seed
        self.register_buffer("old_weight", conv.weight.detach().clone())
        self.register_buffer("old_bias", None if conv.bias is None else conv.bias.detach().clone())
        self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
        self.load_new(conv.weight, conv.bias)

    @torch.no_grad()
    def load_new(self, weight: Tensor, bias: Tensor | None) -> None:
        """Let the new branch start from these weights."""
        self.weight.copy_(weight)
        if self.bias is not None and bias is not None:
            self.bias.copy_(bias)

    def forward(self, *parts: Tensor) -> Tensor:
        joined = torch.cat(parts, dim=1)
        return self._convolve(joined, *self.mixed(self.shares()))

    def shares(self) -> Tensor:
        """How much the old branch counts in every output channel."""
        if not self.training:
            return torch.full((self.out_channels,), 0.5, device=self.weight.device)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + int(self.passes))
        self.passes += 1
        drawn = torch.rand(self.out_channels, generator=generator)
        shares = torch.where(drawn < 0.33, 1.0, torch.where(drawn < 0.66, 0.0, 0.5))
        return shares.to(self.weight.device)

    def mixed(self, shares: Tensor) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the one convolution that both branches amount to."""
        share = shares.to(self.weight.dtype)
        per_channel = share.reshape(-1, 1, 1, 1, 1)
        weight = per_channel * self.old_weight + (1 - per_channel) * self.weight
        if self.bias is None or self.old_bias is None:
            return weight, None
        return weight, share * self.old_bias + (1 - share) * self.bias

    @torch.no_grad()
    def merged(self) -> SplitInputConv:
        """The plain convolution that answers as this one does in evaluation."""
        conv = SplitInputConv(
            self.in_channels,
            self.out_channels,
            self.kernel_size,  # type: ignore[arg-type]
            self.stride,  # type: ignore[arg-type]
            self.padding,  # type: ignore[arg-type]
            bias=self.bias is not None,
        )
        weight, bias = self.mixed(torch.full((self.out_channels,), 0.5, device=self.weight.device))
        conv.weight.copy_(weight)
        if conv.bias is not None and bias is not None:
            conv.bias.copy_(bias)
        return conv
