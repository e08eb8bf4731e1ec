"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

import argparse
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
