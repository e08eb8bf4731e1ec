"""What each deviation from stock nnU-Net costs in labels: phantom scans, one small trained network.

python benchmarks/nnunet_deviations.py VENV [--iterations 600] [--folder FOLDER]

VENV is a folder with nnU-Net's environment (benchmarks/nnunet_venv.py). A network is trained on one phantom
scan for some iterations. nnU-Net's predictor, and ours put together from the functions of this package, then
label the same patient in scans of other voxel sizes. The first line has all of nnU-Net's steps, each further
one all but one.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np
import torch
from nnunet_parity_cases import CT, plans_of
from nnunet_small_network import WINDOW, SmallNetwork, trained_network
from nnunet_venv import nnunet_python, run
from torch import Tensor

from continual_segment.data.network_frame import NetworkFrame
from continual_segment.data.nnunet_preparation import coarse_axis, nonzero_box, put_back, resampled_shape
from continual_segment.data.nnunet_resample import resample_like_nnunet
from continual_segment.data.resample import resample_labels, resample_scan
from continual_segment.files import read_labels, read_scan, write_scan
from continual_segment.lab.phantom.write import write_phantom
from continual_segment.segmentation.nnunet_inference import (
    nnunet_window_starts,
    nnunet_window_weights,
)
from continual_segment.segmentation.padded_scan import body_box
from continual_segment.segmentation.sampling import Axis, Sampling
from continual_segment.segmentation.window_accumulator import STORED_AS
from continual_segment.segmentation.windows import gaussian_weights
from continual_segment.volume import Grid, LabelMap, Volume

SPACING_MM = (4.0, 4.0, 4.0)
CPU = torch.device("cpu")
SCANS = {
    "nearly isotropic": ((3.3, 2.7, 2.7), 1.0),
    "coarse slices": ((9.0, 2.1, 2.1), 1.0),
    "fewer slices than a window": ((3.3, 2.7, 2.7), 0.2),
}
"""Voxel size and the share of the slices that are kept."""
MARGIN_MM = 100.0
"""Air on all sides of the patient, as in a wide field of view."""


@dataclass(frozen=True)
class Steps:
    """How a scan is labelled; as nnU-Net does it unless changed."""

    normalise_first: bool = True
    spline: bool = True
    stored_as: type = np.float32
    half_weights: bool = True
    whole_scan: bool = True
    pad_with_zero: bool = True
    sum_logits: bool = True
    round_logits: bool = True
    coarse_nearest: bool = True


DEVIATIONS: dict[str, Steps] = {
    "none": Steps(),
    "interpolated logits stay float32": Steps(round_logits=False),
    "features are summed instead of logits": Steps(sum_logits=False),
    "window weights of segmentation/windows.py": Steps(half_weights=False),
    "windows in the box around the body": Steps(whole_scan=False),
    "padded with air instead of 0": Steps(pad_with_zero=False),
    "prepared scan stored as float16": Steps(stored_as=np.float16),
    "resampled in HU, int16, then normalised": Steps(normalise_first=False),
    "bicubic, anti-aliased, in HU, int16": Steps(normalise_first=False, spline=False),
    "linear along a coarse axis": Steps(coarse_nearest=False),
}


@dataclass(frozen=True, eq=False)
class Labelling:
    """One scan on its way through the network."""

    scan: Volume
    network: SmallNetwork
    steps: Steps = Steps()

    @cached_property
    def frame(self) -> NetworkFrame:
        return NetworkFrame.of_reader("SimpleITKIO", self.scan.grid.orientation)

    @cached_property
    def spacing_mm(self) -> tuple[float, float, float]:
        return self.frame.spacing_mm(self.scan.grid)

    def labels(self) -> np.ndarray:
        voxels = self.frame.to_network(self.scan.voxels)
        box = nonzero_box(voxels)
        crop = voxels[box]
        prepared = self.prepared(crop)
        padded, inner = self._padded(prepared)
        logits = self._logits(padded, self._starts(padded, inner))[(slice(None), *inner)]
        found = self._on_crop(logits, crop.shape)
        return self.frame.from_network(put_back(found, box, voxels.shape))

    def prepared(self, crop: np.ndarray) -> np.ndarray:
        shape = resampled_shape(crop.shape, self.spacing_mm, SPACING_MM)
        coarse = coarse_axis(self.spacing_mm, SPACING_MM)
        if self.steps.normalise_first:
            return resample_like_nnunet(normalised(crop), shape, coarse).astype(self.steps.stored_as)
        if self.steps.spline:
            return normalised(np.rint(resample_like_nnunet(crop.astype(np.float32), shape, coarse)))
        grid = Grid(crop.shape, np.eye(4))  # type: ignore[arg-type]
        return normalised(resample_scan(Volume(crop, grid), grid.with_shape(shape), np.int16).voxels)

    def _padded(self, prepared: np.ndarray) -> tuple[np.ndarray, tuple[slice, ...]]:
        """At least a window, and where the scan is in it."""
        missing = [max(0, side - length) for side, length in zip(WINDOW, prepared.shape, strict=True)]
        before = [gap // 2 for gap in missing]
        value = 0 if self.steps.pad_with_zero else prepared.min()
        widths = [(first, gap - first) for first, gap in zip(before, missing, strict=True)]
        inner = tuple(slice(b, b + n) for b, n in zip(before, prepared.shape, strict=True))
        return np.pad(prepared, widths, constant_values=value), inner

    @torch.no_grad()
    def _logits(self, prepared: np.ndarray, starts: list[list[int]]) -> Tensor:
        """Mean of the windows (class, z, y, x), float16."""
        last, head = self.network.head, self.network.head.weight.flatten(1)
        run = self.network if self.steps.sum_logits else self.network.features
        weights = torch.from_numpy(
            nnunet_window_weights(WINDOW) if self.steps.half_weights else gaussian_weights(WINDOW)
        )
        channels = last.out_channels if self.steps.sum_logits else last.in_channels
        total = torch.zeros(channels, *prepared.shape, dtype=STORED_AS)
        count = torch.zeros(prepared.shape, dtype=weights.dtype)
        for corner in product(*starts):
            z, y, x = (slice(start, start + side) for start, side in zip(corner, WINDOW, strict=True))
            place = z, y, x
            window = torch.from_numpy(prepared[place].astype(np.float32))
            total[:, *place] += run(window[None, None])[0] * weights
            count[place] += weights
        mean = total / torch.where(count > 0, count, 1)
        if self.steps.sum_logits:
            return mean
        logits = torch.einsum("kc,czyx->kzyx", head, mean.float()) + last.bias[:, None, None, None]
        return logits * (count > 0)

    def _starts(self, padded: np.ndarray, inner: tuple[slice, ...]) -> list[list[int]]:
        """First voxels of the windows, per axis."""
        parts = [slice(0, length) for length in padded.shape]
        if not self.steps.whole_scan:
            hu = padded[inner[0]] * CT["std"] + CT["mean"]
            parts[1:] = body_box(hu, WINDOW)
        return [
            [part.start + start for start in nnunet_window_starts(part.stop - part.start, side)]
            for part, side in zip(parts, WINDOW, strict=True)
        ]

    def _on_crop(self, logits: Tensor, shape: tuple[int, ...]) -> np.ndarray:
        coarse = coarse_axis(SPACING_MM, self.spacing_mm) if self.steps.coarse_nearest else None
        sampling = Sampling(logits.shape[1:], shape, shape, coarse=coarse)
        depth, plane = sampling.depth, sampling.across(0)
        labels = np.empty(shape, np.uint8)
        for z in range(len(labels)):
            one = Axis(depth.lower[[z]], depth.upper[[z]], depth.fraction[[z]], slice(0, 1))
            found = logits
            for axis, between in enumerate((one, *plane), start=1):
                found = interpolated(found, axis, between)
            labels[z] = (found.half() if self.steps.round_logits else found).numpy().argmax(0)[0]
        return labels


def interpolated(logits: Tensor, axis: int, between: Axis) -> Tensor:
    lower, upper = (logits.index_select(axis, torch.from_numpy(at)) for at in (between.lower, between.upper))
    part = between.fraction.reshape([-1 if axis == other else 1 for other in range(4)])
    return torch.lerp(lower.float(), upper.float(), torch.from_numpy(part))


def normalised(voxels: np.ndarray) -> np.ndarray:
    clipped = np.clip(voxels.astype(np.float32), CT["percentile_00_5"], CT["percentile_99_5"])
    return (clipped - np.float32(CT["mean"])) / np.float32(CT["std"])


def phantom(folder: Path, spacing_mm: tuple[float, float, float], share: float = 1.0) -> tuple[Path, Path]:
    """A scan in LPS, as most converters write it, and its labels, which have no margin of air."""
    root = write_phantom(folder, "totalseg", 1, 0, spacing_mm, 1, "demo", progress=False)
    (scan,), (labels,) = ([*(root / part).glob("*.nii.gz")] for part in ("imagesTr", "labelsTr"))
    volume = read_scan(scan)
    depth, margin = volume.grid.shape[0], round(MARGIN_MM / spacing_mm[1])
    kept = volume.voxels[: round(depth * share)]
    wide = np.pad(kept, [(0, 0), (margin, margin), (margin, margin)], constant_values=-1000)
    write_scan(scan, Volume(wide, replace(volume.grid, shape=wide.shape, orientation="LPS")))
    return scan, labels


def train(scan: Path, labels: Path, iterations: int) -> SmallNetwork:
    way = Labelling(read_scan(scan), SmallNetwork(2))
    prepared = way.prepared(way.frame.to_network(way.scan.voxels))
    organs = read_labels(labels).voxels
    margin = [(gap // 2, gap // 2) for gap in np.subtract(way.scan.grid.shape, organs.shape)]
    truth = np.ascontiguousarray(way.frame.to_network(np.pad(organs, margin)))
    grid = Grid(truth.shape, np.eye(4))  # type: ignore[arg-type]
    small = resample_labels(LabelMap(truth, grid), grid.with_shape(prepared.shape)).voxels  # type: ignore[arg-type]
    return trained_network(prepared, small, iterations)


def stock_labels(scan: Path, network: Path, classes: int, folder: Path, python: Path) -> np.ndarray:
    plans = plans_of("SimpleITKIO", (0, 1, 2), SPACING_MM)
    plans["configurations"]["3d_fullres"]["patch_size"] = WINDOW
    arguments = {"file": str(scan), "plans": plans, "network": str(network), "classes": classes}
    arguments["out"] = str(folder / "stock.nii.gz")
    jobs = [{"name": "predict", "function": "predict", "arguments": arguments}]
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    run([python, Path(__file__).with_name("nnunet_functions.py"), folder], {"OMP_NUM_THREADS": "1"})
    return read_labels(folder / "stock.nii.gz").voxels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("venv", type=Path)
    parser.add_argument("--iterations", type=int, default=600)
    parser.add_argument("--folder", type=Path, required=True, help="for phantoms and nnU-Net's labels")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    python = nnunet_python(chosen.venv)
    scan, labels = phantom(chosen.folder / "training", (4.1, 3.9, 3.9))
    network = train(scan, labels, chosen.iterations)
    saved = chosen.folder / "network.pt"
    torch.jit.trace(network, torch.zeros(1, 1, *WINDOW)).save(str(saved))
    for name, (spacing_mm, share) in SCANS.items():
        scan, _ = phantom(chosen.folder / name.replace(" ", "_"), spacing_mm, share)
        volume = read_scan(scan)
        stock = stock_labels(scan, saved, network.head.out_channels, chosen.folder, python)
        print(f"{name}: {volume.grid.shape} voxels, {np.mean(stock > 0):.1%} in {stock.max()} organs")
        for deviation, steps in DEVIATIONS.items():
            ours = Labelling(volume, network, steps).labels()
            wrong = np.count_nonzero(ours != stock)
            print(f"  {deviation:<45}{1 - wrong / stock.size:>12.5%}{wrong:>9} voxels", flush=True)


if __name__ == "__main__":
    main()
