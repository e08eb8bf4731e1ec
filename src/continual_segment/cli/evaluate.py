"""`conseg evaluate`: scores of label maps against a dataset's truth."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from continual_segment.cli.options import add_quiet, positive_int
from continual_segment.names import some_of

if TYPE_CHECKING:
    from continual_segment.evaluation import Evaluation, StepForgetting

DESCRIPTION = """\
Compare label maps with the truth: Dice (DSC), 95th percentile of the surface distance (HD95) and average
surface distance (ASD), in millimetres, for every case and organ of the dataset.

PREDICTIONS is a folder of label maps <case>.nii.gz, as `conseg segment` writes them. TRUTH is a raw dataset
in any layout that `conseg prepare` reads, or a folder of label maps of the same names. Organs are matched by
name, so the numbers in the two may differ. Only organs of TRUTH are scored.

Scores of training cases say nothing about new scans. Where the prepared dataset is known, by --prepared or
because `conseg prepare` wrote it to its default folder here, its test cases are scored. Otherwise all cases
are, with a warning; --split test then goes by the cases' names, as `conseg prepare` does.

An organ that was missed altogether has DSC 0 and no distance. The columns HD95 and ASD leave it out and
`missed` counts it; the penalised columns count it as the image diagonal. Where a case lacks the organ
(`absent`) nothing is scored, and the volume predicted there is the false positive volume."""

EPILOG = """\
examples:
  conseg evaluate predictions/ Dataset101_Chest/ -o scores/
  conseg evaluate predictions/ Dataset101_Chest/ --prepared chest/ -o scores/
  conseg evaluate predictions/ Dataset101_Chest/ --split all
  conseg evaluate predictions/ Dataset101_Chest/ --organs heart,esophagus
  conseg evaluate step2/ Dataset101_Chest/ -o scores_step2/ --earlier scores_step1/
  conseg evaluate predictions/ Dataset101_Chest/ --json | jq .mean.dice

written to OUT:
  scores.csv       one line per case and organ, with the split of the case
  organs.csv       means per organ over cases, per organ group, and of the dataset over its organs; the split
                   that was scored, and how many cases of each split
  evaluation.json  all of it

exit code: 0 when every case with prediction and truth was scored, 1 when some could not be, 2 when none"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "evaluate",
        help="score label maps against the truth: DSC, HD95, ASD per organ",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("predictions", type=Path, metavar="PREDICTIONS", help="folder of label maps")
    parser.add_argument("truth", type=Path, metavar="TRUTH", help="raw dataset, or folder of label maps")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT", help="folder for the tables")
    parser.add_argument(
        "--split",
        choices=("train", "validation", "test", "all"),
        help="score the cases of this split (default: test where a prepared dataset is known, else all)",
    )
    parser.add_argument(
        "--prepared",
        type=Path,
        metavar="FOLDER",
        help="the prepared dataset that was learned: its list decides the split of every case "
        "(default: TRUTH's name + _prepared, here, where it exists)",
    )
    parser.add_argument("--organs", type=_names, metavar="A,B", help="score these organs of the truth alone")
    parser.add_argument(
        "--earlier",
        type=Path,
        nargs="+",
        default=[],
        metavar="OUT",
        help="what earlier steps wrote for the same dataset, oldest first: adds what was forgotten since",
    )
    parser.add_argument(
        "--workers", type=positive_int, metavar="N", help="processes to score with; all cores by default"
    )
    add_quiet(parser)
    parser.add_argument("--json", action="store_true", help="print the JSON, and nothing else, to stdout")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from continual_segment.evaluation import Evaluation, evaluate

    earlier = [Evaluation.read(folder) for folder in args.earlier]  # first: a wrong path costs no waiting
    evaluation = evaluate(
        args.predictions,
        args.truth,
        workers=args.workers,
        organs=args.organs,
        split=args.split,
        prepared=args.prepared or _prepared_here(args.truth, args.split),
    )
    forgotten = _forgotten(earlier, evaluation) if earlier else None
    if args.output:
        evaluation.write(args.output)
    if args.json:
        data = evaluation.as_data() | ({"forgetting": _forgetting_data(forgotten)} if forgotten else {})
        print(json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False))
    else:
        print(evaluation.table())
        if forgotten:
            print(_forgetting_line(forgotten))
    _report(evaluation, None if args.quiet else args.output)
    return 1 if evaluation.failures else 0


def _prepared_here(truth: Path, split: str | None) -> Path | None:
    """The folder that `conseg prepare` makes of this raw dataset by default, where it is finished."""
    from continual_segment.data.prepared import default_folder

    folder = default_folder(truth)
    if not (folder / "dataset.json").is_file() or not (folder / "cases").is_dir():
        return None
    if split is None:
        print(f"The test cases of {folder} are scored; --split all scores every case.", file=sys.stderr)
    return folder


def _forgotten(earlier: list[Evaluation], now: Evaluation) -> StepForgetting:
    from continual_segment.errors import DatasetError
    from continual_segment.evaluation import forgetting

    for evaluation in earlier:
        if {(r.case, r.organ) for r in evaluation.rows} != {(r.case, r.organ) for r in now.rows}:
            raise DatasetError(
                "An evaluation given as --earlier has other cases or organs than this one, so "
                "forgetting cannot be measured. Evaluate the same cases and organs after every step."
            )
    return forgetting([{"dataset": evaluation.mean.dice} for evaluation in [*earlier, now]])[-1]


def _forgetting_data(forgotten: StepForgetting) -> dict[str, Any]:
    return {
        "step": forgotten.step,
        "absolute": forgotten.mean_absolute,
        "relative": forgotten.mean_relative,
    }


def _forgetting_line(forgotten: StepForgetting) -> str:
    return (
        f"forgotten since the best earlier step: {forgotten.mean_absolute:.4f} DSC "
        f"({100 * forgotten.mean_relative:.2f} %)"
    )


def _report(evaluation: Evaluation, output: Path | None) -> None:
    """What the table does not show, on stderr."""
    for sentence in evaluation.failures:
        print(f"not scored: {sentence}", file=sys.stderr)
    for title, names in (
        ("without a prediction", evaluation.without_prediction),
        ("without a truth", evaluation.without_truth),
    ):
        if names:
            cases = "case" if len(names) == 1 else "cases"
            print(f"{len(names)} {cases} {title}: {some_of(names)}", file=sys.stderr)
    tables = f" Tables in {output}." if output else ""
    print(f"Cases scored: {_counts(evaluation)}.{tables}", file=sys.stderr)


def _counts(evaluation: Evaluation) -> str:
    """How many cases were scored, and of which split, as in `3 (3 test; split by case names)`."""
    counts = evaluation.splits.counts(evaluation.cases)
    known = ", ".join(f"{count} {split}" for split, count in counts.items() if count)
    by = f"; split by {evaluation.splits.source}" if len(evaluation.cases) > counts["unknown"] else ""
    return f"{len(evaluation.cases)} ({known}{by})"


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("give organ names with commas between them, such as liver,spleen")
    return names
