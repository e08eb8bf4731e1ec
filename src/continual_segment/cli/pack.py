"""`conseg pack`: list, add, remove, export and show organ packs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from continual_segment.cli.options import (
    add_budget,
    add_device,
    add_minimise,
    add_model,
    add_preset,
    add_quiet,
    add_tau,
    check_device,
    describe_small,
    model_argument,
    show,
)

if TYPE_CHECKING:
    from continual_segment.model import OrganPack


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "pack",
        help="list, add, remove, export or show organ packs",
        description="A pack is one file with all that one learning step added. It fits every model with the "
        "same encoder, in any order, and can be removed without a trace.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    for define in (define_list, define_add, define_remove, define_export, define_shrink, define_info):
        define(actions)


def define_list(actions: argparse._SubParsersAction) -> None:
    parser = actions.add_parser(
        "list",
        help="list the packs of a model",
        description="List the packs of a model: size, fingerprint, organs and the body parts they cover.",
    )
    add_model(parser)
    parser.set_defaults(run=run_list)


def define_add(actions: argparse._SubParsersAction) -> None:
    parser = actions.add_parser(
        "add",
        help="install a pack file",
        description="Install a pack file in a model with the same encoder. No other pack changes.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a .pack file")
    add_model(parser)
    parser.add_argument("--name", metavar="NAME", help="install it under another name")
    parser.set_defaults(run=run_add)


def define_remove(actions: argparse._SubParsersAction) -> None:
    parser = actions.add_parser(
        "remove",
        help="remove a pack; the earlier model is restored to the byte",
        description="Remove a pack from a model. Without it, the model is byte-identical to the earlier one. "
        "Export the pack first to keep it.",
    )
    parser.add_argument("name", metavar="NAME", help="a pack of the model")
    add_model(parser)
    parser.set_defaults(run=run_remove)


def define_export(actions: argparse._SubParsersAction) -> None:
    parser = actions.add_parser(
        "export",
        help="write a pack to a file, to share it",
        description="Write a pack of a model to one file. It contains no patient data, and `conseg pack add` "
        "installs it in any model with the same encoder.",
    )
    parser.add_argument("name", metavar="NAME", help="a pack of the model")
    add_model(parser)
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="FILE", help="the .pack file to write"
    )
    parser.set_defaults(run=run_export)


def define_shrink(actions: argparse._SubParsersAction) -> None:
    parser = actions.add_parser(
        "shrink",
        help="make packs of a model smaller, with the datasets that they were learned from",
        description="Fit smaller blocks to a pack's decoder, choose a plan and train it with the decoder as "
        "its teacher. The model does not change: remove the pack and add the small one to replace it. "
        "Several packs share a --budget so that together they are expected to lose least.",
        epilog="examples:\n"
        "  conseg pack shrink larynx PREPARED -m mymodel -o small.pack\n"
        "  conseg pack shrink larynx=PREPARED1 kidneys=PREPARED2 -m mymodel -o FOLDER --budget 0.97,0.75",
    )
    parser.add_argument(
        "packs", nargs="+", metavar="NAME=PREPARED",
        help="a pack and the dataset that it was learned from; a single pack also as NAME PREPARED",
    )  # fmt: skip
    add_model(parser)
    parser.add_argument(
        "-o", "--out", type=Path, required=True, metavar="FILE_OR_FOLDER",
        help="the .pack file to write; of several packs, the folder for NAME.pack of each",
    )  # fmt: skip
    add_preset(parser, default="laptop")
    add_tau(parser)
    add_minimise(parser, choices=("params", "cost"))
    add_budget(parser)
    add_device(parser, default="the preset's")
    add_quiet(parser)
    parser.set_defaults(run=run_shrink)


def define_info(actions: argparse._SubParsersAction) -> None:
    parser = actions.add_parser(
        "info",
        help="print the content of a pack and how it was trained, as JSON",
        description="Print the content of a pack as JSON: organs, codes, coverage, licence, training card.",
    )
    parser.add_argument(
        "pack", metavar="NAME_OR_FILE", help="a pack of the model given with -m, or a .pack file"
    )
    parser.add_argument(
        "-m", "--model", type=model_argument, metavar="MODEL", help="the model folder, or `starter`"
    )
    parser.set_defaults(run=run_info)


def run_list(args: argparse.Namespace) -> int:
    from continual_segment.model import Model

    opened = Model.open(args.model)
    for name in opened.pack_names:
        pack = opened.pack(name)
        size = opened.pack_path(name).stat().st_size / 1e6
        print(f"{name}  {len(pack.organs)} organs, {size:.2f} MB, {pack.fingerprint[:12]}")
        print(f"    {', '.join(organ.name for organ in pack.organs)}")
        print(f"    {parts_of(pack)}")
    return 0


def parts_of(pack: OrganPack) -> str:
    """Where in the body a pack was taught, head first: its row of the paper's table."""
    if not pack.coverage:
        return "body parts: not measured, so it runs everywhere"
    shares = [
        f"{part} {pack.distribution.get(part, 0):.1%}"
        for part, covered in reversed(pack.coverage.items())
        if covered
    ]
    return f"body parts: {', '.join(shares)} of the labelled height"


