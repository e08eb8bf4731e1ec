"""Which smaller forms of one block lose how much, before any training?

    python benchmarks/block_forms.py MODEL NAME=PREPARED --preset demo --out OUT

Every block of pack NAME is replaced alone, by the forms that a plan can have and by two more that were tried:
a Tucker decomposition (the kernel works between `width` channels on both sides; `tucker@8`) and a depthwise
kernel between two 1x1x1 convolutions (`depthwise@8`). Both are derived from the fitted kernel of the same
width. OUT gets NAME_forms.md, with sizes and Dice on the validation windows; test scans take no part.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from copy import deepcopy
from itertools import product
from pathlib import Path

import torch
from shrink_plans import shrinking_of
from torch import Tensor, nn

from continual_segment.files import write_text
from continual_segment.learning.shrink import Shrinking
from continual_segment.networks.block_form import KERNELS, BlockForm
from continual_segment.networks.block_tree import Kernels
from continual_segment.networks.blocks import ReducedConv, same_padding
from continual_segment.networks.decoder_plan import (
    block_multiply_adds,
    block_voxels,
    multiply_adds,
    paper_block_count,
    paper_count,
    upward_multiply_adds,
)

SHARES = (1.0, 0.75, 0.5, 0.375, 0.25, 0.125)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("dataset", metavar="NAME=PREPARED")
    parser.add_argument("--preset", default="demo")
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="of a block's width")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    name, _, prepared = args.dataset.partition("=")
    shrinking = shrinking_of(
        args.model, name, Path(prepared), args.preset, args.out / "runs" / f"{name}_forms"
    )
    lines = [
        f"{name}: trained decoder {shrinking.whole.dice:.4f} on validation windows",
        "",
        "| plan, deepest block first | parameters | multiply-adds | Dice | lost, points |",
        "|---|---|---|---|---|",
    ]
    for number in range(len(shrinking.tree.whole)):
        lines += rows(shrinking, number, args.shares)
        write_text(args.out / f"{name}_forms.md", "\n".join(lines) + "\n")
    print("\n".join(lines))


def rows(shrinking: Shrinking, number: int, shares: list[float]) -> list[str]:
    """All forms of one block."""
    tree, features = shrinking.tree, shrinking.tree.decoder.network.features[-2 - number]
    widths = [max(1, round(share * features)) for share in shares]
    forms = [BlockForm.of(name) for name in KERNELS]
    forms += [BlockForm.of(f"{name}@{width}") for name, width in product((*KERNELS, "nnunet"), widths)]
    begun, rest = tree.whole[:number], tree.whole[number + 1 :]
    fitted = [(*begun, name) for name in tree.smaller_forms(number, forms)]
    shrinking.fit(fitted)
    made = [
        derived(shrinking, (*begun, f"nnunet@{width}"), kind)
        for width, kind in product(widths, DERIVED)
        if tree.has((*begun, f"nnunet@{width}"))
    ]
    plans = {block + rest for block in (*fitted, *made)}
    dice = shrinking.judge.dice_of_all(lambda each: tree.logits(each, plans))
    ordered = sorted(plans, key=lambda plan: -dice[plan])
    return [row(shrinking, plan, number, dice[plan]) for plan in ordered]


def derived(shrinking: Shrinking, fitted: Kernels, kind: str) -> Kernels:
    """A block of another kind, from the fitted one of the same width."""
    tree = shrinking.tree
    block = deepcopy(tree.block(fitted))
    for conv in block.convs:
        assert isinstance(conv, ReducedConv)
        (kernel,) = conv.convs
        conv.convs = DERIVED[kind](kernel)  # type: ignore[arg-type]
    made = (*fitted[:-1], fitted[-1].replace("nnunet", kind))
    tree.blocks["-".join(made)], tree.enlargers["-".join(made)] = block, tree.enlarger(fitted)
    return made


def tucker(kernel: nn.Conv3d) -> nn.Sequential:
    """As many channels behind the kernel as before it, the most important ones."""
    width = kernel.in_channels
    left, values, right = torch.linalg.svd(kernel.weight.flatten(1), full_matrices=False)
    inside = (values[:width, None] * right[:width]).reshape(-1, width, *kernel.kernel_size)
    return chain(kernel, inside, left[:, :width], groups=1)


def depthwise(kernel: nn.Conv3d) -> nn.Sequential:
    """For every channel the one spatial kernel that is nearest to all of its kernels."""
    inside, outwards = [], []
    for channel in kernel.weight.flatten(2).unbind(dim=1):  # (output, place)
        left, values, right = torch.linalg.svd(channel, full_matrices=False)
        inside.append(right[0].reshape(1, *kernel.kernel_size))
        outwards.append(left[:, 0] * values[0])
    return chain(kernel, torch.stack(inside), torch.stack(outwards, dim=1), groups=kernel.in_channels)


def chain(kernel: nn.Conv3d, inside: Tensor, outwards: Tensor, groups: int) -> nn.Sequential:
    """A kernel of some channels, then a 1x1x1 convolution."""
    z, y, x = kernel.kernel_size
    first = nn.Conv3d(
        kernel.in_channels, len(inside), (z, y, x), 1, same_padding((z, y, x)), groups=groups, bias=False
    )
    second = nn.Conv3d(len(inside), kernel.out_channels, 1)
    with torch.no_grad():
        first.weight.copy_(inside)
        second.weight.copy_(outwards[..., None, None, None])
        assert kernel.bias is not None
        assert second.bias is not None
        second.bias.copy_(kernel.bias)
    return nn.Sequential(first, second).requires_grad_(False)


DERIVED: dict[str, Callable[[nn.Conv3d], nn.Sequential]] = {"tucker": tucker, "depthwise": depthwise}


def row(shrinking: Shrinking, plan: Kernels, number: int, dice: float) -> str:
    """Sizes are shares of nnU-Net's decoder."""
    tree, window = shrinking.tree, shrinking.step.source.patches.size
    decoder, whole = tree.decoder, BlockForm.of(tree.whole[number])
    network, voxels = decoder.network, block_voxels(decoder.network, window)[number]
    kind, _, width = plan[number].partition("@")
    form = BlockForm("nnunet", int(width)) if kind in DERIVED else BlockForm.of(plan[number])
    weights, cost = (
        paper_block_count(form, network, number),
        block_multiply_adds(form, network, window, number),
    )
    if kind in DERIVED:
        weights = sum(p.numel() for p in tree.block(plan[: number + 1]).parameters() if p.dim() == 5)
        cost = weights * voxels
    cost += upward_multiply_adds(form, network, window, number)
    cost -= block_multiply_adds(whole, network, window, number)
    cost -= upward_multiply_adds(whole, network, window, number)
    all_weights = paper_count(decoder.plan, network)
    all_cost = multiply_adds(decoder.plan, network, window, decoder.organs)
    parameters = (all_weights + weights - paper_block_count(whole, network, number)) / all_weights
    lost, share = 100 * (shrinking.whole.dice - dice), (all_cost + cost) / all_cost
    return f"| {' '.join(plan)} | {parameters:.3f} | {share:.3f} | {dice:.4f} | {lost:.2f} |"


if __name__ == "__main__":
    main()
