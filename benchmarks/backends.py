"""What computes the networks fastest here: backends of `conseg segment` side by side.

    python benchmarks/backends.py                       # laptop size
    python benchmarks/backends.py --network paper --organs 104

Every measurement is a fresh process, the backends in turn: one window through encoder and decoder, as many
times as asked. Shown: seconds until the first answer (loading, compiling; less where an earlier run left
something in the cache), milliseconds a window, the ratio to eager round by round, median (least, most), and
the largest difference from eager's answer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from made_up import NETWORKS, kernels
from nnunet_venv import run
from segment_vs_nnunet import SIZES


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", choices=SIZES, default="laptop")
    parser.add_argument("--organs", type=int, default=104)
    parser.add_argument("--plan", default="nnunet", help="kernel of the decoder's blocks")
    parser.add_argument("--windows", type=int, default=2, help="at once")
    parser.add_argument("--backends", nargs="+", default=["eager", "compiled"], help="or openvino")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print("\n" + json.dumps(measure(args.measure[0], Path(args.measure[1]), args)))
        return
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in args.backends}
        for _ in range(args.rounds):
            for name, runs in found.items():
                command = [sys.executable, __file__, *sys.argv[1:], "--measure", name, f"{folder}/{name}.npy"]
                runs.append(run(command))
        show(Path(folder), found)


def show(folder: Path, found: dict[str, list[dict[str, Any]]]) -> None:
    import numpy as np

    print(f"{'':10} {'first s':>9} {'ms a window':>12} {'x':>20} {'differs by':>11}")
    base = next(iter(found))
    expected = np.load(folder / f"{base}.npy")
    for name, runs in found.items():
        ratios = [b["ms"] / r["ms"] for b, r in zip(found[base], runs, strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"
        apart = np.abs(np.load(folder / f"{name}.npy") - expected).max()
        ms, first = (statistics.median(r[what] for r in runs) for what in ("ms", "first"))
        print(f"{name:10} {first:9.1f} {ms:12.1f} {spread:>20} {apart:11.1e}")


def measure(backend: str, out: Path, args: argparse.Namespace) -> dict[str, float]:
    import numpy as np
    import torch

    from continual_segment.malloc import keep_freed_memory
    from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder, NetworkConfig
    from continual_segment.segmentation.backends import start_decoder, start_encoder

    keep_freed_memory()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    network = NetworkConfig(**NETWORKS[args.network])
    plan = DecoderPlan(kernels(args.plan, len(network.features) - 1))  # type: ignore[arg-type]
    encoder = GeneralEncoder(network).freeze()
    decoder = Decoder(network, plan, args.organs).eval().requires_grad_(False)
    windows = torch.rand(args.windows, 1, *SIZES[args.network][0]) * 2 - 1
    begun = time.perf_counter()
    encode, decode = start_encoder(encoder, backend), start_decoder(decoder, True, backend)  # type: ignore[arg-type]
    with torch.no_grad():
        np.save(out, decode(encode(windows)).numpy())
        first, seconds = time.perf_counter() - begun, []
        for _ in range(args.repeats):
            begun = time.perf_counter()
            decode(encode(windows))
            seconds.append(time.perf_counter() - begun)
    return {"first": first, "ms": 1000 * statistics.median(seconds) / args.windows}


if __name__ == "__main__":
    main()
