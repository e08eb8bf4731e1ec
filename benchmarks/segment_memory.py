"""How the memory of `conseg segment` grows with slices, organs and packs.

    python benchmarks/segment_memory.py                      # 512x512, a light network: minutes
    python benchmarks/segment_memory.py --slices 800 --organs 143 --packs 4

Every line is `conseg segment` as a user types it, from a scan on disk to a label map on disk; shown is the
most memory it ever held (resident) and how long it took. The light network has the accumulators of the
paper's and next to no working memory of its own: `--network paper` adds that, and takes hours.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

from made_up import NETWORKS, make_model, make_scan

WINDOW, SPACING_MM = (64, 128, 128), (3.0, 0.75, 0.75)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slices", type=int, nargs="+", default=[100, 200])
    parser.add_argument("--organs", type=int, nargs="+", default=[72, 143])
    parser.add_argument("--packs", type=int, nargs="+", default=[4])
    parser.add_argument("--pixels", type=int, default=512, help="rows and columns (default: 512)")
    parser.add_argument("--pixel-mm", type=float, default=0.75, help="0.75 needs no resampling in-plane")
    parser.add_argument("--slice-mm", type=float, default=3.0, help="3 needs no resampling between slices")
    parser.add_argument("--overlap", type=float, default=0.0, help="of windows (default: 0, for speed)")
    parser.add_argument("--network", choices=NETWORKS, default="light")
    parser.add_argument("--imported", action="store_true", help="as a model imported from nnU-Net")
    args = parser.parse_args()
    print(f"{'slices':>7} {'organs':>7} {'packs':>6} {'seconds':>9} {'peak GiB':>9} {'GB':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for slices, organs, packs in product(args.slices, args.organs, args.packs):
            seconds, peak = one(Path(folder), slices, organs, packs, args)
            print(
                f"{slices:7} {organs:7} {packs:6} {seconds:9.1f} {peak / 2**30:9.2f} {peak / 1e9:6.2f}",
                flush=True,
            )


def one(folder: Path, slices: int, organs: int, packs: int, args: argparse.Namespace) -> tuple[float, int]:
    """Seconds and peak bytes of one scan."""
    scan, model = folder / f"{slices}.nii.gz", folder / f"model_{organs}_{packs}"
    if not scan.exists():
        make_scan(scan, (slices, args.pixels, args.pixels), (args.slice_mm, args.pixel_mm, args.pixel_mm))
    if not model.exists():
        make_model(model, args.network, organs, packs, WINDOW, SPACING_MM, ["projection"], args.imported)
    conseg = [sys.executable, "-m", "continual_segment.cli.main", "segment"]
    options = ["-m", model, "-o", folder / "out.nii.gz", "--overlap", str(args.overlap)]
    begun = time.perf_counter()
    process = subprocess.Popen([*conseg, scan, *options], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"conseg segment ended with {os.waitstatus_to_exitcode(status)}.")
    return time.perf_counter() - begun, used.ru_maxrss * 1024


if __name__ == "__main__":
    main()
