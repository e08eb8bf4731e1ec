"""How long, how fast and with how much of a teacher should a small decoder be trained?

    python benchmarks/shrink_settings.py MODEL NAME=PREPARED --preset laptop --plan 2d@24,2d@16,2d@8 \\
        --settings rate=1 --settings rate=1,share=1.3 --out OUT

One plan of pack NAME is fitted as `conseg pack shrink` does it, and trained with the preset's settings and
with others: share (of the first training's updates), rate (of its learning rate) and teacher_weight. OUT gets
NAME.md: Dice on validation windows and CPU seconds. Test scans take no part. Run again to resume.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch
from pack_budgets_report import line
from shrink_plans import shrinking_of

from continual_segment.files import write_text
from continual_segment.learning.shrink import ShrinkConfig, Shrinking
from continual_segment.malloc import keep_freed_memory
from continual_segment.networks.block_tree import Kernels

COLUMNS = ("plan, deepest first", "share", "rate", "teacher_weight", "fitted", "trained", "CPU s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("dataset", metavar="NAME=PREPARED")
    parser.add_argument("--preset", default="demo")
    parser.add_argument("--plan", type=lambda text: tuple(text.split(",")), required=True)
    parser.add_argument("--settings", type=given, action="append", default=[], metavar="NAME=VALUE,...")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    name, _, prepared = args.dataset.partition("=")
    shrinking = shrinking_of(args.model, name, Path(prepared), args.preset, args.out / "runs" / name)
    shrinking.fit({args.plan[:length] for length in range(1, len(args.plan) + 1)})
    (fitted,) = shrinking.rank([args.plan], f"fitted_{'-'.join(args.plan)}")
    lines = [f"{name}: trained decoder {shrinking.whole.dice:.4f} on validation windows", ""]
    lines += [line(*COLUMNS), "|---" * len(COLUMNS) + "|"]
    for settings in [{}, *args.settings]:
        config = replace(shrinking.config, **settings)
        dice, seconds = trained(shrinking, args.plan, config)
        chosen = (config.share, config.rate, config.teacher_weight)
        lines.append(
            line("-".join(args.plan), *chosen, f"{fitted.dice:.4f}", f"{dice:.4f}", f"{seconds:.0f}")
        )
        write_text(args.out / f"{name}.md", "\n".join(lines) + "\n")
        print(lines[-1], flush=True)


def given(text: str) -> dict[str, float]:
    return {name: float(value) for name, _, value in (part.partition("=") for part in text.split(","))}


def trained(shrinking: Shrinking, plan: Kernels, config: ShrinkConfig) -> tuple[float, float]:
    """Dice after training with these settings, and the CPU seconds of it."""
    folder = f"{config.share:g}_{config.rate:g}_{config.teacher_weight:g}"
    other = Shrinking(
        replace(shrinking.step, run=shrinking.step.run / folder), shrinking.tree.decoder, config
    )
    other.tree.blocks, other.tree.enlargers = shrinking.tree.blocks, shrinking.tree.enlargers
    begun = time.process_time()
    return other.train(plan).score.dice, time.process_time() - begun


if __name__ == "__main__":
    main()
