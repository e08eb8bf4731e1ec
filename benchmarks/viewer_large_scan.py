"""What the viewer does with 512 x 512 x 800 voxels and 60 organs: CPU time, memory, what the browser gets.

    python benchmarks/viewer_large_scan.py WORK [--profile]

Runs once per bound of the browser's voxels, each in a process of its own. Seconds are CPU time of one thread.
"""

from __future__ import annotations

import argparse
import cProfile
import multiprocessing
import pstats
import resource
import time
from pathlib import Path

import numpy as np

from continual_segment.files import write_labels, write_scan
from continual_segment.organs import known_organs
from continual_segment.viewer.bounds import MOST_VOXELS, MOST_WITHOUT_GRAPHICS
from continual_segment.viewer.cases import find_cases
from continual_segment.viewer.prepared_view import prepare_view
from continual_segment.volume import Grid, LabelMap, Volume

SHAPE = (800, 512, 512)
AFFINE = np.diag([0.8, 0.8, 1.0, 1.0])
ORGANS = 60


def make_scan(folder: Path) -> None:
    """A box of soft tissue with a ball for every organ."""
    voxels, labels = np.full(SHAPE, -1000, np.int16), np.zeros(SHAPE, np.uint8)
    voxels[:, 60:-60, 60:-60] = 40
    rng, organs = np.random.default_rng(0), known_organs()[:ORGANS]
    for organ in organs:
        radius = int(rng.integers(15, 45))
        centre = rng.integers([60, 120, 120], [740, 390, 390])
        box = tuple(slice(int(at) - radius, int(at) + radius) for at in centre)
        ball = ((np.indices((2 * radius,) * 3) - radius) ** 2).sum(axis=0) < radius**2
        labels[box][ball], voxels[box][ball] = organ.id, 60 + organ.id
    grid = Grid(SHAPE, AFFINE)
    write_labels(folder / "labels.nii.gz", LabelMap(labels, grid, {organ.id: organ.name for organ in organs}))
    write_scan(folder / "ct.nii", Volume(voxels, grid))


def measure(folder: Path, most_voxels: int, profile: bool) -> None:
    (case,) = find_cases([folder / "ct.nii", folder / "labels.nii.gz"])
    profiler, started = cProfile.Profile(), time.process_time()
    if profile:
        profiler.enable()
    view = prepare_view(case, folder / str(most_voxels), most_voxels)
    profiler.disable()
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    size = sum(path.stat().st_size for path in view.files.values()) / 1e6
    print(
        f"at most {most_voxels} voxels: {view.data['size_shown']}, {size:.0f} MB to the browser; "
        f"{seconds:.1f} s, peak {peak:.1f} GB"
    )
    if profile:
        pstats.Stats(profiler).sort_stats("cumtime").print_stats(25)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path)
    parser.add_argument("--profile", action="store_true", help="also print where the time goes")
    args = parser.parse_args()
    if not (args.work / "ct.nii").exists():
        make_scan(args.work)
    for most_voxels in (MOST_VOXELS, MOST_WITHOUT_GRAPHICS):
        process = multiprocessing.get_context("spawn").Process(
            target=measure, args=(args.work, most_voxels, args.profile)
        )
        process.start()
        process.join()


if __name__ == "__main__":
    main()
