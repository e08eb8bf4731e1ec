"""`conseg demo`: the main job on phantoms, with a report to look at."""

from __future__ import annotations

import argparse
from pathlib import Path

from continual_segment.cli.options import add_preset, add_quiet, show


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "demo",
        help="learn four phantom datasets and write a report, in minutes",
        description="Make four phantom CT datasets, learn a pack from each, segment held-out scans with the "
        "packs of every step, and write OUT/report.html with pictures, scores, forgetting and the commands "
        "behind them. The scores are printed too. Run the command again to resume.",
    )
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("demo"), metavar="OUT", help="folder (default: demo)"
    )
    parser.add_argument(
        "--cases", type=int, default=24, metavar="N", help="patients per dataset (default: 24)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="another seed, other patients (default: 0)"
    )
    add_preset(parser, default="demo")
    add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from continual_segment.lab.demo import demo, view_command

    report = demo(args.out, args.preset, args.cases, seed=args.seed)
    show(args, f"Open {report} in a browser.")
    show(args, f"To look at the scans: {view_command(args.out)}")
    return 0
