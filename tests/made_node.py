"""A DICOM node, its senders and an archive for tests, all in this process and on loopback."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent))  # where this file runs as a program of its own
from made_scans import CENTRES_MM, ball_labels, turned
from pydicom.uid import RTStructureSetStorage, SegmentationStorage
from pynetdicom import AE, evt
from pynetdicom.sop_class import Verification

from continual_segment.clinic.jobs import Job
from continual_segment.clinic.outputs import OutputConfig, Result, write_result
from continual_segment.clinic.read import read_case
from continual_segment.files import write_text
from continual_segment.node.config import (
    Destination,
    Limits,
    ListenConfig,
    NodeConfig,
    Retries,
    Rule,
    read_node_config,
)
from continual_segment.node.node import Node
from continual_segment.organs import find_organ

IDS = {name: find_organ(name).id for name in CENTRES_MM}
SILENCE_SECONDS, SLOW_SECONDS = 0.5, 1.0
SHORT = turned([1, 0, 0], [0, 1, 0], [0, 0, 9.0], shape=(9, 46, 50))
"""A scan of few slices: each is forced to the disk, which takes time."""


def segment_balls(job: Job, rule: Rule, formats: Sequence[str]) -> None:
    """In place of a model: every ball is an organ."""
    case = read_case(job, None, force=False)
    volume = case.source.volume
    labels = ball_labels(volume.voxels, volume.grid, IDS)
    write_result(Result(case, labels, None, None, False, 0.0), OutputConfig(tuple(formats)), {})


class HereProcess:
    """In place of a worker process: the job runs in the node's own thread."""

    process_id = None

    def __init__(self, function: Callable[..., None] = segment_balls) -> None:
        self.function, self.jobs = function, []

    def start(self, *job: Any) -> None:
        self.jobs.append(job)

    def finish(self) -> None:
        self.function(*self.jobs[-1])

    def close(self) -> None:
        pass


def config_for(folder: Path, archive_port: int, **listen_to: Any) -> NodeConfig:
    """A node that answers quickly."""
    settings = {"port": 0, "health_port": 0, "silence_seconds": SILENCE_SECONDS} | listen_to
    return NodeConfig(
        folder / "node",
        (Destination("archive", "127.0.0.1", archive_port, "ARCHIVE"),),
        (Rule((folder / "model",)),),
        ListenConfig(**settings),
        Limits(free_disk_mb=1.0),
        Retries(first_wait_seconds=0.1, longest_wait_seconds=0.2),
    )


@contextmanager
def running(config: NodeConfig, process: Any = None):
    with Node(config, process or HereProcess()) as node:
        yield node


def until(node: Node, condition: Callable[[], bool], seconds: float = 300.0) -> None:
    """Let a node work until something has happened."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, (node.queue.counts(), node.queue.all_series())
        node.wait()


def states(node: Node) -> list[str]:
    return sorted(each.state for each in node.queue.all_series())


def connect(
    port: int, contexts: Sequence[tuple], calling: str = "SCANNER", called: str = "CONSEG", tls: Any = None
):
    entity = AE(ae_title=calling)
    entity.acse_timeout = entity.dimse_timeout = entity.network_timeout = 20
    for context in contexts:
        entity.add_requested_context(*context)
    secured = tls and (tls, "127.0.0.1")
    return entity.associate("127.0.0.1", port, ae_title=called, tls_args=secured)


def echo(port: int, **options: Any) -> int | None:
    association = connect(port, [(Verification,)], **options)
    if not association.is_established:
        return None
    status = association.send_c_echo().Status
    association.release()
    return int(status)


def send(port: int, images: Sequence[Any], **options: Any) -> list[int | None]:
    """The status of every image; None where the node gave no answer."""
    classes = {(each.SOPClassUID, each.file_meta.TransferSyntaxUID) for each in images}
    association = connect(port, sorted(classes), **options)
    if not association.is_established:
        return [None for _ in images]
    found = [
        association.send_c_store(each).get("Status") if association.is_established else None
        for each in images
    ]
    if association.is_established:
        association.release()
    return found


@contextmanager
def archive(
    answers: Sequence[int] = (),
    syntaxes: Sequence[str] | None = None,
    before_answer: Callable[[int], None] = lambda count: None,
):
    """A storage node that keeps what it receives; `answers` are its first statuses, then success.

    `before_answer` is called with the number of objects that have been received.
    """
    received, left = [], list(answers)

    def store(event: Any) -> int:
        if left and (status := left.pop(0)):
            return status
        data = event.dataset
        data.file_meta = event.file_meta
        received.append(data)
        before_answer(len(received))
        return 0

    entity = AE(ae_title="ARCHIVE")
    for each in (SegmentationStorage, RTStructureSetStorage):
        entity.add_supported_context(each, syntaxes) if syntaxes else entity.add_supported_context(each)
    server = entity.start_server(("127.0.0.1", 0), block=False, evt_handlers=[(evt.EVT_C_STORE, store)])
    try:
        yield server.server_address[1], received
    finally:
        server.shutdown()


def segment_slowly(*job: Any) -> None:
    """Leaves time for a kill."""
    time.sleep(SLOW_SECONDS)
    segment_balls(*job)


def segment_for_ever(*job: Any) -> None:
    time.sleep(3600)


if __name__ == "__main__":  # a node to be killed: its config, then where it writes its port
    with running(read_node_config(Path(sys.argv[1])), HereProcess(segment_slowly)) as killed:
        write_text(Path(sys.argv[2]), str(killed.address[1]))
        while True:
            killed.wait()
