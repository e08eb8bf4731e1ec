"""How well body parts are found: boundaries in mm, order of scores, pictures.

    python benchmarks/body_parts.py PREPARED TRUTH --out OUT [--real PREPARED ...] [--scans FILE ...]

PREPARED is a phantom dataset with vertebra labels, TRUTH its raw folder's body_parts. A regressor learns from
the training scans; on the test split its boundaries, and those from labels, are compared with the truth. With
--real, a second regressor learns from phantoms and the training scans of those datasets together, for
--real-iterations updates; the order of its scores is measured on their test splits and on --scans, which
nothing learns from. OUT gets both regressors, results.json and pictures. A regressor that is there already is
not learned again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from continual_segment.body_parts import (
    BodyPartConfig,
    BodyPartRegressor,
    Regions,
    learn_body_parts,
    regions_from_labels,
)
from continual_segment.body_parts.learn import scan_of
from continual_segment.body_parts.regions import RegionConfig, smoothed
from continual_segment.data.prepared import PreparedDataset
from continual_segment.files import name_of_scan, read_scan, write_json
from continual_segment.malloc import keep_freed_memory
from continual_segment.organs import BODY_PARTS
from continual_segment.volume import LabelMap, Volume

COLOURS = ("tab:purple", "tab:orange", "tab:cyan", "tab:green")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prepared", type=Path)
    parser.add_argument("truth", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--real", type=Path, nargs="*", default=[])
    parser.add_argument("--real-iterations", type=int, default=2500)
    parser.add_argument("--scans", type=Path, nargs="*", default=[])
    parser.add_argument("--split", default="test")
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    phantoms = PreparedDataset.open(args.prepared)
    real = [PreparedDataset.open(folder) for folder in args.real]
    results: dict[str, Any] = {}
    for name, datasets in {"phantoms": [phantoms], "phantoms_and_real": [phantoms, *real]}.items():
        if name == "phantoms" or real:
            iterations = BodyPartConfig().train.iterations if name == "phantoms" else args.real_iterations
            regressor, learned = regressor_of(datasets, args.out, name, iterations)
            results[name] = learned | measured(regressor, phantoms, real, args)
    write_json(args.out / "results.json", results)
    print(json.dumps(results, indent=1))


def regressor_of(
    datasets: list[PreparedDataset], out: Path, name: str, iterations: int
) -> tuple[BodyPartRegressor, dict[str, Any]]:
    path = out / f"{name}.safetensors"
    if path.exists():
        return BodyPartRegressor.read(path), {}
    wall, work = time.monotonic(), time.process_time()
    config = BodyPartConfig()
    config = replace(config, train=replace(config.train, iterations=iterations))
    regressor = learn_body_parts(datasets, config, out / f"{name}.run")
    seconds = {"seconds": time.monotonic() - wall, "cpu_seconds": time.process_time() - work}
    regressor.write(path)
    return regressor, {key: round(value, 1) for key, value in seconds.items()}


def measured(
    regressor: BodyPartRegressor,
    phantoms: PreparedDataset,
    real: list[PreparedDataset],
    args: argparse.Namespace,
) -> dict[str, Any]:
    names = phantoms.case_names(args.split)
    truths = {name: json.loads((args.truth / f"{name}.json").read_text())["starts_mm"] for name in names}
    scans = {name: scan_of(phantoms.case(name)) for name in names}
    found = {name: regressor.regions(scan) for name, scan in scans.items()}
    labelled = {name: regions_from_labels(labels_of(phantoms, name)) for name in names}
    out = args.out / "pictures" / ("real" if regressor.card["datasets"][1:] else "phantoms")
    for name in names[:6]:
        draw(out / f"{name}.png", scans[name], found[name])
    result = {
        "boundaries": boundary_errors(found, truths),
        "boundaries_from_labels": boundary_errors(labelled, truths),
        "order": order_of(regressor, scans),
    }
    for dataset in real:
        held_out = {name: scan_of(dataset.case(name)) for name in dataset.case_names(args.split)}
        result[f"order_{dataset.name}"] = order_of(regressor, held_out)
        for name, scan in list(held_out.items())[:3]:
            draw(out / f"{dataset.name}_{name}.png", scan, regressor.regions(scan))
    for path in args.scans:
        scan = read_scan(path)
        result[f"order_{path.parent.name}"] = order_of(regressor, {name_of_scan(path): scan})
        draw(out / f"{path.parent.name}.png", scan, regressor.regions(scan))
    return result


def labels_of(dataset: PreparedDataset, name: str) -> LabelMap:
    case = dataset.case(name)
    names = {number: organ.name for number, organ in enumerate(dataset.organs, start=1)}
    return LabelMap(np.asarray(case.labels[:]), case.grid, names)


def boundary_errors(found: dict[str, Regions], truths: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Absolute errors in mm of boundaries that lie in the scans; those not found are counted as missed."""
    errors: dict[str, list[float]] = {name: [] for name in BODY_PARTS[1:]}
    missed = 0
    for name, regions in found.items():
        for part, mm in boundaries_inside(regions, truths[name]):
            if part in regions.starts_mm:
                errors[part].append(abs(regions.starts_mm[part] - mm))
            else:
                missed += 1
    everything = np.concatenate([errors[part] for part in errors])
    return {
        "boundaries": len(everything),
        "missed": missed,
        "median_mm": round(float(np.median(everything)), 2),
        "p90_mm": round(float(np.percentile(everything, 90)), 2),
        "largest_mm": round(float(everything.max()), 2),
        "median_mm_per_part": {part: round(float(np.median(each)), 2) for part, each in errors.items()},
        "scans_unknown": sum(not regions.edges for regions in found.values()),
    }


