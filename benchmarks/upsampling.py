"""What writing neighbours in pairs saves in the layer that enlarges, and in a decoder.

    python benchmarks/upsampling.py [--threads 1]

Both ways in turn, the least milliseconds of all rounds: the finest enlarging layer of the paper's and the
laptop's network, and decoders of preset demo with whole and with small blocks on four windows.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator

import torch

from continual_segment.config import load_preset
from continual_segment.malloc import keep_freed_memory
from continual_segment.networks import Decoder, DecoderPlan, layers

PLANS = (("nnunet",) * 3, ("nnunet@16", "nnunet@8", "nnunet@8"), ("projection", "2d", "projection"))
WAYS: dict[str, Callable[[torch.Tensor], bool]] = {
    "single": lambda blocks: False,
    "pairs": layers.pairs_as_complex,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    print(f"{args.threads} threads, milliseconds\n{'':40} {'single':>9} {'pairs':>9} {'x':>6}")
    with torch.no_grad():
        for name, run in cases():
            least = dict.fromkeys(WAYS, float("inf"))
            for _ in range(args.rounds + 1):  # the first is never the fastest
                for way, chosen in WAYS.items():
                    layers.pairs_as_complex = chosen  # type: ignore[assignment]
                    begun = time.perf_counter()
                    run()
                    least[way] = min(least[way], 1000 * (time.perf_counter() - begun))
            single, pairs = least.values()
            print(f"{name:40} {single:9.2f} {pairs:9.2f} {single / pairs:6.2f}", flush=True)


def cases() -> Iterator[tuple[str, Callable[[], object]]]:
    for name, inputs, outputs, stride, size in (
        ("paper: to 32 x 64 x 128 x 128", 64, 32, (1, 2, 2), (64, 64, 64)),
        ("laptop: to 16 x 32 x 32 x 48", 32, 16, (2, 2, 2), (16, 16, 24)),
    ):
        layer, x = layers.FastTransposedConv(inputs, outputs, stride), torch.randn(2, inputs, *size)
        yield name, lambda layer=layer, x=x: layer(x)
    config = load_preset("demo")
    encoder = config.network.build_encoder().eval()
    features = encoder(torch.randn(4, 1, *config.patches.size))
    for plan in PLANS:
        decoder = Decoder(config.network, DecoderPlan(plan), 6).eval()
        yield f"decoder {' '.join(plan)}", lambda decoder=decoder: decoder.finest(features)


if __name__ == "__main__":
    main()