def run_add(args: argparse.Namespace) -> int:
    from continual_segment.model import Model, OrganPack

    pack = OrganPack.read(args.file)
    pack = pack.renamed(args.name) if args.name else pack
    Model.open(args.model).add(pack)
    print(f"{args.model} now has pack '{pack.name}' with {len(pack.organs)} organs.")
    return 0


def run_remove(args: argparse.Namespace) -> int:
    from continual_segment.model import Model

    left = Model.open(args.model).remove(args.name).pack_names
    print(f"Removed '{args.name}'. Left in {args.model}: {', '.join(left) or 'no pack'}.")
    return 0


def run_export(args: argparse.Namespace) -> int:
    from continual_segment.model import Model

    Model.open(args.model).export(args.name, args.out)
    print(f"Wrote {args.out}. Install it elsewhere with `conseg pack add {args.out} -m MODEL`.")
    return 0


def run_shrink(args: argparse.Namespace) -> int:
    from continual_segment.config import load_preset
    from continual_segment.data.prepared import PreparedDataset
    from continual_segment.learning import shrink_packs

    given = {"device": args.device} if args.device else {}
    small = {name: getattr(args, name) for name in ("tau", "select_by") if getattr(args, name) is not None}
    config = load_preset(args.preset).on(**given).with_stages(("train", "shrink"), args.budget, **small)
    check_device(config.later.device)
    folders = packs_to_shrink(args.packs)
    datasets = {name: PreparedDataset.open(folder) for name, folder in folders.items()}
    for pack in shrink_packs(datasets, args.model, config):
        path = args.out if len(datasets) == 1 else args.out / f"{pack.name}.pack"
        path.parent.mkdir(parents=True, exist_ok=True)
        pack.write(path)
        show(
            args,
            f"Wrote {path}. {describe_small(pack.card)}"
            f"To use it: conseg pack remove {pack.name} -m {args.model}; "
            f"conseg pack add {path} -m {args.model}",
        )
    return 0


def packs_to_shrink(words: list[str]) -> dict[str, Path]:
    """Names of packs, each with the folder of its dataset."""
    from continual_segment.errors import ConfigError

    if len(words) == 2 and "=" not in words[0]:
        return {words[0]: Path(words[1])}
    pairs = [word.partition("=") for word in words]
    if not all(name and folder for name, _, folder in pairs):
        raise ConfigError(
            f"'{' '.join(words)}': expected a pack and its dataset, as NAME PREPARED, or several, each as "
            "NAME=PREPARED."
        )
    folders = {name: Path(folder) for name, _, folder in pairs}
    if len(folders) < len(pairs):
        raise ConfigError(f"'{' '.join(words)}' names a pack twice. Give each pack with one dataset.")
    return folders


def run_info(args: argparse.Namespace) -> int:
    import json

    from continual_segment.model import Model, OrganPack

    pack = Model.open(args.model).pack(args.pack) if args.model else OrganPack.read(Path(args.pack))
    print(json.dumps(pack.described(), indent=1, sort_keys=True))
    return 0
