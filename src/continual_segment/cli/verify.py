"""`conseg verify`: prove that nothing learned has changed."""

from __future__ import annotations

import argparse

from continual_segment.cli.options import model_argument


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "verify",
        help="prove that every organ learned earlier is unchanged",
        description="Check every part of a model against the fingerprints taken when it was made: file "
        "bytes, weights, and outputs on a synthetic probe volume. Needs no scan. Exits 1 and names the part "
        "where anything differs.",
    )
    parser.add_argument("model", type=model_argument, metavar="MODEL", help="the model folder, or `starter`")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from continual_segment.model import verify

    found = verify(args.model)
    print(found)
    return 0 if found.good else 1
