"""`conseg learn`: one learning step."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from continual_segment.cli.options import (
    add_budget,
    add_budget_packs,
    add_device,
    add_minimise,
    add_model,
    add_old_spelling,
    add_preset,
    add_quiet,
    add_stages,
    add_tau,
    check_device,
    describe_small,
    kinds_by_name,
    show,
)
from continual_segment.errors import ConfigError
from continual_segment.names import some_of

if TYPE_CHECKING:
    from continual_segment.data.prepared import PreparedDataset
    from continual_segment.learning import LearnConfig
    from continual_segment.model import OrganPack
    from continual_segment.model.head import AnomalyHead


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "learn",
        help="learn one dataset: the first makes a model, every later one adds a pack",
        description="Learn the organs of one prepared dataset. Where MODEL does not exist yet, encoder and "
        "first decoder are trained and the model is made; otherwise the encoder stays frozen and a new "
        "pack is added. No earlier data is needed, and nothing learned earlier changes. Stop it with Ctrl-C "
        "and run the same command again to resume. With the stage shrink the decoder is then made small: "
        "blocks take smaller kernels as long as the validation Dice falls by at most tau points. Search and "
        "prune do the same in the paper's way, which takes longer: one kernel per block is searched, and "
        "blocks become 1x1x1 projections.",
        epilog="examples:\n"
        "  conseg learn kidneys_prepared -m mymodel\n"
        "  conseg learn larynx_prepared -m mymodel --stages train,shrink --tau 1    with a small decoder",
    )
    parser.add_argument("dataset", type=Path, metavar="PREPARED", help="what `conseg prepare` wrote")
    add_model(parser)
    add_preset(parser, default="laptop")
    parser.add_argument(
        "--with", type=Path, nargs="+", default=[], metavar="PREPARED", dest="together_with",
        help="further datasets for the encoder of a new model: batches alternate, each dataset has its own "
        "decoder and becomes a pack of its own name",
    )  # fmt: skip
    parser.add_argument(
        "--tumours", type=Path, nargs="+", default=[], metavar="PREPARED",
        help="datasets with tumour masks for the encoder of a new model: they take turns with the others, "
        "and each becomes an anomaly head; --anomaly-head adds one to a model that exists",
    )  # fmt: skip
    parser.add_argument("--name", metavar="NAME", help="name of the pack (default: the dataset's name)")
    parser.add_argument("--licence", default="", metavar="TEXT", help="licence to write into the pack")
    parser.add_argument(
        "--anomaly", action="append", default=[], metavar="KIND", dest="anomalies",
        help="a disease that the training scans show, such as 'esophageal tumour'; may be repeated. With "
        "--with: NAME=KIND, where NAME is that of the dataset",
    )  # fmt: skip
    parser.add_argument(
        "--anomaly-head", action="store_true",
        help="the dataset's labels are tumours: learn a head that detects diseased tissue, on the model's "
        "frozen encoder, in place of a pack; merging then trusts packs learned with --anomaly there",
    )  # fmt: skip
    add_small_decoder(parser)
    add_device(parser, default="the preset's")
    parser.add_argument(
        "--precision", choices=("float32", "bfloat16", "float16"), help="precision of the forward pass"
    )
    parser.add_argument(
        "--compile", action="store_true", default=None, help="run networks through torch.compile"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes that cut patches (default: the preset's)"
    )
    parser.add_argument(
        "--iterations", type=int, metavar="N", help="number of updates (default: the preset's)"
    )
    parser.add_argument(
        "--seed", type=int, metavar="S", help="seed of weights and patches (default: the preset's)"
    )
    add_quiet(parser)
    parser.set_defaults(run=run)


def add_small_decoder(parser: argparse.ArgumentParser) -> None:
    """How small the decoder is made; what is not given comes from the preset."""
    group = parser.add_argument_group("a small decoder", "What is not given comes from the preset.")
    add_stages(group)
    add_minimise(group, choices=("params", "cost", "time"))
    add_old_spelling(group, "--select", "--minimise", dest="select_by", choices=("params", "cost", "time"))
    add_tau(group)
    add_budget(group)
    add_budget_packs(group)
    group.add_argument(
        "--prune", choices=("enumerate", "greedy"), dest="method",
        help="evaluate every combination of pruned blocks, or decide block by block, deepest first",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    from continual_segment.api import learn
    from continual_segment.config import load_preset
    from continual_segment.data.prepared import PreparedDataset
    from continual_segment.model import Model
    from continual_segment.model.head import anomaly_heads

    names = ("device", "precision", "compile", "workers", "iterations", "seed")
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    pruning = {name: getattr(args, name) for name in ("select_by", "tau", "method")}
    pruning = {name: value for name, value in pruning.items() if value is not None}
    if args.budget_packs is not None and not args.budget:
        raise ConfigError("--budget-packs divides a budget. Give --budget, too.")
    packs = 1 if args.budget_packs is None else args.budget_packs
    budget = (*args.budget, packs) if args.budget else None
    config = load_preset(args.preset).on(**given).with_stages(args.stages, budget, **pruning)
    check_device(config.first.device)
    check_device(config.later.device)
    dataset = PreparedDataset.open(args.dataset)
    if args.anomaly_head:
        if args.together_with or args.tumours:
            raise ConfigError("--anomaly-head learns from one dataset. Leave --with and --tumours out.")
        return run_anomaly(args, dataset, config)
    pack = learn(
        dataset,
        args.model,
        config,
        args.name,
        args.licence,
        kinds_by_name(args.anomalies) if args.together_with else args.anomalies,
        together_with=args.together_with,
        tumours=args.tumours,
    )
    model = Model.open(args.model)
    packs = [model.pack(name) for name in model.pack_names] if args.together_with else [pack]
    described = "".join(describe(pack, args.model) for pack in packs)
    if args.tumours:
        described += "".join(describe_head(head, args.model) + "\n" for head in anomaly_heads(model))
    show(args, f"{described}Next: conseg verify {args.model}; conseg segment SCAN -m {args.model} -o OUT")
    return 0


def describe(pack: OrganPack, model: Path) -> str:
    """What a user wants to know of a new pack, in lines."""
    from continual_segment.learning.step import run_folder

    return (
        f"{model} now has pack '{pack.name}': {some_of((organ.name for organ in pack.organs), 12)}.\n"
        f"Validation Dice on patches {pack.card['validation_patch_dice']:.3f}; log and curves in "
        f"{run_folder(model, pack.name)}.\n"
        f"{describe_small(pack.card)}"
    )


def run_anomaly(args: argparse.Namespace, dataset: PreparedDataset, config: LearnConfig) -> int:
    from continual_segment.learning.anomaly import learn_anomaly

    head = learn_anomaly(dataset, args.model, config, args.name)
    show(args, f"{describe_head(head, args.model)} Nothing else has changed.")
    return 0


def describe_head(head: AnomalyHead, model: Path) -> str:
    return (
        f"{model} now has anomaly head '{head.name}', learned from {', '.join(head.anomalies)}: Dice on "
        f"validation patches {head.card['validation_patch_dice']:.3f}."
    )