def boundaries_inside(regions: Regions, truth: dict[str, float]) -> Iterator[tuple[str, float]]:
    bottom, step = regions.grid.affine[2, 3], regions.grid.spacing_mm[0]
    for part, mm in truth.items():
        if -0.5 <= (mm - bottom) / step <= regions.grid.shape[0] - 0.5:
            yield part, mm


def order_of(regressor: BodyPartRegressor, scans: dict[str, Volume]) -> dict[str, Any]:
    """Rank correlation of score and height per scan, over slices of a body: raw, and smoothed for regions."""
    raw, smooth, unknown = [], [], []
    for name, scan in scans.items():
        scores, body = regressor.scores(scan)
        inside = np.flatnonzero(body)
        if not regressor.regions(scan).edges:
            unknown.append(name)
            continue
        evened = smoothed(scores[inside], RegionConfig().smooth_mm / scan.grid.spacing_mm[0])
        raw.append(float(spearmanr(inside, scores[inside]).statistic))
        smooth.append(float(spearmanr(inside, evened).statistic))
    return {"scans": len(scans), "unknown": unknown} | {
        kind: {
            "median": round(float(np.median(values)), 4),
            "least": round(min(values), 4),
            "below_0.99": sum(value < 0.99 for value in values),
        }
        for kind, values in (("raw", raw), ("smoothed", smooth))
        if values
    }


def draw(path: Path, scan: Volume, regions: Regions) -> None:
    """A coronal slice with a coloured band per body part."""
    body = scan.voxels > -500
    middle = int(np.median(np.flatnonzero(body.any(axis=(0, 2))))) if body.any() else scan.grid.shape[1] // 2
    z, _, x = np.multiply(scan.grid.shape, scan.grid.spacing_mm)
    figure = Figure(figsize=(4.0, 4.0 * z / x + 0.3), layout="constrained")
    axis = figure.subplots()
    area = (0, x, 0, z)
    axis.imshow(scan.voxels[:, middle, ::-1], "gray", vmin=-200, vmax=400, origin="lower", extent=area)
    step = scan.grid.spacing_mm[0]
    for index, (name, colour) in enumerate(zip(BODY_PARTS, COLOURS, strict=True)):
        at = np.flatnonzero(regions.body_part == index)
        if len(at):
            axis.axhspan(at[0] * step, (at[-1] + 1) * step, color=colour, alpha=0.3)
            axis.text(4, (at[0] + at[-1] + 1) / 2 * step, name, color="white", fontsize=8)
    axis.set(title="; ".join([path.stem, *regions.reasons])[:60])
    axis.title.set_fontsize(7)
    axis.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main()
