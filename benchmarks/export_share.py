"""Which share of the CPU time of a scan is export: labels on the scan's own grid.

    python benchmarks/export_share.py DEMO                       # 400 slices of 512 x 512
    python benchmarks/export_share.py DEMO --slices 100

A phantom scan of a demo is enlarged to the grid of a clinical CT, and all packs of the demo segment it in one
thread. Shown: CPU seconds and shares of export, networks and merging, and the sha256 of the labels, by which
two versions of the code are compared.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.ndimage import zoom

from continual_segment.files import read_scan
from continual_segment.malloc import keep_freed_memory
from continual_segment.model import Model
from continual_segment.segmentation import SegmentConfig, Segmenter
from continual_segment.segmentation.label_upsampler import LabelUpsampler
from continual_segment.segmentation.slab import Slab
from continual_segment.volume import Grid, Volume


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("demo", type=Path, help="folder with model/ and raw/")
    parser.add_argument("--slices", type=int, default=400)
    parser.add_argument("--pixels", type=int, default=512)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    first = min((args.demo / "raw").glob("*/imagesTr/*.nii.gz"))
    scan = enlarged(read_scan(first), (args.slices, args.pixels, args.pixels))
    segmenter = Segmenter(Model.open(args.demo / "model"), config=SegmentConfig(progress=False))
    seconds: Counter[str] = Counter()
    segmenter.encode = timed(segmenter.encode, "encoder", seconds)
    for pack in segmenter.packs:
        pack.decode = timed(pack.decode, "decoders", seconds)
    LabelUpsampler.add = timed(LabelUpsampler.add, "export", seconds)  # type: ignore[method-assign]
    Slab.merge = timed(Slab.merge, "merging", seconds)  # type: ignore[method-assign]
    labels = timed(segmenter, "all", seconds)(scan).labels.voxels
    for name, found in seconds.most_common():
        print(f"{name:10} {found:8.1f} s {100 * found / seconds['all']:5.1f} %")
    print(f"sha256 of the labels: {hashlib.sha256(labels.tobytes()).hexdigest()}")


def enlarged(scan: Volume, shape: tuple[int, int, int]) -> Volume:
    """The same extent with more voxels."""
    factors = [new / old for new, old in zip(shape, scan.grid.shape, strict=True)]
    voxels = zoom(np.asarray(scan.voxels, np.float32), factors, order=1).round().astype(np.int16)
    spacing = [mm / factor for mm, factor in zip(scan.grid.spacing_mm, factors, strict=True)]
    return Volume(voxels, Grid(voxels.shape, np.diag([*spacing[::-1], 1.0])))


def timed(
    run: Callable[..., Any],
    name: str,
    seconds: Counter[str],
    clock: Callable[[], float] = time.process_time,
) -> Callable[..., Any]:
    """The same function; its seconds, by default those of the CPU, are added up."""

    def measured(*given: Any, **options: Any) -> Any:
        begun = clock()
        try:
            return run(*given, **options)
        finally:
            seconds[name] += clock() - begun

    return measured


if __name__ == "__main__":
    main()
