"""`conseg phantom`: write synthetic CT datasets in the layout a user's own data has."""

from __future__ import annotations

import argparse
from pathlib import Path

from continual_segment.cli.options import add_workers


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "phantom",
        help="write synthetic CT datasets with known truth",
        description="Write phantom CT scans and their labels in nnU-Net's raw layout. The same seed gives "
        "the same bytes.",
        epilog="Example: conseg phantom raw --dataset totalseg --cases 20; then: conseg prepare "
        "raw/Dataset901_totalseg --preset demo",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder that will hold the dataset's folder")
    parser.add_argument(
        "--dataset",
        required=True,
        choices=("totalseg", "chest", "headneck", "esophagus"),
        help="totalseg: random parts of the whole body; chest: shares organs with it; headneck: shares none; "
        "esophagus: one shared organ in patients with a tumour",
    )
    parser.add_argument("--cases", type=int, default=20, metavar="N", help="number of patients (default: 20)")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="another seed, other patients (default: 0)"
    )
    parser.add_argument(
        "--spacing", type=float, nargs=3, default=(4.0, 4.0, 4.0), metavar=("Z", "Y", "X"),
        help="voxel size in mm (default: 4 4 4)",
    )  # fmt: skip
    add_workers(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from continual_segment.small_phantom import write_phantom

    folder = write_phantom(args.out, args.dataset, args.cases, args.seed, tuple(args.spacing), args.workers)
    print(f"{args.cases} cases in {folder}. Next: conseg prepare {folder} --preset demo")
    return 0
