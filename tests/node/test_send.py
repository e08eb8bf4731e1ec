"""A result that cannot be sent costs its own delivery alone."""

from __future__ import annotations

import struct
import threading
from dataclasses import replace

import pytest
from made_node import config_for, running, states, until

from continual_segment.node import node as node_module
from continual_segment.node import send
from continual_segment.node.config import Destination
from continual_segment.node.queue import Queue
from continual_segment.node.send import Sender
from continual_segment.node.store import Store

START = bytes(128) + b"DICM" + b"\x02\x00\x00\x00UL\x04\x00"
DAMAGED = {
    "cut in a number": START + b"\xd4",
    "cut in a length": START + b"\xd4\x00\x00\x00" + b"\x02\x00\x01\x00OB\x00\x00",
    "zeros": bytes(200),
}


def segmented(store, queue, content, series="a"):
    """A series whose result waits for being sent."""
    queue.add(series, "1", 1, "SCANNER")
    queue.settle(0)
    (store.results / f"{series}-1").mkdir(parents=True)
    (store.results / f"{series}-1" / "a.seg.dcm").write_bytes(content)
    queue.finish(queue.claim(), [(f"{series}-1/a.seg.dcm", "archive")])


def with_a_result(folder):
    """The config of a node that has something to send when it starts."""
    config = config_for(folder, 1)
    store = Store(config.folder)
    store.make()
    queue = Queue(store.queue)
    segmented(store, queue, b"")
    queue.close()
    return config


@pytest.fixture
def sender(tmp_path):
    config = config_for(tmp_path, 1)
    store = Store(config.folder)
    store.make()
    queue = Queue(store.queue)
    yield Sender(replace(config, retries=replace(config.retries, send=1)), queue, store)
    queue.close()


@pytest.mark.parametrize("content", DAMAGED.values(), ids=list(DAMAGED))
@pytest.mark.parametrize("web", [False, True])
def test_a_damaged_result_is_a_counted_attempt_with_a_reason(sender, content, web):
    if web:
        sender._destinations = {"archive": Destination("archive", url="http://127.0.0.1:1/root")}
    segmented(sender.store, sender.queue, content)
    assert sender.step()
    (series,) = sender.queue.all_series()
    assert series.state == "failed"
    assert series.reason.startswith("not sent to archive: ")
    assert not sender.step()


@pytest.mark.parametrize("kind", [EOFError, struct.error])
def test_an_error_of_any_kind_does_not_end_the_node(tmp_path, monkeypatch, caplog, kind):
    def broken(*given):
        raise kind("Doe^Jane")

    monkeypatch.setattr(send, "send_file", broken)
    config = with_a_result(tmp_path)
    with running(replace(config, retries=replace(config.retries, send=2))) as node:
        until(node, lambda: states(node) == ["failed"])
        assert kind.__name__ in node.queue.all_series()[0].reason
    assert "series a: not sent to archive, next attempt" in caplog.text
    assert "Doe" not in caplog.text


def test_a_stop_does_not_wait_for_ever_for_a_destination_and_idles_meanwhile(tmp_path, monkeypatch, caplog):
    sending, answered, unhandled, stops = threading.Event(), threading.Event(), [], []

    def slow(*given):
        sending.set()
        answered.wait(60)

    monkeypatch.setattr(send, "send_file", slow)
    monkeypatch.setattr(node_module, "STOP_SECONDS", 2.0)
    monkeypatch.setattr(threading, "excepthook", unhandled.append)
    with running(with_a_result(tmp_path)) as node:
        until(node, sending.is_set)
        stop = node.worker.stop
        monkeypatch.setattr(node.worker, "stop", lambda: stops.append(stop()))
    assert 0 < len(stops) <= 25
    (thread,) = (each for each in node._threads if each.is_alive())
    answered.set()
    thread.join(60)
    assert not thread.is_alive()
    assert unhandled == []
    assert "done again after a start" in caplog.text
    queue = Queue(node.store.queue)
    assert queue.next_delivery().attempts == 0
    queue.close()
