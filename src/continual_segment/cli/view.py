"""`conseg view`: scans, label maps and models on a local web page."""

from __future__ import annotations

import argparse
from pathlib import Path

from continual_segment.cli.options import add_quiet, model_argument

DESCRIPTION = """\
Show scans and label maps in a browser: three planes and a 3D view, organs with volumes and Hounsfield units,
window presets, two label maps against each other with Dice per organ. The page is served to this machine
alone, at an address with a random token; nothing is sent anywhere and no file is changed. Ctrl-C stops it.

PATH is a scan (any that `conseg segment` reads) or a folder of scans, then any number of label maps or
folders of them, which are matched by the names of the cases; or a folder that `conseg segment` wrote.
With --model and without label maps, scans are segmented first. --model alone shows the packs of a model."""

EPILOG = """\
examples:
  conseg view ct.nii.gz labels.nii.gz
  conseg view scans/ results/                      cases that failed or have warnings come first
  conseg view results/                             labels alone
  conseg view imagesTr/ labelsTr/ results/         truth against prediction
  conseg view --model mymodel ct.nii.gz            segment, then show
  conseg view --model mymodel                      packs, organs, coverage, licences, verify"""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "view",
        help="look at scans, label maps and models in a browser",
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    parser.add_argument("paths", type=Path, nargs="*", metavar="PATH", help="scans, then label maps")
    parser.add_argument(
        "-m",
        "--model",
        type=model_argument,
        metavar="MODEL",
        help="segment scans that have no label map; show packs",
    )
    parser.add_argument(
        "--port", type=int, default=0, metavar="N", help="port of the address (default: any free one)"
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address, open nothing")
    add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from continual_segment.viewer.view import view

    view(args.paths, args.model, args.port, browser=not args.no_browser)
    return 0
