"""Scans of clinical size, file to file: one trained network by stock nnU-Net and by us, in float32 and int8.

    python benchmarks/nnunet_whole_scan.py FOLDER --model MODEL --raw RAW --slices 200 400

MODEL has one pack, whole as `conseg learn --stages train` makes it, and the intensities -1024 to 1024 HU of
preset laptop. It is written as a model folder of stock nnU-Net, imported from there by `conseg import`, and
quantised on training scans of RAW. A test scan of RAW is enlarged to the grid of a clinical CT. Each line is
a process of its own, with two threads, in turn:

  stock          nnU-Net's predictor, step 0.5, no mirroring (benchmarks/nnunet_venv.py makes its environment)
  stock, tuned   the same with glibc keeping freed memory and torch.compile
  imported       `conseg segment` with the imported model, windows where nnU-Net has them; then in int8
  own            `conseg segment` with MODEL itself: windows along the body alone; then in int8

`x` is the seconds of stock over those of the line, `networks` the seconds within encoder and decoder, `rest`
all others: start, reading, resampling, labels on the scan's grid, writing. `equal` is the share of voxels
with stock's label, `Dice` the mean over organs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from export_share import enlarged
from hub import most_resident, put_clocks
from int8_dice import training_scans
from measured_process import CONSEG
from nnunet_import import renumbered
from nnunet_stock import made_once
from nnunet_venv import KEPT, nnunet_python
from overlap_dice import held_out
from segment_vs_nnunet import plans

from continual_segment.files import read_labels, write_labels, write_scan
from continual_segment.malloc import TUNABLES, with_malloc_settings
from continual_segment.metrics import score_labels
from continual_segment.model import Model
from continual_segment.model.nnunet.weights import stock_names
from continual_segment.organs import find_organ
from continual_segment.volume import LabelMap, Volume

HERE = Path(__file__).parent
VENV = Path.home() / ".cache/continual-segment/nnunet-venv"
STOCK_NAME = "nnUNetTrainer__nnUNetPlans__3d_fullres"
HEAD = f"{'':22}{'seconds':>9}{'x':>7}{'networks':>10}{'rest':>8}{'peak GiB':>10}{'equal':>10}{'Dice':>8}"


@dataclass(frozen=True)
class Work:
    """Where everything is."""

    folder: Path
    model: Path
    raw: Path

    @property
    def stock(self) -> Path:
        """The model as stock nnU-Net stores one."""
        place = made_once(self.folder / "stock", lambda folder: write_stock(self.model, folder / STOCK_NAME))
        return place / STOCK_NAME

    @property
    def imported(self) -> Path:
        return made_once(self.folder / "imported", self._import)

    def _import(self, folder: Path) -> None:
        conseg("import", self.stock, "-m", folder / "model", "--name", "pack", "--quiet")
        conseg("quantise", "-m", folder / "model", "--scans", *training_scans(self.raw, 4), "--quiet")

    @property
    def own(self) -> Path:
        """A copy of the model, quantised."""
        return made_once(self.folder / "own", self._copy)

    def _copy(self, folder: Path) -> None:
        Model.open(self.model).copy(folder / "model")
        conseg("quantise", "-m", folder / "model", "--scans", *training_scans(self.raw, 4), "--quiet")

    def scan(self, shape: tuple[int, int, int]) -> Path:
        """A folder with scan.nii.gz and truth.nii.gz."""
        return made_once(self.folder / f"scan_{shape[0]}", lambda folder: self._enlarge(shape, folder))

    def _enlarge(self, shape: tuple[int, int, int], folder: Path) -> None:
        scan, truth = next(held_out(self.raw, 1))
        write_scan(folder / "scan.nii.gz", enlarged(scan, shape))
        index = np.ix_(
            *((np.arange(new) * old // new) for new, old in zip(shape, scan.grid.shape, strict=True))
        )
        large = enlarged(Volume(np.zeros(scan.grid.shape, np.int16), scan.grid), shape).grid
        write_labels(folder / "truth.nii.gz", LabelMap(truth.voxels[index], large, truth.names))


def conseg(*words: object) -> None:
    subprocess.run([*CONSEG, *map(str, words)], check=True)


def write_stock(model: Path, folder: Path) -> None:
    """plans.json, dataset.json and fold_0/checkpoint_final.pth of a model with one pack."""
    opened = Model.open(model)
    (name,) = opened.pack_names
    pack, network = opened.pack(name), opened.network
    sizes = {"features": network.features, "kernels": network.kernels, "strides": network.strides}
    numbered = {organ.name: number for number, organ in enumerate(pack.organs, start=1)}
    dataset = {"channel_names": {"0": "CT"}, "labels": {"background": 0} | numbered, "file_ending": ".nii.gz"}
    weights = {f"encoder.{key}": value for key, value in opened.load_encoder().state_dict().items()}
    weights |= {f"decoder.{key}": value for key, value in pack.weights.items()}
    (folder / "fold_0").mkdir(parents=True)
    (folder / "plans.json").write_text(json.dumps(plans(sizes, opened.window, opened.prepare.spacing_mm)))
    (folder / "dataset.json").write_text(json.dumps(dataset | {"numTraining": 1}))
    checkpoint: dict[str, Any] = {
        "network_weights": {each: tensor for kept, tensor in weights.items() for each in stock_names(kept)},
        "init_args": {"configuration": "3d_fullres", "fold": 0},
        "trainer_name": "nnUNetTrainer",
        "current_epoch": 1000,
        "inference_allowed_mirroring_axes": None,
    }
    torch.save(checkpoint, folder / "fold_0" / "checkpoint_final.pth")
    torch.save(weights, folder / "weights.pt")


@dataclass(frozen=True)
class Run:
    """What one process took, and the labels that it wrote."""

    seconds: float
    networks: float
    peak: int
    labels: LabelMap


def run_stock(work: Work, scan: Path, out: Path, environment: dict[str, str]) -> Run:
    stock = work.stock
    described = [stock / name for name in ("plans.json", "dataset.json", "weights.pt")]
    words = [nnunet_python(VENV), HERE / "nnunet_predict.py", *described, scan, out, 0]
    found, seconds = measured(words, environment)
    return Run(seconds, found["networks"], found["peak"], stock_labels(out, stock))


def stock_labels(path: Path, stock: Path) -> LabelMap:
    """Labels with the ids of organs, as ours have them."""
    numbers = json.loads((stock / "dataset.json").read_text())["labels"]
    names = {number: name for name, number in numbers.items() if number}
    found = read_labels(path)
    table = np.array([0, *(find_organ(names[number]).id for number in sorted(names))], np.uint16)
    return LabelMap(table[found.voxels], found.grid, {find_organ(name).id: name for name in names.values()})


def run_ours(model: Path, scan: Path, out: Path, *options: str) -> Run:
    report = out.with_name("report.json")
    words = ["segment", scan, "-m", model, "-o", out, "--quiet", "--overwrite", *options]
    command = [sys.executable, __file__, "--measure", report, *words]
    _, seconds = measured(command, {TUNABLES: with_malloc_settings()})
    found = json.loads(report.read_text())
    return Run(seconds, found["networks"], found["peak"], read_labels(out))


def measure_ours(report: Path, words: list[str]) -> int:
    """`conseg` in this process, with clocks in it."""
    from continual_segment.cli.main import main as conseg_main

    seconds: Counter[str] = Counter()
    put_clocks(seconds, time.perf_counter)
    code = conseg_main(words)
    networks = seconds["encoder"] + seconds["decoders"]
    report.write_text(json.dumps({"networks": networks, "peak": most_resident(), "parts": seconds}))
    return code


def measured(words: Sequence[object], environment: dict[str, str]) -> tuple[dict[str, Any], float]:
    """The JSON that a process prints last, if any, and its seconds on the wall."""
    begun = time.perf_counter()
    done = subprocess.run(
        list(map(str, words)), env=os.environ | environment, stdout=subprocess.PIPE, text=True, check=True
    )
    seconds, lines = time.perf_counter() - begun, done.stdout.strip().splitlines()
    return json.loads(lines[-1]) if lines and lines[-1].startswith("{") else {}, seconds


def lines_of(work: Work, scan: Path) -> dict[str, Callable[[], Run]]:
    """What is measured, by name."""
    imported, own = work.imported / "model", work.own / "model"
    out, tuned = work.folder / "labels.nii.gz", KEPT | {"nnUNet_compile": "1"}
    return {
        "stock": lambda: run_stock(work, scan, out, {}),
        "stock, tuned": lambda: run_stock(work, scan, out, tuned),
        "imported, float32": lambda: run_ours(imported, scan, out),
        "imported, int8": lambda: run_ours(imported, scan, out, "--backend", "int8"),
        "own, float32": lambda: run_ours(own, scan, out),
        "own, int8": lambda: run_ours(own, scan, out, "--backend", "int8"),
    }


def compare(work: Work, shape: tuple[int, int, int]) -> None:
    """A table."""
    place = work.scan(shape)
    truth = read_labels(place / "truth.nii.gz")
    print(f"\n{' x '.join(map(str, shape))}\n{HEAD}", flush=True)
    stock: Run | None = None
    for name, run in lines_of(work, place / "scan.nii.gz").items():
        found = run()
        stock = stock or found
        print(line(name, found, stock, truth), flush=True)


def line(name: str, found: Run, stock: Run, truth: LabelMap) -> str:
    equal = float(np.mean(renumbered(found.labels, stock.labels.names) == stock.labels.voxels))
    organs = [int(organ) for organ in np.unique(truth.voxels) if organ]
    scored = score_labels(found.labels.voxels, truth.voxels, organs, truth.grid.spacing_mm)
    dice = float(np.mean([organ.dice for organ in scored.values()]))
    return (
        f"{name:22}{found.seconds:9.1f}{stock.seconds / found.seconds:7.2f}{found.networks:10.1f}"
        f"{found.seconds - found.networks:8.1f}{found.peak / 2**30:10.2f}{equal:10.5f}{dice:8.4f}"
    )


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        sys.exit(measure_ours(Path(sys.argv[2]), sys.argv[3:]))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for models, scans and labels")
    parser.add_argument("--model", type=Path, required=True, help="a trained model with one whole pack")
    parser.add_argument("--raw", type=Path, required=True, help="the raw dataset that it was trained on")
    parser.add_argument("--slices", type=int, nargs="+", default=[200, 400])
    parser.add_argument("--pixels", type=int, default=512, help="rows and columns (default: 512)")
    chosen = parser.parse_args()
    work = Work(chosen.folder.resolve(), chosen.model.resolve(), chosen.raw.resolve())
    work.folder.mkdir(parents=True, exist_ok=True)
    for slices in chosen.slices:
        compare(work, (slices, chosen.pixels, chosen.pixels))


if __name__ == "__main__":
    main()
