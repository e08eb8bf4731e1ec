"""Dice and CPU time of networks on windows of several sizes and overlaps.

    python benchmarks/window_sizes.py RAW NAME=MODEL=PACK ... --windows 32,32,48 64,64,96

Every scan of a split of RAW is segmented by one pack of each model, without clean-up, in one thread. A
network trained on small patches alone leans on their size; one whose preset has `other_sizes` in [patches]
has seen several. Shown for each model, window and overlap: mean Dice over organs, CPU seconds of the networks
and of everything, and how often a voxel of a scan passes the encoder on average.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from math import prod
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from export_share import timed
from overlap_dice import held_out

from continual_segment.files import write_text
from continual_segment.malloc import keep_freed_memory
from continual_segment.metrics import score_labels
from continual_segment.model import Model
from continual_segment.segmentation import SegmentConfig, Segmenter

ALL = 10**6
COLUMNS = (
    "network",
    "window",
    "overlap",
    "Dice",
    "CPU s of networks",
    "CPU s in all",
    "times each voxel is seen",
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("raw", type=Path, help="raw dataset")
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL=PACK")
    parser.add_argument("--windows", nargs="+", type=sizes, required=True, metavar="Z,Y,X")
    parser.add_argument("--overlaps", nargs="+", type=float, default=[0.5, 0.25, 0.0])
    parser.add_argument("--split", choices=("validation", "test"), default="validation")
    parser.add_argument("--scans", type=int, default=ALL, help="at most so many (default: all)")
    parser.add_argument(
        "--out", type=Path, help="file of the table; each line is added as soon as it is known"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    scans = list(held_out(args.raw, args.scans, args.split))
    lines = [line(*COLUMNS), "|---" * len(COLUMNS) + "|"]
    for name, model, pack in (each.split("=") for each in args.models):
        for window in args.windows:
            for overlap in args.overlaps:
                lines.append(line(name, *measured(Path(model), pack, window, overlap, scans)))
                print(lines[-1], flush=True)
                if args.out:
                    text = f"{len(scans)} scans of the {args.split} split of {args.raw.name}\n\n"
                    write_text(args.out, text + "\n".join(lines) + "\n")


def sizes(text: str) -> tuple[int, int, int]:
    z, y, x = map(int, text.split(","))
    return z, y, x


def line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def measured(model: Path, pack: str, window: tuple[int, int, int], overlap: float, scans: list) -> list[str]:
    """The cells of one line."""
    config = SegmentConfig(overlap=overlap, keep_islands=True, progress=False)
    segmenter = Segmenter(Model.open(model), packs=[pack], config=config)
    segmenter.window = window
    seconds, seen, dice = Counter[str](), 0, dict[str, list[float]]()
    encode = timed(segmenter.encode, "networks", seconds)

    def counted(images: torch.Tensor) -> object:
        nonlocal seen
        seen += images.numel()
        return encode(images)

    segmenter.encode = counted
    for each in segmenter.packs:
        each.decode = timed(each.decode, "networks", seconds)
    voxels = 0
    for scan, truth in scans:
        begun = time.process_time()
        labels = segmenter(scan).labels
        seconds["all"] += time.process_time() - begun
        spacing = zip(scan.grid.shape, scan.grid.spacing_mm, segmenter.prepare.spacing_mm, strict=True)
        voxels += prod(round(length * own / prepared) for length, own, prepared in spacing)
        organs = [int(organ) for organ in np.unique(truth.voxels) if organ]
        for organ, found in score_labels(labels.voxels, truth.voxels, organs, scan.grid.spacing_mm).items():
            dice.setdefault(labels.names[organ], []).append(found.dice)
    return [
        " x ".join(map(str, window)),
        f"{overlap:g}",
        f"{fmean(map(fmean, dice.values())):.4f}",
        f"{seconds['networks']:.1f}",
        f"{seconds['all']:.1f}",
        f"{seen / voxels:.2f}",
    ]


if __name__ == "__main__":
    main()
