"""Does the encoder gain or lose when it is also asked for body parts in the first step?

    conseg demo --out DEMO
    python benchmarks/body_part_question.py DEMO OUT

Learns the demo's first three datasets with several weights of that question (0: not asked) and seeds, and
scores every pack alone on its dataset's held-out scans. The later packs show what the encoder is worth to
organs it was not trained on. Give the command again to go on where it stopped.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from itertools import product
from pathlib import Path

from continual_segment.config import ExperimentConfig, load_preset
from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.raw import RawDataset
from continual_segment.lab.phantom import dataset_folder
from continual_segment.lab.protocol import HeldOut, score
from continual_segment.learning import learn_dataset
from continual_segment.malloc import keep_freed_memory
from continual_segment.model import Model

NAMES = ("totalseg", "chest", "headneck")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("demo", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--preset", default="demo")
    parser.add_argument("--weights", type=float, nargs="+", default=[0.0, 0.1, 0.3])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    args = parser.parse_args()
    keep_freed_memory()
    preset = load_preset(args.preset)
    found: dict[float, list[list[float]]] = {weight: [] for weight in args.weights}
    print(f"{'seed':>4} {'weight':>7} {' '.join(f'{name:>9}' for name in NAMES)}")
    for seed, weight in product(args.seeds, args.weights):
        config = replace(preset.on(seed=seed), auxiliary=replace(preset.auxiliary, body_part_weight=weight))
        dice = learned_dice(args.demo, args.out / f"seed_{seed}_weight_{weight:g}", config)
        found[weight].append(dice)
        print(f"{seed:4} {weight:7g} {' '.join(f'{each:9.4f}' for each in dice)}", flush=True)
    for weight, rows in found.items():
        means = (statistics.mean(column) for column in zip(*rows, strict=True))
        print(f"mean {weight:7g} {' '.join(f'{each:9.4f}' for each in means)}")


def learned_dice(demo: Path, out: Path, config: ExperimentConfig) -> list[float]:
    """Dice of every pack alone, after learning what is not learned yet."""
    dice = []
    for name in NAMES:
        prepared = PreparedDataset.open(demo / "prepared" / name)
        if not ((out / "model").exists() and name in Model.open(out / "model").pack_names):
            learn_dataset(prepared, out / "model", config, name)
        test = HeldOut.of(RawDataset.open(dataset_folder(demo / "raw", name)), prepared, None)
        own, _ = score(out / "model", name, [name], test, config, out / "scores")
        dice.append(own.mean.dice)
    return dice


if __name__ == "__main__":
    main()
