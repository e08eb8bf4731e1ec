"""Fit small blocks to the blocks of a trained decoder in closed form.

The convolutions of a small block are solved one after the other, by ridge regression: from what a convolution
reads in the small decoder, reproduce what the trained decoder's convolution writes for the same patch. Norms
are copied. So errors of earlier blocks are corrected as far as a linear map can, without any update.

In:  a BlockTree, beginnings of plans
Out: a block for every smaller kernel behind each of them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from continual_segment.learning.train_decoder import FrozenStep
from continual_segment.networks import Decoder
from continual_segment.networks.block_tree import BlockTree, Kernels, Parts
from continual_segment.networks.blocks import ConvBlock, ConvStack, Kernel
from continual_segment.networks.decoder_plan import KERNELS, KernelName
from continual_segment.training.distributed import is_main, share_weights

FIT_SEED = 30
"""Of the patches behind fits: other ones than those that decoders are trained on."""


@dataclass(frozen=True)
class FitConfig:
    """How blocks are fitted."""

    batches: int = 6
    """Training batches behind a fit."""
    samples: int = 4000
    """Voxels of each batch."""
    ridge: float = 1e-3
    """Penalty of the weights, as a share of the mean square of what they multiply."""

    def __post_init__(self) -> None:
        if min(self.batches, self.samples) < 1 or self.ridge <= 0:
            raise ValueError("batches and samples are at least 1, ridge is above 0.")


class NormalEquations:
    """Sums of a linear regression from neighbourhoods of voxels to the values of a convolution."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.gram: Tensor | None = None
        self.moments: Tensor | None = None

    def add(self, read: Tensor, written: Tensor, voxels: Tensor) -> None:
        """One batch: the input (batch, channel, z, y, x), the wanted output, and which voxels count."""
        x = neighbourhoods(read, self.kernel, voxels)
        x = torch.cat((x, x.new_ones(len(x), 1)), dim=1)
        y = written[voxels[:, 0], :, voxels[:, 1], voxels[:, 2], voxels[:, 3]]
        gram, moments = (x.T @ x).double(), (x.T @ y).double()
        self.gram = gram if self.gram is None else self.gram + gram
        self.moments = moments if self.moments is None else self.moments + moments

    def solve(self, ridge: float) -> tuple[Tensor, Tensor]:
        """Weights (output, channel, z, y, x) and biases."""
        assert self.gram is not None
        assert self.moments is not None
        penalty = ridge * self.gram.diagonal().mean() * torch.eye(len(self.gram)).to(self.gram)
        solved = torch.linalg.solve(self.gram + penalty, self.moments).float()
        return solved[:-1].T.reshape(solved.shape[1], -1, *self.kernel), solved[-1]


def neighbourhoods(x: Tensor, kernel: Kernel, voxels: Tensor) -> Tensor:
    """What a convolution of this kernel reads at some voxels: (voxel, channel and place)."""
    z, y, x_size = (size // 2 for size in kernel)
    padded = functional.pad(x, (x_size, x_size, y, y, z, z))
    windows = padded.unfold(2, kernel[0], 1).unfold(3, kernel[1], 1).unfold(4, kernel[2], 1)
    return windows[voxels[:, 0], :, voxels[:, 1], voxels[:, 2], voxels[:, 3]].flatten(1)


@dataclass(frozen=True, eq=False)
class NewBlock:
    """A smaller block on its way into a tree."""

    begun: Kernels
    """The blocks before it."""
    convs: Sequence[ConvBlock]
    stands_for: tuple[int, ...]
    """Per convolution, the number of the trained one that it reproduces; P3D has two for each."""

    @classmethod
    def add_to(cls, tree: BlockTree, begun: Kernels, name: KernelName) -> NewBlock:
        """Its norms are those of the trained block."""
        trained, kernels = convolutions(tree.decoder.stages[len(begun)]), KERNELS[name]
        convs = convolutions(tree.add_block((*begun, name)))
        stands_for = tuple(place // len(kernels) for place in range(len(convs)))
        for conv, number in zip(convs, stands_for, strict=True):
            conv.norm.load_state_dict(trained[number].norm.state_dict())
        return cls(begun, convs, stands_for)

    def kernel(self, place: int) -> Kernel:
        z, y, x = self.convs[place].conv.kernel_size
        return z, y, x

    def read_by(self, place: int, parts: Parts) -> Tensor:
        """What one of its convolutions reads; those before it are fitted."""
        x = torch.cat(parts, dim=1)
        for conv in self.convs[:place]:
            x = conv(x)
        return x


def convolutions(block: nn.Module) -> list[ConvBlock]:
    assert isinstance(block, ConvStack)
    return [conv for conv in block.convs if isinstance(conv, ConvBlock)]


@torch.no_grad()
def fit_blocks(step: FrozenStep, tree: BlockTree, beginnings: Sequence[Kernels], config: FitConfig) -> None:
    """Add a fitted block for every smaller kernel behind each of these beginnings, all of one length."""
    number = len(beginnings[0])
    new = [
        NewBlock.add_to(tree, begun, name) for begun in beginnings for name in tree.smaller_kernels(number)
    ]
    tree.to(step.settings.device)
    places = max((len(block.convs) for block in new), default=0) if is_main() else 0
    for place in range(places):
        fit_convolutions(step, tree, [block for block in new if place < len(block.convs)], place, config)
    share_weights(tree)


def fit_convolutions(
    step: FrozenStep, tree: BlockTree, blocks: Sequence[NewBlock], place: int, config: FitConfig
) -> None:
    """Solve the convolution at one place of several blocks of one number."""
    beginnings, number = {block.begun for block in blocks}, len(blocks[0].begun)
    equations = [NormalEquations(block.kernel(place)) for block in blocks]
    for features, draw in feature_batches(step, config):
        written = written_by_convolutions(tree.decoder, number, features)
        voxels = draw_voxels(written[0], config.samples, draw)
        parts = dict(tree.inputs(features, beginnings))
        for block, sums in zip(blocks, equations, strict=True):
            read = block.read_by(place, parts[block.begun])
            sums.add(read, written[block.stands_for[place]], voxels)
    for block, sums in zip(blocks, equations, strict=True):
        weight, bias = sums.solve(config.ridge)
        conv = block.convs[place].conv
        conv.weight.copy_(weight)
        if conv.bias is not None:
            conv.bias.copy_(bias)


def feature_batches(step: FrozenStep, config: FitConfig) -> Iterator[tuple[list[Tensor], torch.Generator]]:
    """The encoder's features of training batches, and what draws voxels of each."""
    settings = replace(step.settings, iterations=config.batches, seed=step.settings.seed + FIT_SEED)
    patches = step.source.training(settings)
    for number in range(config.batches):
        images, _ = patches[number]
        yield step.features(images.to(settings.device)), torch.Generator().manual_seed(number)


def written_by_convolutions(decoder: Decoder, number: int, features: Sequence[Tensor]) -> list[Tensor]:
    """What each convolution of a block writes, before its norm."""
    x = features[-1]
    for before in range(number):
        x = decoder.stages[before](*decoder.block_input(before, x, features))
    x, written = torch.cat(decoder.block_input(number, x, features), dim=1), []
    for conv in convolutions(decoder.stages[number]):
        written.append(conv.conv(x))
        x = conv.nonlin(conv.norm(written[-1]))
    return written


def draw_voxels(x: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """Indices (voxel, 4) of batch, z, y and x."""
    sizes = (x.shape[0], *x.shape[2:])
    columns = [torch.randint(size, (count,), generator=draw) for size in sizes]
    return torch.stack(columns, dim=1).to(x.device)
