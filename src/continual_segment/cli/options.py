"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any


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
    parser.add_argument("-m", "--model", type=Path, required=True, metavar="FOLDER", help="the model folder")


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
        help="what a small decoder has least of: parameters (the paper's rule), multiply-adds, or, when "
        "pruning, time on this device",
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
        "multiply-adds of one nnU-Net decoder, such as 0.97 or 0.97,0.75; the best decoder that what is left "
        "allows is taken, whatever it loses",
    )  # fmt: skip


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
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="no progress and no messages but warnings and errors"
    )


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


def add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: one per core)")


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
