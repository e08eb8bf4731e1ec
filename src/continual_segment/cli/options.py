"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from continual_segment.engine import EngineConfig

MOST_DIGITS = 9
"""Of a count."""


@cache
def preset_summaries() -> str:
    """All presets, each with the first sentence of its file, which is a comment."""
    folder = files("continual_segment") / "presets"
    summaries = []
    for preset in sorted(folder.iterdir(), key=lambda file: file.name):
        comment = preset.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
        sentence = comment.split(". ")[0].rstrip(".")
        summaries.append(f"{preset.name.removesuffix('.toml')} ({sentence[0].lower()}{sentence[1:]})")
    return ", ".join(summaries).replace("%", "%%")  # argparse formats the help text


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-m", "--model", type=model_argument, required=True, metavar="MODEL",
        help="the model folder; `starter` is the model in the package, which is read-only",
    )  # fmt: skip


def model_argument(text: str) -> Path:
    """The folder that an argument means; the type of every argument that names a model."""
    if text != "starter":
        return Path(text)  # without waiting for torch
    from continual_segment.errors import ModelError
    from continual_segment.model.starter import model_folder

    try:
        return model_folder(text)
    except ModelError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_preset(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    parser.add_argument(
        "--preset",
        default=default,
        metavar="NAME",
        help=f"sizes and schedules: {preset_summaries()}, or a TOML file of your own"
        + (f" (default: {default})" if default else ""),
    )


def add_stages(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--stages", metavar="LIST", type=lambda text: tuple(text.split(",")), default=(),
        help="train | train,shrink | train,search | train,prune | train,search,prune (default: the preset's)",
    )  # fmt: skip


def add_minimise(parser: argparse._ActionsContainer, choices: Sequence[str]) -> None:
    parser.add_argument(
        "--minimise", choices=choices, dest="select_by",
        help="quantity to minimise in a small decoder: parameters (the paper's rule), multiply-adds or, "
        "when pruning, time on this device",
    )  # fmt: skip


def add_tau(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--tau", type=float, metavar="POINTS",
        help="Dice points that a small decoder may lose on validation scans against the trained one",
    )  # fmt: skip


def add_budget(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--budget", type=shares, metavar="SHARE[,SHARE]",
        help="when shrinking: all packs of the model together have at most so many times the parameters and "
        "multiply-adds of one nnU-Net decoder, such as 0.97 or 0.97,0.75; the best decoder within the "
        "remaining budget is used, whatever it loses",
    )  # fmt: skip


def add_budget_packs(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--budget-packs", type=positive_int, metavar="N",
        help="the model will have so many packs: what is left of --budget is divided among those to come "
        "(default: this one takes all)",
    )  # fmt: skip


def positive_int(text: str) -> int:
    """The type of every argument that counts something."""
    if not (text.isascii() and text.isdecimal() and 1 <= len(text) <= MOST_DIGITS) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on was expected, not {text!r}")
    return int(text)


def shares(text: str) -> tuple[float, float]:
    """One share for parameters and multiply-adds, or one each."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise argparse.ArgumentTypeError(f"expected one or two numbers such as 0.97,0.75, not {text!r}")
    return numbers[0], numbers[-1]


def add_device(parser: argparse._ActionsContainer, default: str) -> None:
    parser.add_argument("-d", "--device", metavar="NAME", help=f"cpu, cuda, cuda:1, mps (default: {default})")


def add_quiet(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="print warnings and errors only")


def show(args: argparse.Namespace, text: str) -> None:
    """Print a message that --quiet leaves out."""
    if not args.quiet:
        print(text)


def add_old_spelling(parser: argparse._ActionsContainer, old: str, new: str, **options: Any) -> None:
    """Accept the name that an option had earlier, without showing it."""
    options = {"dest": new.removeprefix("--").replace("-", "_")} | options
    parser.add_argument(old, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **options)


def check_device(name: str) -> None:
    """Raise where this machine, or this torch, has no such device."""
    import torch

    from continual_segment.errors import ConfigError

    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(
            f"'{name}' cannot be computed on here ({reason}). --device cpu always works."
        ) from error


def add_engine(parser: argparse._ActionsContainer, what: str, seconds: float | None) -> None:
    """Where tasks are computed; `what` a task is, and how long it may take unless the option is given."""
    group = parser.add_argument_group("on a cluster")
    group.add_argument(
        "--engine", metavar="ADDRESS",
        help=f"compute each {what} on a worker of this scheduler of Dask, an extra to install: "
        "dask://HOST:PORT, dask+tls://HOST:PORT or dask:///PATH/scheduler.json (default: on this machine)",
    )  # fmt: skip
    group.add_argument(
        "--attempts", type=positive_int, metavar="N",
        help=f"with --engine: how often a {what} is tried in all where workers die, hang or fail "
        "(default: 3)",
    )  # fmt: skip
    limit = "none" if seconds is None else f"{seconds:g}"
    group.add_argument(
        "--time-limit", type=float, metavar="SECONDS",
        help=f"with --engine: a {what} that takes longer is stopped and tried elsewhere (default: {limit})",
    )  # fmt: skip
    parser.set_defaults(engine_seconds=seconds)


def engine_config(args: argparse.Namespace) -> EngineConfig | None:
    """The engine of the command line; None where none is named."""
    from continual_segment.engine import EngineConfig
    from continual_segment.errors import ConfigError

    if args.engine is None:
        for option, value in (("--attempts", args.attempts), ("--time-limit", args.time_limit)):
            if value is not None:
                raise ConfigError(f"{option} is for --engine, which is not given. Leave it out.")
        return None
    seconds = args.engine_seconds if args.time_limit is None else args.time_limit
    return EngineConfig(args.engine, 3 if args.attempts is None else args.attempts, seconds)


def add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=positive_int, metavar="N", help="processes (default: one per core)")


def describe_small(card: dict[str, Any]) -> str:
    """What came of making the decoder small, in a line each; nothing where it was not."""
    lines = ""
    if shrink := card.get("shrink"):
        lines += f"Made small: {in_short(shrink['trained'], shrink['chosen'], shrink['chosen']['dice'])}"
    if search := card.get("search"):
        lines += f"Searched kernels, deepest block first: {', '.join(search['plan'])}.\n"
    if prune := card.get("prune"):
        before, chosen = prune["paths"][0], prune["paths"][prune["chosen"]]
        lines += f"Pruned to: {in_short(before, chosen, prune['final_dice'])}"
    return lines


def in_short(before: dict[str, Any], chosen: dict[str, Any], dice: float) -> str:
    return (
        f"{', '.join(chosen['plan'])}; "
        f"{chosen['true_parameters'] / before['true_parameters']:.2f} of the parameters, "
        f"{chosen['multiply_adds'] / before['multiply_adds']:.2f} of the multiply-adds; "
        f"Dice on validation windows {before['dice']:.3f} before, {dice:.3f} now.\n"
    )


def kinds_by_name(anomalies: list[str]) -> dict[str, tuple[str, ...]]:
    """Kinds of anomaly by dataset, from NAME=KIND."""
    from continual_segment.errors import ConfigError

    kinds: dict[str, tuple[str, ...]] = {}
    for anomaly in anomalies:
        name, _, kind = anomaly.partition("=")
        if not name or not kind:
            raise ConfigError(f"--anomaly {anomaly}: expected NAME=KIND, such as Larynx='larynx tumour'.")
        kinds[name] = (*kinds.get(name, ()), kind)
    return kinds
