"""What fewer windows, and half precision of their sums, cost in Dice on a demo's held-out phantoms.

    python -m continual_segment.cli.main demo --out DEMO
    python benchmarks/overlap_dice.py DEMO

Every pack segments the first held-out scans of its own dataset, at every overlap in turn; `conseg segment
--fast` is 0.25. Shown: mean Dice over organs and scans, seconds, and the labels that differ from the first
line's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from continual_segment.data.splits import Split, split_cases
from continual_segment.files import read_labels, read_scan
from continual_segment.metrics import score_labels
from continual_segment.model import Model
from continual_segment.organs import LAST_HASHED_ID, find_organ
from continual_segment.segmentation import SegmentConfig, Segmenter, window_accumulator
from continual_segment.volume import LabelMap, Volume


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("demo", type=Path, help="folder with model/ and raw/")
    parser.add_argument("--overlaps", type=float, nargs="+", default=[0.5, 0.25])
    parser.add_argument("--scans", type=int, default=2, help="of each dataset (default: 2)")
    args = parser.parse_args()
    model = Model.open(args.demo / "model")
    first: list[np.ndarray] = []
    print(f"{'overlap':>8} {'sums in':>9} {'Dice':>8} {'organs':>7} {'seconds':>8} {'labels differ':>14}")
    for overlap in args.overlaps:
        for precision in (torch.float16, torch.float32):
            window_accumulator.STORED_AS = precision
            dice, maps, seconds = score(model, args.demo / "raw", overlap, args.scans)
            first = first or maps
            differ = sum(int((a != b).sum()) for a, b in zip(maps, first, strict=True))
            share = f"{differ} of {sum(each.size for each in maps)}"
            name = str(precision).removeprefix("torch.")
            print(
                f"{overlap:8} {name:>9} {np.mean(dice):8.4f} {len(dice):7} {seconds:8.1f} {share:>14}",
                flush=True,
            )


def score(model: Model, raw: Path, overlap: float, scans: int) -> tuple[list[float], list[np.ndarray], float]:
    """Dice of every organ and scan, the label maps, and seconds of segmenting."""
    dice, maps, seconds = [], [], 0.0
    for folder in sorted(raw.iterdir()):
        pack = next(name for name in model.pack_names if folder.name.endswith(name))
        config = SegmentConfig(overlap=overlap, keep_islands=True, progress=False)
        segmenter = Segmenter(model, packs=[pack], config=config)
        for scan, truth in held_out(folder, scans):
            begun = time.perf_counter()
            maps.append(segmenter(scan).labels.voxels)
            seconds += time.perf_counter() - begun
            organs = [int(organ) for organ in np.unique(truth.voxels) if organ]
            found = score_labels(maps[-1], truth.voxels, organs, scan.grid.spacing_mm)
            dice += [organ.dice for organ in found.values()]
    return dice, maps, seconds


def held_out(folder: Path, scans: int, split: Split = "test") -> Iterator[tuple[Volume, LabelMap]]:
    """The first test cases of a raw dataset, or those of another split; labels by organ id."""
    names = sorted(path.name.removesuffix("_0000.nii.gz") for path in (folder / "imagesTr").glob("*.nii.gz"))
    table = np.zeros(LAST_HASHED_ID + 1, np.uint16)
    for name, label in json.loads((folder / "dataset.json").read_text())["labels"].items():
        table[int(label)] = find_organ(name).id if int(label) else 0
    splits = split_cases(names)
    for name in [name for name in names if splits[name] == split][:scans]:
        truth = read_labels(folder / "labelsTr" / f"{name}.nii.gz")
        yield (
            read_scan(folder / "imagesTr" / f"{name}_0000.nii.gz"),
            LabelMap(table[truth.voxels], truth.grid),
        )


if __name__ == "__main__":
    main()
