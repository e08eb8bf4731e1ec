"""Whether four small decoders cost what their multiply-adds say, against one nnU-Net decoder.

    python benchmarks/small_decoders.py [--threads 2] [--rounds 5]

One nnU-Net decoder and four small ones run in turn on the features of one batch of windows, with random
weights, up to the features before their last layer. Shown for the networks of the presets: multiply-adds and
milliseconds as shares of nnU-Net's decoder. `searched` are plans of kernels alone, as search and pruning find
them (results/small_packs/laptop.md, and made_up for the paper's network); `shrunk` those of
results/small_packs/phantom_143/seed_0.md.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch
from made_up import NETWORKS, kernels
from segment_vs_nnunet import ONE_DECODER

from continual_segment.malloc import keep_freed_memory
from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder, NetworkConfig
from continual_segment.networks.decoder_plan import multiply_adds

ORGANS = (103, 31, 13, 1)
WINDOWS = {"laptop": (2, (32, 32, 48)), "paper": (1, (64, 128, 128))}
"""Windows at a time, and their size."""
PLANS = {
    "laptop, searched": (
        "projection,2d,2d",
        "2d,2d,2d",
        "projection,2d,projection",
        "projection,2d,projection",
    ),
    "laptop, shrunk": ("2d@24,2d@24,2d@12", "2d@16,2d@32,2d@16", "2d@8,nnunet@12,2d@12", "2d@8,2d@16,2d@4"),
    "paper, searched": ONE_DECODER,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    print(f"{args.threads} threads, {args.rounds} rounds: median (least, most)")
    print(f"{'':20}{'multiply-adds':>14}{'time':>26}{'ms, one':>10}{'four':>8}")
    for name, plans in PLANS.items():
        print(line(name, plans, args.rounds), flush=True)


@torch.no_grad()
def line(name: str, plans: tuple[str, ...], rounds: int) -> str:
    network_name = name.partition(",")[0]
    network = NetworkConfig(**NETWORKS[network_name])
    batch, window = WINDOWS[network_name]
    features = GeneralEncoder(network).eval()(torch.randn(batch, 1, *window))
    blocks = len(network.features) - 1
    stock = DecoderPlan.nnunet(network)
    small = [DecoderPlan(kernels(plan, blocks)) for plan in plans]
    whole = Decoder(network, stock, ORGANS[0]).eval()
    four = [Decoder(network, plan, organs).eval() for plan, organs in zip(small, ORGANS, strict=True)]
    work = sum(
        multiply_adds(plan, network, window, organs) for plan, organs in zip(small, ORGANS, strict=True)
    )
    share = work / multiply_adds(stock, network, window, ORGANS[0])
    times = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        whole.finest(features)
        between = time.perf_counter()
        for decoder in four:
            decoder.finest(features)
        times.append((between - begun, time.perf_counter() - between))
    del times[0]  # the first is never typical
    ratios = [of_four / of_one for of_one, of_four in times]
    one, several = (1000 * median(column) for column in zip(*times, strict=True))
    spread = f"{median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"
    return f"{name:20}{share:14.2f}{spread:>26}{one:10.1f}{several:8.1f}"


if __name__ == "__main__":
    main()
