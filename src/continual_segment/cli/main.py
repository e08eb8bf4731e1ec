"""`conseg COMMAND`: gathers the commands, sets up logging and memory, turns our errors into one message."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from continual_segment import __version__
from continual_segment.cli import (
    benchmark,
    bodyparts,
    demo,
    evaluate,
    export_nnunet,
    import_nnunet,
    learn,
    listen,
    pack,
    phantom,
    prepare,
    quantise,
    segment,
    starter,
    torchrun,
    verify,
    view,
)
from continual_segment.cli.parser import Parser
from continual_segment.errors import ContinualSegmentError
from continual_segment.malloc import keep_freed_memory, start_again_with_malloc_settings
from continual_segment.names import printable
from continual_segment.streams import lasting_streams

COMMANDS = (
    demo,
    starter,
    phantom,
    import_nnunet,
    prepare,
    learn,
    pack,
    verify,
    quantise,
    segment,
    view,
    listen,
    export_nnunet,
    bodyparts,
    evaluate,
    benchmark,
)
RUN_NETWORKS = ("demo", "learn", "quantise", "segment", "view", "listen", "bodyparts", "benchmark")


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="conseg",
        description="One frozen CT encoder, many small organ packs: add, share and remove organs; nothing "
        "already learned ever changes.",
        epilog="With your own data: prepare, learn, verify, segment, evaluate. `conseg COMMAND --help` "
        "explains each.",
    )
    parser.add_argument("--version", action="version", version=f"conseg {__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks and debug messages")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 done with failures, 2 an error the user can fix, 130 stopped by Ctrl-C."""
    with lasting_streams() as output:
        with torchrun.one_usage_message():
            args = make_parser().parse_args(arguments)
        if arguments is None and args.command in RUN_NETWORKS:
            start_again_with_malloc_settings()
        set_up_logging(args.debug, getattr(args, "quiet", False))
        keep_freed_memory()
        code = run(args)
        output.flush()
        if output.problem is not None:
            print(f"conseg {args.command}: output is lost: {output.problem}.", file=sys.stderr)
        return code or (2 if output.problem else 0)


def set_up_logging(debug: bool, quiet: bool) -> None:
    """Messages and progress bars on standard error; where it is quiet, warnings and errors alone."""
    level = logging.DEBUG if debug else logging.WARNING if quiet else logging.INFO
    logging.basicConfig(level=level, format="%(message)s")
    logging.getLogger("continual_segment.progress").setLevel(logging.WARNING if quiet else logging.INFO)
    for noisy in ("matplotlib", "PIL", "nibabel", "filelock", "numexpr", "blosc2", "distributed"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def run(args: argparse.Namespace) -> int:
    try:
        with torchrun.joined(args):
            return args.run(args)
    except ContinualSegmentError as error:
        if args.debug:
            raise
        show_error(f"{torchrun.name(args)}: {error}")
        return 2
    except KeyboardInterrupt as stop:
        show_error(f"\n{torchrun.name(args)}: {str(stop) or 'stopped'}")
        return 130
    except OSError as error:  # a full disk, a folder without rights: nothing a traceback explains better
        if args.debug:
            raise
        show_error(f"{torchrun.name(args)}: {error}. Fix it and run the same command again.")
        return 2


def show_error(text: str) -> None:
    if torchrun.shows_errors():  # texts may quote files of strangers
        print("\n".join(printable(line, len(line)) for line in text.split("\n")), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
