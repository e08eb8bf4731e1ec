"""What our layers gain over PyTorch's own, side by side.

    python benchmarks/layers.py                    # the paper's network, windows one by one
    python benchmarks/layers.py --network laptop --batch 2

Every layer of a decoder as it occurs in the network, once by PyTorch and once by ours, in turn. Shown are the
least milliseconds of all rounds: to answer, and to answer and learn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

from made_up import NETWORKS
from segment_vs_nnunet import SIZES


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", choices=SIZES, default="paper")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    from continual_segment.malloc import keep_freed_memory

    keep_freed_memory()
    print(f"{'':34} {'answer: torch':>14} {'ours':>8} {'x':>5} {'learn: torch':>14} {'ours':>8} {'x':>5}")
    for name, theirs, ours, inputs in layers(args.network, args.batch):
        cells = ""
        for learns in (False, True):
            before, after = least_ms([theirs, ours], inputs, learns, args.rounds)
            cells += f" {before:14.1f} {after:8.1f} {before / after:5.2f}"
        print(f"{name:34}{cells}", flush=True)


def layers(
    network: str, batch: int
) -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any], list[Any]]]:
    """Name, PyTorch's layer, ours, and what both read."""
    import torch
    from torch import nn

    from continual_segment.networks.layers import FastInstanceNorm, FastTransposedConv, SplitInputConv

    features, strides = NETWORKS[network]["features"], NETWORKS[network]["strides"]
    window = SIZES[network][0]
    sizes = list(accumulate(strides, shrunk, initial=window))[1:]
    for level, (width, size) in enumerate(zip(features[:-1], sizes, strict=False)):
        own = torch.randn(batch, width, *size, requires_grad=True)
        frozen = torch.randn(batch, width, *size)
        at = f"{width} x {' x '.join(map(str, size))}"
        yield f"norm {at}", nn.InstanceNorm3d(width, affine=True), FastInstanceNorm(width, affine=True), [own]
        deep = torch.randn(batch, features[level + 1], *sizes[level + 1], requires_grad=True)
        stride = strides[level + 1]
        plain = nn.ConvTranspose3d(features[level + 1], width, stride, stride)
        yield f"enlarge to {at}", plain, FastTransposedConv(features[level + 1], width, stride), [deep]
        kernel = NETWORKS[network]["kernels"][level]
        ours = SplitInputConv(2 * width, width, kernel, padding=tuple(n // 2 for n in kernel))
        joined = nn.Conv3d(2 * width, width, kernel, padding=ours.padding)
        name = f"conv {'x'.join(map(str, kernel))} of two {at}"
        yield name, lambda *parts, conv=joined: conv(torch.cat(parts, dim=1)), ours, [own, frozen]


def shrunk(size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(length // step for length, step in zip(size, stride, strict=True))


def least_ms(runs: list[Callable[..., Any]], inputs: list[Any], learns: bool, rounds: int) -> list[float]:
    """Least milliseconds of each, in turn; the first round warms up."""
    import torch

    found: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds + 1):
        for run, seconds in zip(runs, found, strict=True):
            begun = time.perf_counter()
            with torch.set_grad_enabled(learns):
                answer = run(*inputs)
            if learns:
                answer.mean().backward()
            seconds.append(time.perf_counter() - begun)
    return [1000 * min(seconds[1:]) for seconds in found]


if __name__ == "__main__":
    main()
