"""`conseg VERB`: gathers the verbs, sets up logging and memory, turns our errors into one sentence."""

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
    learn,
    pack,
    phantom,
    prepare,
    segment,
    verify,
)
from continual_segment.errors import ContinualSegmentError
from continual_segment.malloc import keep_freed_memory, start_again_with_malloc_settings

VERBS = (demo, phantom, prepare, learn, pack, verify, segment, bodyparts, evaluate, benchmark)
RUN_NETWORKS = ("demo", "learn", "segment", "bodyparts", "benchmark")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="conseg",
        description="One frozen CT encoder, many small organ packs: add, share and remove organs; nothing "
        "already learned ever changes.",
        epilog="With your own data: prepare, learn, verify, segment, evaluate. `conseg VERB --help` explains "
        "each.",
    )
    parser.add_argument("--version", action="version", version=f"conseg {__version__}")
    parser.add_argument("--debug", action="store_true", help="show tracebacks and debug messages")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        verb.add_parser(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 done, 1 done with failures, 2 an error the user can mend, 130 stopped by Ctrl-C."""
    args = make_parser().parse_args(arguments)
    if arguments is None and args.verb in RUN_NETWORKS:
        start_again_with_malloc_settings()
    logging.basicConfig(level=logging.DEBUG if args.debug else logging.INFO, format="%(message)s")
    for noisy in ("matplotlib", "PIL", "nibabel", "filelock", "numexpr", "blosc2"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    keep_freed_memory()
    try:
        return args.run(args)
    except ContinualSegmentError as error:
        if args.debug:
            raise
        print(f"conseg {args.verb}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print(f"\nconseg {args.verb}: {str(stop) or 'stopped'}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `conseg ... | head` is no error
        sys.stderr.close()
        return 0
    except OSError as error:  # a full disk, a folder without rights: nothing a traceback explains better
        if args.debug:
            raise
        print(f"conseg {args.verb}: {error}. Mend it and give the same command again.", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
