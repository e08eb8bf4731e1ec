"""`conseg starter`: the model in the package, described or copied."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from continual_segment.cli.options import add_quiet, show
from continual_segment.names import printable

if TYPE_CHECKING:
    from continual_segment.model import Model


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "starter",
        help="describe or copy the model that comes with the package",
        description="The package contains a small model of head and neck, trained on patients: `-m starter` "
        "names it wherever a model is read. It is read-only. Without options, its packs, organs and licences "
        "are printed; with -o it is copied to a new folder, to which packs can be added. docs/starter.md has "
        "its data, scores and limits.",
        epilog="examples:\n"
        "  conseg segment ct.nii.gz -m starter -o labels\n"
        "\n"
        "to add organs to a copy:\n"
        "  conseg starter -o mymodel\n"
        "  conseg prepare RAW --model mymodel -o PREPARED\n"
        "  conseg learn PREPARED -m mymodel",
    )
    parser.add_argument(
        "-o", "--out", type=Path, metavar="MODEL", help="copy the model to this folder; must not exist"
    )
    add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from continual_segment.model import Model
    from continual_segment.model.starter import FOLDER, installed

    model = Model.open(installed())
    if args.out is None:
        print(describe(model))
        return 0
    model.copy(args.out)
    show(
        args,
        f"{args.out} is a copy of {FOLDER} with the packs {', '.join(model.pack_names)}.\n"
        f"To add organs: conseg prepare RAW --model {args.out} -o PREPARED; "
        f"conseg learn PREPARED -m {args.out}",
    )
    return 0


def describe(model: Model) -> str:
    """Where the model is, what it can segment and under which licence."""
    size = sum((model.folder / name).stat().st_size for name in model.files) / 1e6
    lines = [f"{model.folder}: {len(model.organs)} organs in {len(model.pack_names)} packs, {size:.1f} MB"]
    for name in model.pack_names:
        pack = model.pack(name)
        lines.append(f"  {name}: {', '.join(organ.name for organ in pack.organs)}")
        lines += [f"    licence: {printable(pack.licence)}"] if pack.licence else []
    lines.append("Research software, not a medical device. To copy it: conseg starter -o MODEL")
    return "\n".join(lines)
