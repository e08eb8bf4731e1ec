"""Hundreds of packs on one encoder: CPU time beyond the decoders, and memory against one pack.

    python benchmarks/hub.py                               # 24 slices of 512x512, network of preset demo
    python benchmarks/hub.py --packs 1 64 --slices 160 --spacing-mm 6

Every line is `conseg segment` as a user types it, from a scan on disk to a label map on disk, in one thread.
made_up_hub.py describes packs and scan: each pack has five organs, one of them shared with the pack before
it, finds them in small places, and covers one or two body parts, or all. Decoders are small: their plan is
the one that search and pruning found for small packs (results/small_packs).

Seconds are CPU seconds (user and system) of the whole process, start-up included; wall-clock time is not
shown, so the machine may be shared. `decoders` are those within the decoders, `beyond` is the share of all
others. The memory is the most that the process ever held (resident), `above one` its difference to the first
line. Below each line are the parts: networks, sums over windows (accumulating), merging on the prepared grid,
export to the scan's grid, loading of the model, and the rest (start-up, reading, resampling, body parts,
writing).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from export_share import timed

from continual_segment.malloc import TUNABLES, with_malloc_settings


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--packs", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--slices", type=int, default=24)
    parser.add_argument("--pixels", type=int, default=512, help="rows and columns (default: 512)")
    parser.add_argument("--pixel-mm", type=float, default=0.75)
    parser.add_argument("--slice-mm", type=float, default=5.0)
    parser.add_argument("--preset", default="demo", help="whose network and window are used")
    parser.add_argument("--plan", default="projection,2d,projection", help="kernels, deepest block first")
    parser.add_argument("--spacing-mm", type=float, default=3.0, help="of prepared voxels (default: 3)")
    parser.add_argument("--found-share", type=float, default=0.0005, help="of a window, by each organ")
    parser.add_argument("--overlap", type=float, default=0.5, help="of windows (default: 0.5)")
    parser.add_argument("--folder", type=Path, help="where scan and models are kept for another run")
    parser.add_argument("--measure", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        sys.exit(measure(Path(args.measure[0]), args.measure[1:]))
    with tempfile.TemporaryDirectory() as temporary:
        compare(args.folder or Path(temporary), args)


def compare(folder: Path, args: argparse.Namespace) -> None:
    """A line per number of packs."""
    from made_up_hub import Hub, make_body, make_hub

    folder.mkdir(exist_ok=True)
    scan, shape = folder / "scan.nii.gz", (args.slices, args.pixels, args.pixels)
    if not scan.exists():
        make_body(scan, shape, (args.slice_mm, args.pixel_mm, args.pixel_mm))
    print(
        f"{' x '.join(map(str, shape))}, preset {args.preset} with voxels of {args.spacing_mm:g} mm, ", end=""
    )
    print(f"plan {args.plan}, overlap {args.overlap}")
    print(f"{'packs':>6} {'CPU s':>8} {'decoders s':>11} {'beyond %':>9} {'peak GiB':>9} {'above one':>10}")
    one = None
    for packs in args.packs:
        model = folder / f"hub_{packs}"
        if not model.exists():
            make_hub(model, Hub(packs, args.preset, args.plan, args.found_share, args.spacing_mm), scan)
        found = segment(folder, scan, model, args.overlap)
        one = one or found["peak"]
        print(line(packs, found, one), flush=True)


def segment(folder: Path, scan: Path, model: Path, overlap: float) -> dict[str, Any]:
    """`conseg segment` in a process of its own: seconds of its parts, bytes, and its labels."""
    report, out = folder / "report.json", folder / "labels.nii.gz"
    words = ["segment", scan, "-m", model, "-o", out, "--overlap", overlap, "--quiet"]
    command = [str(word) for word in (sys.executable, __file__, "--measure", report, *words)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", TUNABLES: with_malloc_settings()}
    process = subprocess.Popen(command, env=environment, stdout=sys.stderr)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return json.loads(report.read_text()) | {"all": used.ru_utime + used.ru_stime} | labels_in(out)


def labels_in(path: Path) -> dict[str, Any]:
    import numpy as np

    from continual_segment.files import read_labels

    voxels = np.asarray(read_labels(path).voxels)
    digest = hashlib.sha256(np.ascontiguousarray(voxels).tobytes()).hexdigest()
    organs = len(np.unique(voxels)) - 1
    return {"labelled": float((voxels > 0).mean()), "organs": organs, "sha256": digest[:16]}


def line(packs: int, found: dict[str, Any], one: int) -> str:
    """What one run took, and below it the parts."""
    total, seconds = found["all"], found["seconds"]
    beyond = 100 * (1 - seconds["decoders"] / total)
    parts = dict(seconds) | {"rest": total - sum(seconds.values())}
    shown = ", ".join(f"{name} {value:.1f}" for name, value in sorted(parts.items(), key=lambda x: -x[1]))
    return (
        f"{packs:6} {total:8.1f} {seconds['decoders']:11.1f} {beyond:9.1f} {found['peak'] / 2**30:9.2f} "
        f"{(found['peak'] - one) / 2**30:10.2f}\n       {shown}\n       {found['organs']} organs in "
        f"{100 * found['labelled']:.2f} % of the voxels, sha256 of the labels {found['sha256']}"
    )


def measure(report: Path, words: list[str]) -> int:
    """Run the command in this process, with clocks in it; its parts and most memory are written as JSON."""
    from continual_segment.cli.main import main as conseg

    seconds: Counter[str] = Counter()
    put_clocks(seconds)
    code = conseg(words)
    seconds["accumulating"] -= seconds["decoders"]
    report.write_text(json.dumps({"seconds": seconds, "peak": most_resident()}))
    return code


def put_clocks(seconds: Counter[str], clock: Callable[[], float] = time.process_time) -> None:
    """From now on, seconds of the steps of a segmentation are added up, by default those of the CPU."""
    from continual_segment.segmentation import segmenter
    from continual_segment.segmentation.backends import FloatEngine
    from continual_segment.segmentation.int8 import Int8Engine
    from continual_segment.segmentation.label_upsampler import LabelUpsampler
    from continual_segment.segmentation.pack_decoder import PackDecoder
    from continual_segment.segmentation.slab import Slab

    for engine, (name, part) in product(
        (FloatEngine, Int8Engine), (("encoder", "encoder"), ("decoder", "decoders"))
    ):
        start = getattr(engine, name)
        setattr(
            engine,
            name,
            lambda *given, start=start, part=part: timed(start(*given), part, seconds, clock),
        )
    for owner, name, part in (
        (PackDecoder, "add_batch", "accumulating"),
        (Slab, "merge", "merging"),
        (LabelUpsampler, "add", "export"),
        (segmenter.Segmenter, "__init__", "loading"),
    ):
        setattr(owner, name, timed(getattr(owner, name), part, seconds, clock))


def most_resident() -> int:
    """Bytes; of this program alone, also where the process had another one before."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) * 1024


if __name__ == "__main__":
    main()
