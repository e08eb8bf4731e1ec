"""Does the Dice of fitted plans predict the Dice after training? What do the fit and the teacher bring?

    python benchmarks/shrink_plans.py MODEL NAME=PREPARED --preset demo --out OUT

The trained decoder of pack NAME is fitted by smaller blocks as `conseg learn --stages train,shrink` does
it, and some plans from good to bad are trained. The first of them is also trained without a teacher, and from
random weights with and without it. OUT gets NAME.json and NAME.md. Dice is on validation windows; test scans
take no part.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path

import torch
from scipy.stats import spearmanr

from continual_segment.config import load_preset
from continual_segment.data.prepared import PreparedDataset
from continual_segment.files import write_json, write_text
from continual_segment.learning.expected_plans import without_beaten
from continual_segment.learning.selection import PlanScore
from continual_segment.learning.shrink import Shrinking
from continual_segment.learning.train_decoder import FrozenStep, PatchSource
from continual_segment.model import Model
from continual_segment.networks import Decoder, DecoderPlan

Row = tuple[str, PlanScore, float, float]
"""How it was made, its sizes, Dice before and after training."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("dataset", metavar="NAME=PREPARED")
    parser.add_argument("--preset", default="demo")
    parser.add_argument("--plans", type=int, default=8, help="to train (default: 8)")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    name, _, prepared = args.dataset.partition("=")
    shrinking = shrinking_of(args.model, name, Path(prepared), args.preset, args.out / "runs" / name)
    chosen = spread(shrinking.expected, shrinking.whole, args.plans)
    plans = [score.plan for score in chosen]
    shrinking.fit({plan[:length] for plan in plans for length in range(1, len(plan) + 1)})
    fitted = shrinking.rank(plans, "spread")
    rows = [trained(shrinking, score) for score in fitted]
    rows += controls(shrinking, rows[0])
    stored = {
        "trained": asdict(shrinking.whole),
        "blocks_alone": [asdict(score) for score in shrinking.blocks_alone],
        "expected": [asdict(score) for score in chosen],
        "fitted": [asdict(score) for score in fitted],
    }
    stored["rows"] = [
        {"how": row[0], "dice_before": row[2], "dice_after": row[3]} | asdict(row[1]) for row in rows
    ]
    write_json(args.out / f"{name}.json", stored)
    write_text(args.out / f"{name}.md", table(name, shrinking.whole, rows))
    print(table(name, shrinking.whole, rows))


def shrinking_of(model: Path, name: str, prepared: Path, preset: str, run: Path) -> Shrinking:
    opened, config = Model.open(model), load_preset(preset)
    patches = config.patches.of_later_step(opened.window)
    source = PatchSource(PreparedDataset.open(prepared).learnable(), patches, config.augment)
    step = FrozenStep(opened.load_encoder().freeze(), source, config.later, run, name)
    return Shrinking(step, opened.pack(name).decoder(), config.shrink)


def spread(expected: list[PlanScore], whole: PlanScore, count: int) -> list[PlanScore]:
    """Plans that none beats, from the best to the worst, all below half the multiply-adds."""
    small = without_beaten([score for score in expected if score.multiply_adds < whole.multiply_adds / 2])
    return [small[round(number * (len(small) - 1) / (count - 1))] for number in range(count)]


def trained(shrinking: Shrinking, score: PlanScore) -> Row:
    return "fitted, teacher", score, score.dice, shrinking.train(score.plan).score.dice


def controls(shrinking: Shrinking, row: Row) -> list[Row]:
    """The same plan without the teacher, without the fit, and without both."""
    score, config, step = row[1], shrinking.config, shrinking.step
    made = []
    for fitted, weight in ((True, 0.0), (False, config.teacher_weight), (False, 0.0)):
        how = f"{'fitted' if fitted else 'random weights'}, {'teacher' if weight else 'labels alone'}"
        control = Shrinking(
            replace(step, run=step.run / how.replace(", ", "_").replace(" ", "_")),
            shrinking.tree.decoder,
            replace(config, teacher_weight=weight, rate=config.rate if fitted else 1.0),
        )
        control.tree.blocks, control.tree.enlargers = shrinking.tree.blocks, shrinking.tree.enlargers
        if not fitted:
            torch.manual_seed(step.settings.seed)
            decoder = shrinking.tree.decoder
            random = Decoder(decoder.network, DecoderPlan(score.plan), decoder.organs)
            control.tree.assembled = lambda plan, random=random: random  # type: ignore[method-assign,misc]
        before = control.ranking.dice_of(control.tree.assembled(score.plan), "before")
        made.append((how, score, before, control.train(score.plan).score.dice))
    return made


def table(name: str, whole: PlanScore, rows: list[Row]) -> str:
    ranked = [row for row in rows if row[0] == "fitted, teacher"]
    rank = spearmanr([row[2] for row in ranked], [row[3] for row in ranked]).statistic
    lines = [
        f"{name}: trained decoder {whole.dice:.4f} on validation windows. Rank correlation of Dice before",
        f"and after training, of {len(ranked)} fitted plans with a teacher: {rank:.2f}.",
        "",
        "| plan, deepest first | start | parameters | multiply-adds | Dice before | after | regained |",
        "|---|---|---|---|---|---|---|",
    ]
    for how, score, before, after in rows:
        sizes = [
            f"{part / of:.3f}"
            for part, of in (
                (score.paper_parameters, whole.paper_parameters),
                (score.multiply_adds, whole.multiply_adds),
            )
        ]
        regained = (after - before) / (whole.dice - before)
        cells = ["-".join(score.plan), how, *sizes, f"{before:.4f}", f"{after:.4f}", f"{regained:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
