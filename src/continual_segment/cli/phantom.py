"""`conseg phantom`: write synthetic CT datasets in the layout a user's own data has."""

from __future__ import annotations

import argparse
from pathlib import Path

from continual_segment.cli.options import add_preset, add_quiet, add_workers, show


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "phantom",
        help="write synthetic CT datasets with known truth",
        description="Write phantom CT scans and their labels in nnU-Net's raw layout. The same seed gives "
        "the same bytes.",
        epilog="example:\n"
        "  conseg phantom raw --dataset totalseg --cases 20 --preset laptop\n"
        "  conseg prepare raw/Dataset901_totalseg --preset laptop",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder that will hold the dataset's folder")
    parser.add_argument(
        "--dataset",
        required=True,
        choices=("totalseg", "chest", "headneck", "esophagus", "tumour"),
        help="totalseg: 103 organs, random parts of the body; chest: 31, four of them shared; headneck: 13 "
        "others; esophagus: one shared organ in patients with a tumour; tumour: masks of tumours, six kinds",
    )
    parser.add_argument("--cases", type=int, default=20, metavar="N", help="number of patients (default: 20)")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="another seed, other patients (default: 0)"
    )
    parser.add_argument(
        "--spacing", type=float, nargs=3, metavar=("Z", "Y", "X"),
        help="voxel size in mm (default: the preset's)",
    )  # fmt: skip
    add_preset(parser, default="laptop")
    parser.add_argument(
        "--organs",
        metavar="A,B",
        default="all",
        help="all: the dataset's whole list (default); demo: a few large ones, quick to learn; or names out "
        "of the list, with commas",
    )
    parser.add_argument(
        "--disease", choices=("usual", "none", "esophagus"), default="usual",
        help="usual: as the dataset's patients are (default); none: no patient has a tumour; esophagus: "
        "every patient has one there, on this dataset's scanner",
    )  # fmt: skip
    add_workers(parser)
    add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from continual_segment.config import load_preset
    from continual_segment.lab.phantom import write_phantom

    spacing_mm = tuple(args.spacing or load_preset(args.preset).prepare.spacing_mm)
    organs = args.organs if args.organs in ("all", "demo") else args.organs.split(",")
    folder = write_phantom(
        args.out,
        args.dataset,
        args.cases,
        args.seed,
        spacing_mm,
        args.workers,
        organs=organs,
        disease=args.disease,
    )
    show(args, f"{args.cases} cases in {folder}. Next: conseg prepare {folder} --preset {args.preset}")
    return 0
