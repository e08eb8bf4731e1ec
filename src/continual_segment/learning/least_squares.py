"""Fit small blocks to the blocks of a trained decoder in closed form.

The convolutions of a small block are solved one after the other, by ridge regression: from what a convolution
reads in the small decoder, reproduce what the trained decoder's convolution writes for the same patch. Norms
are copied. So errors of earlier blocks are corrected as far as a linear map can, without any update.

In:  a BlockTree, beginnings of plans
Out: the last block of each of them
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from continual_segment.learning.low_rank import DecoderDirections, set_kernels
from continual_segment.learning.train_decoder import FrozenStep
from continual_segment.networks import Decoder
from continual_segment.networks.block_tree import BlockTree, Kernels, Parts
from continual_segment.networks.blocks import ConvBlock, ConvStack, Kernel, ReducedConv, ReducedStack
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

    kernels: Kernels
    """The beginning of plans that it ends."""
    convs: Sequence[ConvBlock | ReducedConv]
    stands_for: tuple[int, ...]
    """Per convolution, the number of the trained one that it reproduces; P3D has two for each."""

    @classmethod
    def add_to(cls, tree: BlockTree, kernels: Kernels, kept: DecoderDirections) -> NewBlock:
        """Its norms are those of the trained block; a block with a width reads what is most important."""
        number, block = len(kernels) - 1, tree.add_block(kernels)
        trained, convs = convolutions(tree.decoder.stages[number]), convolutions(block)
        if isinstance(block, ReducedStack):
            kept.reduce(number, block, tree.enlarger(kernels))
        each = len(convs) // len(trained)
        stands_for = tuple(place // each for place in range(len(convs)))
        for conv, replaced in zip(convs, stands_for, strict=True):
            conv.norm.load_state_dict(trained[replaced].norm.state_dict())
        return cls(kernels, convs, stands_for)

    def kernel(self, place: int) -> Kernel:
        """Of the convolution to solve; where several follow each other, of all of them together."""
        conv = self.convs[place]
        together = conv.kernels if isinstance(conv, ReducedConv) else [conv.conv]
        z, y, x = (max(sides) for sides in zip(*(each.kernel_size for each in together), strict=True))
        return z, y, x

    def read_by(self, place: int, parts: Parts) -> Tensor:
        """What the kernel of one of its convolutions reads; those before it are fitted."""
        read: tuple[Tensor, ...] = parts
        for conv in self.convs[:place]:
            read = (conv(*read),)
        conv = self.convs[place]
        return conv.reduced(*read) if isinstance(conv, ReducedConv) else torch.cat(read, dim=1)

    def set_kernel(self, place: int, weight: Tensor, bias: Tensor) -> None:
        conv = self.convs[place]
        if isinstance(conv, ReducedConv):
            set_kernels(conv, weight, bias)
            return
        conv.conv.weight.copy_(weight)
        if conv.conv.bias is not None:
            conv.conv.bias.copy_(bias)


def convolutions(block: nn.Module) -> list[ConvBlock | ReducedConv]:
    assert isinstance(block, ConvStack | ReducedStack)
    return [conv for conv in block.convs if isinstance(conv, ConvBlock | ReducedConv)]


@torch.no_grad()
def find_directions(step: FrozenStep, decoder: Decoder, config: FitConfig) -> DecoderDirections:
    """What the convolutions of a trained decoder use of their input."""
    found = DecoderDirections(decoder)
    for features, _ in feature_batches(step, config):
        found.add(features)
    return found


@torch.no_grad()
def fit_blocks(
    step: FrozenStep,
    tree: BlockTree,
    wanted: Sequence[Kernels],
    kept: DecoderDirections,
    config: FitConfig,
) -> None:
    """Add a fitted block at the end of each of these beginnings of plans, all of one length."""
    if not wanted:
        return
    new = [NewBlock.add_to(tree, kernels, kept) for kernels in wanted]
    tree.to(step.settings.device)
    places = max(len(block.convs) for block in new) if is_main() else 0
    for place in range(places):
        fit_convolutions(step, tree, [block for block in new if place < len(block.convs)], place, config)
    share_weights(tree)


def fit_convolutions(
    step: FrozenStep, tree: BlockTree, blocks: Sequence[NewBlock], place: int, config: FitConfig
) -> None:
    """Solve the convolution at one place of several blocks of one number."""
    wanted, number = {block.kernels: block for block in blocks}, len(blocks[0].kernels) - 1
    equations = {block.kernels: NormalEquations(block.kernel(place)) for block in blocks}
    for features, draw in feature_batches(step, config):
        written = written_by_convolutions(tree.decoder, number, features)
        voxels = draw_voxels(written[0], config.samples, draw)
        for kernels, parts in tree.inputs(features, wanted):
            block = wanted[kernels]
            equations[kernels].add(block.read_by(place, parts), written[block.stands_for[place]], voxels)
    for kernels, sums in equations.items():
        wanted[kernels].set_kernel(place, *sums.solve(config.ridge))


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
        assert isinstance(conv, ConvBlock)  # small decoders are not made smaller
        written.append(conv.conv(x))
        x = conv.nonlin(conv.norm(written[-1]))
    return written


def draw_voxels(x: Tensor, count: int, draw: torch.Generator) -> Tensor:
    """Indices (voxel, 4) of batch, z, y and x."""
    sizes = (x.shape[0], *x.shape[2:])
    columns = [torch.randint(size, (count,), generator=draw) for size in sizes]
    return torch.stack(columns, dim=1).to(x.device)
