"""Dice, HD95 and mean surface distance of many organs: ours against MONAI, in one run.

    python benchmarks/metrics_vs_monai.py            # 143 organs, two of them large: minutes
    python benchmarks/metrics_vs_monai.py --monai-organs 20

MONAI gets a virtual environment of its own, made on first use (--venv). It is given one organ at a time, as
one-hot masks of all organs would not fit into memory; `--monai-organs` measures it on every n-th organ so
that a run stays short. Shown: milliseconds per organ, their ratio, and the largest difference of the values.
HD95 is here the percentile over both directions together; MONAI's own takes the larger of two percentiles. It
is timed as it is; for the comparison of values its distances are pooled as ours are.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from nnunet_venv import run

SPACING_MM = (3.0, 1.5, 1.5)
MONAI = """
import json, sys, time
import numpy as np, torch
from monai.metrics.utils import get_mask_edges, get_surface_distance
from monai.metrics import compute_dice, compute_hausdorff_distance, compute_average_surface_distance
file, organs = np.load(sys.argv[1]), json.loads(sys.argv[2])
torch.set_num_threads(int(sys.argv[3]) or torch.get_num_threads())
found, spacing = {}, file["spacing"].tolist()
begun = time.perf_counter()
for organ in organs:
    y_pred, y = (torch.from_numpy(file[name] == organ)[None, None] for name in ("prediction", "truth"))
    options = dict(include_background=True, spacing=spacing)
    found[organ] = [
        float(compute_dice(y_pred, y)),
        float(compute_hausdorff_distance(y_pred, y, percentile=95, directed=False, **options)),
        float(compute_average_surface_distance(y_pred, y, symmetric=True, **options)),
    ]
seconds = time.perf_counter() - begun
for organ in organs:  # not timed: ours is the percentile of both directions in one pool
    y_pred, y = (file[name] == organ for name in ("prediction", "truth"))
    edges = [edge.numpy() if torch.is_tensor(edge) else edge for edge in get_mask_edges(y_pred, y)[:2]]
    ways = [get_surface_distance(a, b, "euclidean", spacing) for a, b in (edges, edges[::-1])]
    found[organ].insert(2, float(np.percentile(np.concatenate([np.asarray(way) for way in ways]), 95)))
print(json.dumps({"seconds": seconds, "scores": found}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--organs", type=int, default=143)
    parser.add_argument("--monai-organs", type=int, help="measure MONAI on so many (default: all)")
    parser.add_argument("--shape", type=int, nargs=3, default=[160, 256, 256], metavar=("Z", "Y", "X"))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3, help="of ours; the median counts")
    parser.add_argument("--venv", type=Path, default=Path.home() / ".cache/continual-segment/monai-venv")
    args = parser.parse_args()
    truth, prediction = two_bodies(tuple(args.shape), args.organs)
    organs = [int(organ) for organ in np.intersect1d(truth, prediction) if organ]
    every = max(1, len(organs) // (args.monai_organs or len(organs)))
    asked = organs[::every]
    ours, scores = measure_ours(prediction, truth, organs, args.rounds)
    theirs = measure_monai(prediction, truth, asked, args)
    sizes = np.bincount(truth.ravel())[1:]
    ours_ms, theirs_ms = 1000 * ours / len(organs), 1000 * theirs["seconds"] / len(asked)
    print(f"{len(organs)} organs of {sizes[sizes > 0].min()} to {sizes.max()} voxels in {args.shape}")
    print(f"ours   {ours_ms:9.2f} ms an organ, {ours:.2f} s in all")
    print(f"MONAI  {theirs_ms:9.2f} ms an organ, on {len(asked)} of them")
    print(f"ratio  {theirs_ms / ours_ms:9.1f}")
    for name, own, theirs_at in (("Dice", 0, 0), ("HD95", 1, 2), ("ASD", 2, 3), ("HD95, MONAI's own", 1, 1)):
        pairs = ((v[theirs_at], scores[int(organ)][own]) for organ, v in theirs["scores"].items())
        print(f"{name:18} differs by {max(abs(a - b) for a, b in pairs):.2e} at most")


def two_bodies(shape: tuple[int, ...], organs: int) -> tuple[np.ndarray, np.ndarray]:
    """A truth and a prediction a few voxels off: a tenth of the organs large, most small."""
    rng = np.random.default_rng(0)
    truth, prediction = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
    for organ in range(1, organs + 1):
        share = 0.3 if organ <= 2 else 0.15 if organ <= organs // 10 else rng.uniform(0.02, 0.06)
        radii = np.maximum(2, share * np.array(shape) * rng.uniform(0.7, 1.0, 3))
        centre = rng.uniform(radii, np.array(shape) - radii)
        for voxels, shift in ((truth, 0), (prediction, rng.normal(0, 1, 3))):
            draw(voxels, centre + shift, radii * (1 if voxels is truth else rng.uniform(0.9, 1.1)), organ)
    return truth, prediction


def draw(voxels: np.ndarray, centre: np.ndarray, radii: np.ndarray, organ: int) -> None:
    low = np.maximum(0, np.floor(centre - radii)).astype(int)
    high = np.minimum(voxels.shape, np.ceil(centre + radii) + 1).astype(int)
    box = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
    axes = np.ogrid[box]
    inside = sum(((axis - c) / r) ** 2 for axis, c, r in zip(axes, centre, radii, strict=True)) <= 1
    voxels[box][inside] = organ


def measure_ours(
    prediction: np.ndarray, truth: np.ndarray, organs: list[int], rounds: int
) -> tuple[float, dict[int, tuple[float, float, float]]]:
    from continual_segment.metrics import score_labels

    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        scores = score_labels(prediction, truth, organs, SPACING_MM)
        seconds.append(time.perf_counter() - begun)
    return float(np.median(seconds)), {
        organ: (score.dice, score.hd95_mm, score.asd_mm) for organ, score in scores.items()
    }


def measure_monai(
    prediction: np.ndarray, truth: np.ndarray, organs: list[int], args: argparse.Namespace
) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "maps.npz"
        np.savez(file, prediction=prediction, truth=truth, spacing=np.array(SPACING_MM))
        command = [monai_python(args.venv), "-c", MONAI, file, json.dumps(organs), args.threads]
        return run(command)


def monai_python(folder: Path) -> Path:
    """The interpreter of MONAI's environment, which is made if need be."""
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        import torch

        print(f"Making {folder} with MONAI; once, minutes.", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        version = torch.__version__.split("+")[0]
        subprocess.run([*pip, f"torch=={version}", "monai", "scipy", "scikit-image"], check=True)
        (folder / "ready").touch()
    return python


if __name__ == "__main__":
    main()
