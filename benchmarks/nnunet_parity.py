"""Our counterparts of stock nnU-Net's functions beside those functions: the largest difference of each.

python benchmarks/nnunet_parity.py VENV [--cases 20] [--seed 0] [--large]

VENV is a folder with nnU-Net's environment; benchmarks/nnunet_venv.py makes it on first use. Arrays have
random shapes and voxel sizes. `--large` resamples scans of 512 x 512 x 160 voxels as well. Seconds are sums
over the cases, one thread each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from nnunet_parity_cases import CT, Case, all_cases
from nnunet_venv import nnunet_python, run

from continual_segment.data.network_frame import NetworkFrame
from continual_segment.data.nnunet_preparation import coarse_axis, nonzero_box, nonzero_mask, resampled_shape
from continual_segment.data.nnunet_resample import resample_like_nnunet
from continual_segment.files import read_scan
from continual_segment.segmentation.nnunet_inference import (
    nnunet_window_starts,
    nnunet_window_weights,
)
from continual_segment.segmentation.padded_scan import PaddedScan
from continual_segment.segmentation.sampling import Sampling

Arrays = dict[str, Any]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def read(_: None, reader: Any, file: str, transpose_forward: list[int]) -> Arrays:
    volume = read_scan(Path(file))
    frame = NetworkFrame.of_reader(reader, volume.grid.orientation, transpose_forward)
    return {"voxels": frame.to_network(volume.voxels), "spacing": frame.spacing_mm(volume.grid)}


def crop(voxels: np.ndarray) -> Arrays:
    box = nonzero_box(voxels)
    return {"crop": voxels[box], "mask": nonzero_mask(voxels[box]), "box": ends(box)}


def shape(_: None, shape: list[int], spacing: list[float], new_spacing: list[float]) -> Arrays:
    axis = coarse_axis(spacing, new_spacing)
    return {"shape": resampled_shape(shape, spacing, new_spacing), "axis": -1 if axis is None else axis}


def resample(voxels: np.ndarray, shape: list[int], spacing: list[float], new_spacing: list[float]) -> Arrays:
    return {"voxels": resample_like_nnunet(voxels, shape, coarse_axis(spacing, new_spacing))}


def logits(voxels: np.ndarray, shape: list[int], spacing: list[float], new_spacing: list[float]) -> Arrays:
    """By the weights with which the segmenter interpolates where labels disagree."""
    z, y, x = shape
    sampling = Sampling(voxels.shape[1:], (z, y, x), (z, y, x), coarse=coarse_axis(spacing, new_spacing))
    for number, axis in enumerate((sampling.depth, *sampling.across(0)), 1):
        part = axis.fraction.reshape([-1 if number == other else 1 for other in range(4)])
        lower, upper = voxels.take(axis.lower, axis=number), voxels.take(axis.upper, axis=number)
        voxels = lower * (1 - part) + upper * part
    return {"voxels": voxels}


def pad(voxels: np.ndarray, window: Any) -> Arrays:
    """Where the segmenter places a scan that is smaller than a window; its value for air is -1, not 0."""
    padded = PaddedScan(voxels, window)
    array = np.zeros(padded.shape, np.float32)
    array[padded.inside] = voxels
    return {"voxels": array, "inner": ends(padded.inside)}


def windows(_: None, length: int, window: int, step: float) -> Arrays:
    return {"starts": nnunet_window_starts(length, window, step)}


def weights(_: None, window: list[int]) -> Arrays:
    return {"weights": nnunet_window_weights(window)}


def preprocess(_: None, file: str, plans: dict[str, Any]) -> Arrays:
    found = read(None, plans["image_reader_writer"], file, plans["transpose_forward"])
    box, old = nonzero_box(found["voxels"]), found["spacing"]
    new = plans["configurations"]["3d_fullres"]["spacing"]
    scan = ct_normalised(found["voxels"][box])
    return resample(scan, list(resampled_shape(scan.shape, old, new)), old, new) | {"box": ends(box)}


def ct_normalised(voxels: np.ndarray) -> np.ndarray:
    clipped = np.clip(voxels.astype(np.float32), CT["percentile_00_5"], CT["percentile_99_5"])
    return (clipped - np.float32(CT["mean"])) / np.float32(CT["std"])


def ends(box: Iterable[slice]) -> list[list[int]]:
    return [[part.start, part.stop] for part in box]


OURS = {
    each.__name__: each for each in (read, crop, shape, resample, logits, pad, windows, weights, preprocess)
}


def run_stock(cases: list[Case], folder: Path, python: Path) -> list[Any]:
    """What nnU-Net's functions return, in its own environment."""
    jobs = []
    for number, case in enumerate(cases):
        jobs.append({"name": str(number), "function": case.function, "arguments": case.arguments})
        if case.voxels is not None:
            np.save(folder / f"{number}.npy", case.voxels)
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    run([python, Path(__file__).with_name("nnunet_functions.py"), folder], ONE_THREAD)
    return [np.load(folder / f"{number}.npz") for number in range(len(cases))]


def difference(ours: Any, stock: np.ndarray) -> float:
    ours = np.asarray(ours)
    if ours.shape != stock.shape:
        return float("inf")
    return float(np.abs(ours.astype(np.float64) - stock.astype(np.float64)).max(initial=0))


def compare(cases: list[Case], stock: list[Any]) -> dict[str, dict[str, float]]:
    table: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for case, theirs in zip(cases, stock, strict=True):
        begun = time.perf_counter()
        ours = OURS[case.function](case.voxels, **case.arguments)
        row = table[case.function]
        row["ours_s"] += time.perf_counter() - begun
        row["stock_s"] += float(theirs["seconds"])
        row["cases"] += 1
        row["largest"] = max(row["largest"], *(difference(ours[key], theirs[key]) for key in ours))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("venv", type=Path)
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--large", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(chosen.seed)
        cases = list(all_cases(rng, chosen.cases, Path(folder), chosen.large))
        table = compare(cases, run_stock(cases, Path(folder), nnunet_python(chosen.venv)))
    print(f"{'function':<12}{'cases':>7}{'largest difference':>22}{'stock s':>10}{'ours s':>10}")
    for name, row in table.items():
        seconds = f"{row['stock_s']:>10.2f}{row['ours_s']:>10.2f}"
        print(f"{name:<12}{row['cases']:>7.0f}{row['largest']:>22.3g}{seconds}")


if __name__ == "__main__":
    main()
