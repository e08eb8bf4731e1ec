"""What making packs small costs in Dice on held-out scans, and what it saves.

    python benchmarks/small_packs.py MODEL NAME=PREPARED=RAW ... [--scans N]

MODEL was learned with `conseg learn --stages train,shrink` or `train,search,prune`; beside it MODEL.runs/NAME
holds the pack as it was after each earlier stage. Each dataset's test split is segmented by the pack after
every stage. Sizes are shares of nnU-Net's decoder for the same organs; the last line sums them over packs.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from continual_segment.config import load_preset
from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.raw import RawDataset
from continual_segment.lab.protocol import HeldOut, score
from continual_segment.learning.budget import shares_of
from continual_segment.learning.step import run_folder
from continual_segment.malloc import keep_freed_memory
from continual_segment.model import Model, OrganPack

STAGES = ("train", "shrink", "search", "prune")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("datasets", nargs="+", metavar="NAME=PREPARED=RAW")
    parser.add_argument("--scans", type=int, help="at most so many of each test split (default: all)")
    args = parser.parse_args()
    keep_freed_memory()
    sums = [0.0, 0.0]
    print("| pack | stage | kernels, deepest block first | Dice | parameters | multiply-adds |")
    print("|---|---|---|---|---|---|")
    for given in args.datasets:
        name, prepared, raw = given.split("=")
        test = HeldOut.of(
            RawDataset.open(Path(raw), check=False, progress=False),
            PreparedDataset.open(Path(prepared)),
            args.scans,
        )
        for stage, pack in stages_of(args.model, name).items():
            window = Model.open(args.model).window
            shares = shares_of(pack.plan, pack.network, window, len(pack.organs))
            dice = dice_of(args.model, pack, test)
            kernels = " ".join(pack.plan.kernels)
            print(
                f"| {name} | {stage} | {kernels} | {dice:.4f} | {shares[0]:.3f} | {shares[1]:.3f} |",
                flush=True,
            )
        sums = [total + share for total, share in zip(sums, shares, strict=True)]
    print(f"| all | | | | {sums[0]:.3f} | {sums[1]:.3f} |")


def stages_of(model: Path, name: str) -> dict[str, OrganPack]:
    """The pack after each stage, the installed one last."""
    run = run_folder(model, name)
    earlier = {stage: run / f"{stage}.pack" for stage in STAGES if (run / f"{stage}.pack").exists()}
    packs = {stage: OrganPack.read(path) for stage, path in earlier.items()}
    installed = Model.open(model).pack(name)
    last = next((stage for stage in reversed(STAGES) if stage in installed.card), "train")
    return packs | {last: installed}


def dice_of(model: Path, pack: OrganPack, test: HeldOut) -> float:
    """Mean Dice of one pack alone on held-out scans."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(model, Path(folder) / "model"))
        for name in Model.open(copy).pack_names:
            Model.open(copy).remove(name)
        Model.open(copy).add(pack)
        own, _ = score(copy, pack.name, [pack.name], test, load_preset("laptop"), Path(folder) / "scores")
        return own.mean.dice


if __name__ == "__main__":
    main()
