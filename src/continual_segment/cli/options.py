"""Options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

PRESETS = "tiny (seconds, for tests), demo (minutes), laptop (two CPU cores, half an hour), paper (one GPU)"


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-m", "--model", type=Path, required=True, metavar="FOLDER", help="the model folder")


def add_preset(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    parser.add_argument(
        "--preset",
        default=default,
        metavar="NAME",
        help=f"sizes and schedules: {PRESETS}, or a TOML file of your own"
        + (f" (default: {default})" if default else ""),
    )


def add_stages(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--stages", metavar="LIST", type=lambda text: tuple(text.split(",")), default=(),
        help="train | train,search | train,prune | train,search,prune (default: the preset's)",
    )  # fmt: skip


def add_device(parser: argparse._ActionsContainer, default: str) -> None:
    parser.add_argument("-d", "--device", metavar="NAME", help=f"cpu, cuda, cuda:1, mps (default: {default})")


def add_quiet(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="no progress and no messages but warnings and errors"
    )


def say(args: argparse.Namespace, text: str) -> None:
    """Print a message that --quiet leaves out."""
    if not args.quiet:
        print(text)


def add_old_spelling(parser: argparse._ActionsContainer, old: str, new: str, **options: Any) -> None:
    """Accept the name that an option had earlier, without showing it."""
    dest = new.removeprefix("--").replace("-", "_")
    parser.add_argument(old, dest=dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **options)


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
