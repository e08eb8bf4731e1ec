"""What keeping freed memory and large pages (continual_segment.malloc) are worth, measured side by side.

    python benchmarks/malloc_thresholds.py

Every measurement is a fresh process, all ways in turn, so that a machine that slows down slows all of them.
One process times a job several times and counts the pages the kernel had to hand out (minor faults); shown
are medians over processes, and how many times as fast each way is as the first one in the same round, with
the least and the greatest.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from continual_segment.malloc import TUNABLES, keep_freed_memory, with_malloc_settings

CUBE = (3, 3, 3)


@dataclass(frozen=True)
class Size:
    """A network and what it is fed."""

    features: tuple[int, ...]
    window: tuple[int, int, int]
    organs: int = 20
    batch: int = 2


SIZES = {
    "demo": Size((12, 24, 48, 64), (48, 40, 64)),
    "laptop": Size((16, 32, 64, 128, 160), (48, 96, 96)),
}
JOBS = ("train", "segment")
WAYS = ("given back", "kept", "large pages")  # each with all of those before it


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=5, help="processes of every way (default: 5)")
    parser.add_argument("--repeats", type=int, default=10, help="timed runs in each process (default: 10)")
    parser.add_argument("--threads", type=int, help="of torch (default: torch's own)")
    parser.add_argument("--measure", nargs=3, metavar=("SIZE", "JOB", "WAY"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        size, job, way = args.measure
        print(json.dumps(measure(SIZES[size], job, way != "given back", args.repeats, args.threads)))
        return
    print(f"{'size':8} {'job':8} {'memory':12} {'time':>12} {'as fast (least, most)':>22} {'faults':>8}")
    for size in args.sizes:
        for job in JOBS:
            for line in compare(size, job, args):
                print(line, flush=True)


def compare(size: str, job: str, args: argparse.Namespace) -> Iterator[str]:
    """Lines of the table, one per way."""
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for number in range(args.rounds):
        for way in WAYS if number % 2 == 0 else WAYS[::-1]:  # none always goes first
            runs[way].append(in_a_process(size, job, way, args))
    for way, found in runs.items():
        ms, faults = (statistics.median(run[what] for run in found) for what in ("ms", "faults"))
        ratios = [first["ms"] / run["ms"] for first, run in zip(runs[WAYS[0]], found, strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})"
        yield f"{size:8} {job:8} {way:12} {ms:9.1f} ms {spread:>22} {faults:8.0f}"


def in_a_process(size: str, job: str, way: str, args: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--repeats", str(args.repeats), "--measure", size, job, way]
    if args.threads:
        command += ["--threads", str(args.threads)]
    settings = {TUNABLES: with_malloc_settings()} if way == "large pages" else {}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | settings)
    return json.loads(done.stdout)


def measure(size: Size, job: str, keep: bool, repeats: int, threads: int | None) -> dict[str, float]:
    """Median milliseconds, and minor faults per run, of one job in this process."""
    import torch

    if keep and not keep_freed_memory():
        sys.exit("This system's malloc takes no thresholds: there is nothing to measure.")
    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    run = make_job(size, job)
    for _ in range(2):  # the first runs choose algorithms and grow the heap
        run()
    seconds, faults = [], minor_faults()
    for _ in range(repeats):
        begun = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begun)
    return {"ms": 1000 * statistics.median(seconds), "faults": (minor_faults() - faults) / repeats}


def make_job(size: Size, job: str) -> Callable[[], object]:
    """One training iteration, or one window through encoder and decoder."""
    import torch

    from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder, NetworkConfig
    from continual_segment.training import supervised_loss

    stages = len(size.features)
    network = NetworkConfig(size.features, (CUBE,) * stages, ((1, 1, 1), *((2, 2, 2),) * (stages - 1)))
    encoder, decoder = GeneralEncoder(network), Decoder(network, DecoderPlan.nnunet(network), size.organs)
    batch = size.batch if job == "train" else 1
    images = torch.rand(batch, 1, *size.window) * 2 - 1
    labels = torch.randint(size.organs + 1, (batch, *size.window))
    optimiser = torch.optim.AdamW([*encoder.parameters(), *decoder.parameters()], 1e-3)

    def train() -> None:
        optimiser.zero_grad(set_to_none=True)
        supervised_loss(decoder.forward_supervised(encoder(images)), labels).backward()
        optimiser.step()

    @torch.no_grad()
    def segment() -> torch.Tensor:
        return decoder(encoder(images)).softmax(dim=1)

    return train if job == "train" else segment


def minor_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


if __name__ == "__main__":
    main()
