"""A node that is killed with SIGKILL at any point loses nothing and answers nothing twice."""

from __future__ import annotations

import random
import time
from pathlib import Path

import made_node
import pytest
from made_node import SHORT, archive, send
from made_scans import read_header, write_series

from continual_segment.node.queue import Queue

CONFIG = """
folder = "node"
[listen]
port = 0
health_port = 0
silence_seconds = 0.5
[limits]
free_disk_mb = 1
[retries]
first_wait_seconds = 0.1
segment = 5
[[destinations]]
name = "archive"
host = "127.0.0.1"
port = {port}
ae_title = "ARCHIVE"
[[rules]]
model = ["model"]
"""


class KillableNode:
    """A node in a process of its own, by a config that any number of starts share."""

    def __init__(self, folder: Path, archive_port: int, python) -> None:
        self.folder, self._python = folder, python
        (folder / "node.toml").write_text(CONFIG.format(port=archive_port))

    def start(self) -> int:
        port = self.folder / "port"
        port.unlink(missing_ok=True)
        self.process = self._python(made_node.__file__, self.folder / "node.toml", port)
        wait_for(lambda: port.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.process.communicate()
        return int(port.read_text())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def states(self) -> list[str]:
        queue = Queue(self.folder / "node" / "queue.sqlite", read_only=True)
        try:
            return sorted(each.state for each in queue.all_series())
        finally:
            queue.close()


def wait_for(condition, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def slices(tmp_path):
    """Three series, their slices in no order."""
    found = []
    for number in range(3):
        paths = write_series(tmp_path / f"sent{number}", SHORT, SeriesInstanceUID=f"1.2.{number}")
        found += [read_header(path) for path in paths]
    random.Random(1).shuffle(found)
    return found


def test_every_series_is_answered_once_though_the_node_is_killed_in_every_state(tmp_path, slices, python):
    def kill_at_first(count: int) -> None:
        if count == 1:
            node.kill()

    with archive(before_answer=kill_at_first) as (port, received):
        node = KillableNode(tmp_path, port, python)
        assert set(send(node.start(), slices[:10])) == {0}
        node.kill()  # while it receives
        assert set(send(node.start(), slices[8:])) == {0}
        wait_for(lambda: "working" in node.states())
        node.kill()  # while it segments
        node.start()
        wait_for(lambda: node.process.poll() is not None)  # while it sends: stored, but not yet answered
        assert len(received) == 1
        node.start()
        wait_for(lambda: node.states() == ["done"] * 3)
        time.sleep(1)  # nothing more comes
    sources = [each.ReferencedSeriesSequence[0].SeriesInstanceUID for each in received]
    assert sorted(set(sources)) == ["1.2.0", "1.2.1", "1.2.2"]
    assert len({each.SOPInstanceUID for each in received}) == 3
    assert len(received) == 4  # the one whose answer got lost came again, as the same object
    for each in received:
        assert len(each.ReferencedSeriesSequence[0].ReferencedInstanceSequence) == SHORT.shape[0]
