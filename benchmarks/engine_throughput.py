"""Scans per hour of `conseg segment --engine` with two workers, against one process on the same cores.

    python benchmarks/engine_throughput.py DEMO                              # 16 scans of 120 x 256 x 256
    python benchmarks/engine_throughput.py DEMO --scans 4 --slices 40 --pixels 64 --rounds 1
    python benchmarks/engine_throughput.py DEMO --tasks 500                  # time per task that does nothing

Phantom scans of a demo are enlarged and segmented by all of its packs, in turn: by the command in one process
with all cores as threads (it reads ahead and writes behind in processes of its own), and by the same command
with an engine of as many workers as cores, one thread each. Both load the model; the cluster is up before.
Shown: seconds of every round, their ratio with its spread, the parts of a scan as manifests record them, and
how many label maps are the same to the byte (another number of threads may round in another way).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from distributed import LocalCluster
from export_share import enlarged

from continual_segment.engine import EngineConfig, on_engine
from continual_segment.files import read_scan, write_scan
from continual_segment.processes import usable_cores

SOURCE = Path(__file__).parents[1] / "src"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("demo", type=Path, help="folder with model/ and raw/")
    parser.add_argument("--scans", type=int, default=16)
    parser.add_argument("--slices", type=int, default=120)
    parser.add_argument("--pixels", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=usable_cores(), help="(default: one per core)")
    parser.add_argument("--tasks", type=int, help="only measure so many tasks that do nothing")
    args = parser.parse_args()
    cluster = LocalCluster(
        n_workers=args.workers, threads_per_worker=1, memory_limit=0, dashboard_address=None
    )
    address = f"dask://{cluster.scheduler_address.removeprefix('tcp://')}"
    with cluster, tempfile.TemporaryDirectory() as folder:
        if args.tasks:
            empty_tasks(EngineConfig(address), args.tasks, Path(folder))
        else:
            compare(args, address, Path(folder))


def empty_tasks(config: EngineConfig, count: int, folder: Path) -> None:
    """What a task costs that does nothing: sending it, starting it, its answer."""
    with on_engine(config, max, (0,), folder) as dispatcher:
        dispatcher.add("first", 1)
        list(dispatcher.run())  # processes are started
        for number in range(count):
            dispatcher.add(str(number), number)
        started = time.monotonic()
        assert sum(finished.answer.result for finished in dispatcher.run()) == count * (count - 1) // 2
    print(f"{count} tasks that do nothing: {1000 * (time.monotonic() - started) / count:.1f} ms each")


def compare(args: argparse.Namespace, address: str, folder: Path) -> None:
    scans = make_scans(args, folder / "scans")
    ways = {"one process": (), "engine": ("--engine", address)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    outs = {name: folder / name.replace(" ", "_") for name in ways}
    for _ in range(args.rounds):
        for name, options in ways.items():
            shutil.rmtree(outs[name], ignore_errors=True)
            seconds[name].append(run(scans, args.demo / "model", outs[name], options))
            print(f"{name:12} {seconds[name][-1]:8.1f} s for {args.scans} scans", flush=True)
    ratios = [one / other for one, other in zip(*seconds.values(), strict=True)]
    print(
        f"engine with {args.workers} workers against one process with {usable_cores()} threads: "
        f"{statistics.median(ratios):.2f} times the scans per hour ({min(ratios):.2f} to {max(ratios):.2f})"
    )
    for name, out in outs.items():
        print(f"{name:12} mean seconds of a scan: {parts(out)}")
    same = [path.read_bytes() == (outs["engine"] / path.name).read_bytes() for path in label_maps(outs)]
    print(f"{sum(same)} of {len(same)} label maps are the same to the byte")


def make_scans(args: argparse.Namespace, folder: Path) -> Path:
    """Different phantoms in turn, on a larger grid."""
    phantoms = sorted((args.demo / "raw").glob("*/imagesTr/*.nii.gz"))
    for number in range(args.scans):
        scan = read_scan(phantoms[number % len(phantoms)])
        larger = enlarged(scan, (args.slices, args.pixels, args.pixels))
        write_scan(folder / f"scan_{number:03}.nii.gz", larger)
    return folder


def run(scans: Path, model: Path, out: Path, options: Sequence[str]) -> float:
    """Seconds of the whole command."""
    command = [sys.executable, "-m", "continual_segment.cli.main", "segment", str(scans), "-m", str(model)]
    settings = {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": str(usable_cores())}
    started = time.monotonic()
    subprocess.run([*command, "-o", str(out), "-q", *options], env=os.environ | settings, check=True)
    return time.monotonic() - started


def parts(out: Path) -> str:
    manifests = [json.loads(path.read_text()) for path in (out / "manifest").glob("*.json")]
    means = {
        name: statistics.mean(manifest["seconds"][name] for manifest in manifests)
        for name in ("reading", "segmenting", "writing")
    }
    return ", ".join(f"{name} {value:.2f}" for name, value in means.items())


def label_maps(outs: dict[str, Path]) -> list[Path]:
    return sorted(outs["one process"].glob("*.nii.gz"))


if __name__ == "__main__":
    main()
