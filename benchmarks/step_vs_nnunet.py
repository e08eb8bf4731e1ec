"""One training step with the encoder frozen against one of stock nnU-Net, side by side.

    python benchmarks/step_vs_nnunet.py                      # laptop size: minutes
    python benchmarks/step_vs_nnunet.py --network paper --rounds 3

A step is forward, loss at all resolutions, backward and update on a batch that is already in memory. Lines:

  nnU-Net         its network, loss and optimiser in its own environment (--venv), as installed
  nnU-Net, kept   the same with glibc keeping freed memory
  full            our network, all of it trained
  frozen          what a later learning step does: the encoder only runs
  frozen, cached  the same with features from a cache: where patches come back unaugmented
  loss            our loss alone, forward and backward

Shown are median seconds and the share of nnU-Net's, round by round: median (least, most).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from made_up import NETWORKS, kernels
from nnunet_venv import KEPT, nnunet_python, run
from segment_vs_nnunet import HERE, SIZES, plans

OURS = ("full", "frozen", "frozen, cached", "loss")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", choices=SIZES, default="laptop")
    parser.add_argument("--organs", type=int, default=104)
    parser.add_argument("--plan", default="nnunet", help="kernel of our decoder's blocks (default: nnunet)")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="timed in each process; the median counts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--ours-only", action="store_true", help="compare with our own full step")
    parser.add_argument("--venv", type=Path, default=Path.home() / ".cache/continual-segment/nnunet-venv")
    parser.add_argument("--measure", choices=OURS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps({"seconds": measure(args.measure, args)}))
        return
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), args)


def compare(folder: Path, args: argparse.Namespace) -> None:
    lines: dict[str, Callable[[], dict[str, Any]]] = {}
    if not args.ours_only:
        (folder / "plans.json").write_text(json.dumps(plans(NETWORKS[args.network], *SIZES[args.network])))
        settings = [args.organs, args.batch, args.steps, args.threads, 0]
        stock = [nnunet_python(args.venv), HERE / "nnunet_step.py", folder / "plans.json", *settings]
        lines |= {"nnU-Net": lambda: run(stock), "nnU-Net, kept": lambda: run(stock, KEPT)}
    for name in OURS:
        lines[name] = lambda name=name: run([sys.executable, __file__, *sys.argv[1:], "--measure", name])
    found: dict[str, list[float]] = {name: [] for name in lines}
    for _ in range(args.rounds):
        for name, start in lines.items():
            found[name].append(start()["seconds"])
    base = found["full" if args.ours_only else "nnU-Net"]
    print(f"network {args.network}, {args.organs} organs, batch {args.batch}, blocks {args.plan}")
    for name, seconds in found.items():
        shares = [own / whole for own, whole in zip(seconds, base, strict=True)]
        spread = f"{statistics.median(shares):.2f} ({min(shares):.2f}, {max(shares):.2f})"
        print(f"{name:16} {statistics.median(seconds):9.3f} s {spread:>22}")


def measure(what: str, args: argparse.Namespace) -> float:
    """Median seconds of one step in this process."""
    import torch

    from continual_segment.malloc import keep_freed_memory

    keep_freed_memory()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    step = make_step(what, args)
    seconds = []
    for _ in range(args.steps + 1):
        begun = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[1:])


def make_step(what: str, args: argparse.Namespace) -> Callable[[], None]:
    import torch

    from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder, NetworkConfig
    from continual_segment.training import supervised_loss

    network = NetworkConfig(**NETWORKS[args.network])
    window = SIZES[args.network][0]
    encoder = GeneralEncoder(network)
    plan = DecoderPlan(kernels(args.plan, len(network.features) - 1))  # type: ignore[arg-type]
    decoder = Decoder(network, plan, args.organs)
    images = torch.rand(args.batch, 1, *window) * 2 - 1
    labels = torch.randint(args.organs + 1, (args.batch, *window))
    if what != "full":
        encoder.freeze()
    trained = [p for p in (*encoder.parameters(), *decoder.parameters()) if p.requires_grad]
    optimiser = torch.optim.SGD(trained, 1e-2, momentum=0.99, nesterov=True, weight_decay=3e-5)
    cached = encoder(images) if what == "frozen, cached" else None
    outputs = [o.detach().requires_grad_() for o in decoder.forward_supervised(encoder(images))]

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(what == "full"):
            features = cached or encoder(images)
        supervised_loss(decoder.forward_supervised(features), labels).backward()
        torch.nn.utils.clip_grad_norm_(trained, 12)
        optimiser.step()

    def loss() -> None:
        supervised_loss(outputs, labels).backward()

    return loss if what == "loss" else step


if __name__ == "__main__":
    main()
