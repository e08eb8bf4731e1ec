"""`conseg learn`: one learning step."""

from __future__ import annotations

import argparse
from pathlib import Path

from continual_segment.cli.options import add_device, add_model, add_preset, check_device


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "learn",
        help="learn one dataset: the first makes a model, every later one adds a pack",
        description="Learn the organs of one prepared dataset. Where MODEL does not exist yet, encoder and "
        "first decoder are trained and the model is made; otherwise the encoder stays frozen and a new "
        "pack is added. No earlier data is needed, and nothing learned earlier changes. Stop it with Ctrl-C "
        "and give the same command again: it goes on where it was.",
        epilog="Example: conseg learn kidneys_prepared -m mymodel --preset demo",
    )
    parser.add_argument("dataset", type=Path, metavar="PREPARED", help="what `conseg prepare` wrote")
    add_model(parser)
    add_preset(parser, default="laptop")
    parser.add_argument("--name", metavar="NAME", help="name of the pack (default: the dataset's name)")
    parser.add_argument("--licence", default="", metavar="TEXT", help="licence to write into the pack")
    parser.add_argument(
        "--anomaly", action="append", default=[], metavar="KIND", dest="anomalies",
        help="a disease the training scans hold, such as 'esophageal tumour'; may be repeated",
    )  # fmt: skip
    add_device(parser, default="the preset's")
    parser.add_argument("--precision", choices=("float32", "bfloat16", "float16"), help="of the forward pass")
    parser.add_argument(
        "--compile", action="store_true", default=None, help="run networks through torch.compile"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes that cut patches (default: the preset's)"
    )
    parser.add_argument(
        "--seed", type=int, metavar="S", help="of weights and patches (default: the preset's)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from continual_segment.config import load_preset
    from continual_segment.data.prepared import PreparedDataset
    from continual_segment.learning import learn
    from continual_segment.learning.step import run_folder

    names = ("device", "precision", "compile", "workers", "seed")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    config = load_preset(args.preset).on(**given)
    check_device(config.first.device)
    check_device(config.later.device)
    dataset = PreparedDataset.open(args.dataset)
    pack = learn(dataset, args.model, config.learn, args.name, args.licence, args.anomalies)
    print(
        f"{args.model} now has pack '{pack.name}': {', '.join(organ.name for organ in pack.organs)}.\n"
        f"Validation Dice on patches {pack.card['validation_patch_dice']:.3f}; log and curves in "
        f"{run_folder(args.model, pack.name)}.\n"
        f"Next: conseg verify {args.model}; conseg segment SCAN -m {args.model} -o OUT"
    )
    return 0
