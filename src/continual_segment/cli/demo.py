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
        "behind them. The scores are printed too. With --starter, add one pack to a copy of the model in the "
        "package and prove that its packs are unchanged. Run the command again to resume.",
    )
    parser.add_argument(
        "--starter", action="store_true", help="add a pack to the model in the package, instead"
    )
    parser.add_argument(
        "-o", "--out", type=Path, metavar="OUT", help="folder (default: demo, or demo_starter)"
    )
    parser.add_argument(
        "--cases", type=int, metavar="N", help="patients per dataset (default: 24; with --starter: 16)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="another seed, other patients (default: 0)"
    )
    parser.add_argument("--view", action="store_true", help="open the scans in the viewer at the end")
    add_preset(parser, default="demo")
    add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from continual_segment.evaluation.report import EXAMPLES
    from continual_segment.lab.demo import demo, view_command
    from continual_segment.lab.demo_starter import demo_starter

    run_demo, name, cases = (demo_starter, "demo_starter", 16) if args.starter else (demo, "demo", 24)
    out = args.out or Path(name)
    report = run_demo(out, args.preset, cases if args.cases is None else args.cases, seed=args.seed)
    show(args, f"Open {report} in a browser.")
    if args.view:
        from continual_segment.viewer.view import view

        view([out / EXAMPLES], out / "model")
    else:
        show(args, f"To look at the scans: {view_command(out)}")
    return 0
