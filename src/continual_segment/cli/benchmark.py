"""`conseg benchmark`: the continual protocol with every method, and the paper's tables."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from continual_segment.cli.options import (
    add_device,
    add_engine,
    add_old_spelling,
    add_preset,
    add_quiet,
    add_stages,
    check_device,
    engine_config,
    kinds_by_name,
    positive_int,
    show,
)
from continual_segment.lab.methods import METHODS

if TYPE_CHECKING:
    from continual_segment.config import ExperimentConfig

EXAMPLES = """\
examples:
  conseg benchmark --preset demo --orders A,B --out benchmark
  conseg benchmark --preset laptop --orders A --methods ours,mib,plop --datasets RAW1 RAW2 RAW3 --out mine
  conseg benchmark --datasets Dataset001_Neck Dataset002_Larynx --anomaly Larynx='larynx tumour' --out neck
  conseg benchmark --preset demo --methods ours,mib,mib:kd_weight=100 --out benchmark
  conseg benchmark --preset demo --methods ours,mib --seeds 3 --out benchmark
  conseg benchmark --preset demo --methods plop,plop:pod_factor=1e-4 --split validation --out benchmark
"""
METHOD_LINES = "\n".join(f"  {name:13} {entry.summary}" for name, entry in METHODS.items())
EPILOG = f"""{EXAMPLES}
methods:
{METHOD_LINES}
  The settings of a method follow its name: plop:entropy=code. Every method has rate, a factor of the
  learning rate of later steps, and seed; the others are the fields of its class in
  src/continual_segment/lab/baselines.

written to OUT: results.md with all tables and figures, results.json, tables/, figures/"""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "benchmark",
        help="learn datasets one after the other by several methods, and compare",
        description="Learn datasets in one or more orders by each method, segment held-out scans of all\n"
        "datasets learned so far after every step, and write the tables of the paper. The first step is\n"
        "trained once. Run the command again to resume; orders, methods and seeds can be added later.",
        epilog=EPILOG,
    )
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="OUT", help="folder")
    parser.add_argument(
        "--orders", type=_names, default=["A"], metavar="A,B",
        help="A: as given; B: steps 2 and 3 swapped; or digits, such as 2134 (default: A)",
    )  # fmt: skip
    parser.add_argument(
        "--methods", type=_methods, default=list(METHODS), metavar="M,N",
        help=f"what to compare (default: all, {','.join(METHODS)})",
    )  # fmt: skip
    parser.add_argument(
        "--seeds", type=positive_int, default=1, metavar="N",
        help="learn the later steps of every method with so many seeds from the one first step; tables then "
        "show mean and standard deviation (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--datasets", type=Path, nargs="+", metavar="RAW",
        help="raw datasets in the order to be learned (default: the four phantoms, written to OUT/raw)",
    )  # fmt: skip
    parser.add_argument(
        "--anomaly", action="append", default=[], metavar="NAME=KIND", dest="anomalies",
        help="patients of this one of --datasets have a disease, named in your words, as with "
        "conseg learn --anomaly; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--cases", type=positive_int, default=24, metavar="N", help="patients per phantom (default: 24)"
    )
    parser.add_argument(
        "--held-out", type=positive_int, metavar="N",
        help="segment at most N scans per dataset (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--split", choices=("test", "validation"), default="test",
        help="which scans are segmented: test (default), or those of the validation split, by which "
        "settings of methods are chosen; tables of these go to OUT/validation",
    )  # fmt: skip
    parser.add_argument(
        "--budgets", choices=("equal", "paper"), default="equal",
        help="updates of a later step: as many as all stages of conseg learn (default), or the paper's",
    )  # fmt: skip
    parser.add_argument(
        "--iterations", type=positive_int, metavar="N",
        help="updates of every later training, for all methods alike (default: the preset's)",
    )  # fmt: skip
    add_old_spelling(parser, "--updates", "--iterations", type=positive_int)
    parser.add_argument(
        "--overlap", type=float, metavar="SHARE",
        help="of neighbouring windows in scans that are scored; less is faster (default: the preset's)",
    )  # fmt: skip
    parser.add_argument(
        "--clean-up", action="store_true",
        help="remove islands from the label maps of every method, as conseg segment does, and write tables "
        "and figures to OUT/cleaned; networks that OUT has are not trained again",
    )  # fmt: skip
    add_preset(parser, default="demo")
    add_stages(parser)
    add_device(parser, default="the preset's")
    add_quiet(parser)
    add_engine(parser, "task", None)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from continual_segment.config import load_preset
    from continual_segment.errors import ConfigError
    from continual_segment.lab.benchmark import Plan, make_orders, run_benchmark
    from continual_segment.lab.benchmark.plan import check_methods, with_seeds
    from continual_segment.lab.benchmark.sources import phantom_datasets, raw_datasets
    from continual_segment.training.distributed import launched, on_main

    engine = engine_config(args)
    if engine and launched():
        raise ConfigError("--engine and torchrun exclude each other. Start the command without torchrun.")
    if args.anomalies and not args.datasets:
        raise ConfigError("--anomaly goes with --datasets; the phantoms' diseases are known. Leave it out.")
    methods = with_seeds(args.methods, args.seeds)
    check_methods(methods)  # before phantoms are written, which takes minutes
    config = chosen(args, load_preset(args.preset).with_stages(args.stages))
    for device in {config.first.device, config.later.device, config.segment.device}:
        if engine is None:  # its workers have devices of their own
            check_device(device)
    out = args.out.resolve() if engine else args.out
    if args.datasets:
        raw = [path.resolve() if engine else path for path in args.datasets]
        datasets = raw_datasets(raw, kinds_by_name(args.anomalies))
    else:
        few = args.preset in ("tiny", "demo")
        datasets = on_main(lambda: phantom_datasets(out / "raw", args.cases, config, few))
    plan = Plan(
        config, datasets, make_orders(list(datasets), args.orders), tuple(methods), args.held_out,
        args.budgets, args.clean_up, args.split,
    )  # fmt: skip
    results = run_benchmark(out, plan, engine)
    show(args, f"Tables and figures: {results}")
    return 0


def chosen(args: argparse.Namespace, config: ExperimentConfig) -> ExperimentConfig:
    """The preset with the options of the command line in place of its own."""
    from dataclasses import replace

    from continual_segment.errors import ConfigError
    from continual_segment.lab.baselines.budgets import with_iterations

    named = {"device": args.device, "overlap": args.overlap}
    try:
        segment = replace(config.segment, **{key: value for key, value in named.items() if value is not None})
    except ValueError as error:
        raise ConfigError(str(error)) from error
    config = replace(config, segment=segment)
    if args.device is not None:
        config = config.on(device=args.device)
    if args.iterations is not None:
        if args.budgets == "paper":
            raise ConfigError("--budgets paper sets the number of updates: leave --iterations out.")
        config = replace(config, later=with_iterations(config.later, args.iterations))
    return config


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _methods(text: str) -> list[str]:
    """Names with their settings; a comma inside a setting's list of numbers does not part two methods."""
    parts: list[str] = []
    for part in _names(text):
        if parts and part[0].isdigit():
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return parts
