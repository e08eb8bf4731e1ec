"""The stages of nnU-Net's ResidualEncoderUNet: blocks of two convolutions beside a skip connection.

Module names are those of dynamic-network-architectures (BasicBlockD, after ResNet-D), so its checkpoints load
without renaming layers.
"""

from __future__ import annotations

from torch import Tensor, nn

from continual_segment.networks.blocks import ConvBlock, Kernel

SAME: Kernel = (1, 1, 1)


class ResidualBlock(nn.Module):
    """Two convolutions whose output is added to the input."""

    def __init__(self, inputs: int, outputs: int, kernel: Kernel, stride: Kernel = SAME) -> None:
        super().__init__()
        self.conv1 = ConvBlock(inputs, outputs, kernel, stride)
        self.conv2 = ConvBlock(outputs, outputs, kernel, activated=False)
        self.nonlin2 = nn.LeakyReLU(0.01, inplace=True)
        self.skip = skip_connection(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.nonlin2(self.conv2(self.conv1(x)) + self.skip(x))


def skip_connection(inputs: int, outputs: int, stride: Kernel) -> nn.Sequential:
    """The input as it is, pooled where the block has a stride, projected where it changes the width."""
    layers: list[nn.Module] = []
    if stride != SAME:
        layers.append(nn.AvgPool3d(stride, stride))
    if inputs != outputs:
        layers.append(ConvBlock(inputs, outputs, SAME, bias=False, activated=False))
    return nn.Sequential(*layers)


class ResidualStage(nn.Module):
    """Residual blocks in a row; only the first changes width and resolution."""

    def __init__(self, inputs: int, outputs: int, kernel: Kernel, stride: Kernel, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            ResidualBlock(inputs, outputs, kernel, stride),
            *(ResidualBlock(outputs, outputs, kernel) for _ in range(blocks - 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)

    @property
    def last_activation(self) -> nn.Module:
        last = self.blocks[-1]
        assert isinstance(last, ResidualBlock)
        return last.nonlin2


def zero_last_norm(module: nn.Module) -> None:
    """Let a residual block begin as its skip connection, as in nnU-Net; for `nn.Module.apply`."""
    if isinstance(module, ResidualBlock):
        nn.init.zeros_(module.conv2.norm.weight)
        nn.init.zeros_(module.conv2.norm.bias)
