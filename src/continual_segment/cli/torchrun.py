"""`torchrun ... conseg learn`: all processes run the command, the first one shows messages.

Without torchrun nothing here imports torch, so that commands start fast.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO

from continual_segment.errors import ConfigError

TRAINING = ("learn", "benchmark")
"""Commands that several processes can run together."""


def launched() -> bool:
    """Whether this is one of several processes that were started together."""
    if "WORLD_SIZE" not in os.environ:
        return False
    # read when torch is loaded; every process would warn that it looks for unused parameters without need
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from continual_segment.training import distributed

    return distributed.launched()


@contextmanager
def one_usage_message() -> Iterator[None]:
    """While arguments are parsed, only the first process prints: all have the same ones."""
    if not launched() or os.environ["RANK"] == "0":
        yield
        return
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


@contextmanager
def joined(args: argparse.Namespace) -> Iterator[None]:
    """Join the other processes while the command runs."""
    if not launched():
        yield
        return
    from continual_segment.training import distributed

    with distributed.process_group():
        if args.command not in TRAINING:
            raise ConfigError(f"It runs in one process. Start it without torchrun: conseg {args.command} ...")
        args.quiet = args.quiet or not distributed.is_main()
        yield


def shows_errors() -> bool:
    """Whether this process prints its error: of several that fail, the first to do so."""
    if not launched():
        return True
    from continual_segment.training import distributed

    return distributed.first_to_fail()


def name(args: argparse.Namespace) -> str:
    """The command in messages, with the number of the process where it is not the first."""
    number = os.environ["RANK"] if launched() else "0"
    return f"conseg {args.command}" + (f" (process {number})" if number != "0" else "")
