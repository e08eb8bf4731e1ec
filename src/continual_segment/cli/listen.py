"""`conseg listen`: a DICOM node that receives CT series, segments them and sends the results on."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from continual_segment.cli.options import add_quiet, check_device

if TYPE_CHECKING:
    from continual_segment.node.config import NodeConfig


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "listen",
        help="run a DICOM node: receive CT series, segment them, send results back",
        description="Receive CT series by C-STORE, segment each by the first rule that matches it, and send "
        "the results to the destinations. A series is complete after a time of silence. All state is on the "
        "disk: a node that is killed resumes. Stops on Ctrl-C or SIGTERM. docs/node.md describes the "
        "configuration.",
    )
    parser.add_argument("config", type=Path, metavar="CONFIG.toml", help="the configuration")
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--status", action="store_true", help="print what the node does and what failed, and exit"
    )
    action.add_argument(
        "--retry", action="store_true", help="queue all failed series once more, and exit; the node may run"
    )
    add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from continual_segment.node.config import read_node_config
    from continual_segment.node.queue import Queue
    from continual_segment.node.status import describe
    from continual_segment.node.store import Store

    config = read_node_config(args.config)
    store = Store(config.folder)
    if args.status:
        print(describe(store))
    elif args.retry:
        store.make()
        print(f"{Queue(store.queue).retry_failed()} failed series are queued again.")
    else:
        listen(config)
    return 0


def listen(config: NodeConfig) -> None:
    from continual_segment.errors import ConfigError

    try:
        from continual_segment.node.node import listen as run_node
    except ModuleNotFoundError as error:
        if error.name != "pynetdicom":
            raise
        raise ConfigError(
            "pynetdicom is not installed. Install it with: pip install '.[node]' in the clone"
        ) from error
    for rule in config.rules:
        check_device(rule.segment.device)
    run_node(config)
