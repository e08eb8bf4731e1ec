"""The queue's states, and the worker process at their centre."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from made_node import SHORT, config_for, running, segment_for_ever, send, states, until
from made_scans import read_header, write_series

from continual_segment.node.queue import Queue
from continual_segment.node.work import ignore_signals
from continual_segment.processes import WorkerProcess


@pytest.fixture
def queue(tmp_path):
    queue = Queue(tmp_path / "queue.sqlite")
    yield queue
    queue.close()


def working(queue, series="a"):
    queue.add(series, "1", 1, "SCANNER")
    queue.settle(0)
    return queue.claim()


def state(queue):
    (series,) = queue.all_series()
    return series.state, series.generation, series.attempts


def test_an_instance_that_was_there_changes_nothing_and_a_new_one_reopens(queue):
    assert queue.finish(working(queue), [])
    assert queue.add("a", "1", 1, "SCANNER")
    assert state(queue) == ("done", 1, 1)
    assert queue.add("a", "2", 1, "SCANNER")
    assert state(queue) == ("receiving", 2, 0)


def test_a_series_is_ready_after_silence_and_not_before(queue):
    queue.add("a", "1", 1, "SCANNER")
    assert queue.settle(60) == 0
    assert queue.claim() is None
    assert queue.settle(0) == 1
    assert queue.claim().id == "a"
    assert queue.claim() is None


def test_work_that_a_kill_interrupted_starts_again_a_limited_number_of_times(queue):
    working(queue)
    queue.recover(most_attempts=2)
    assert state(queue) == ("ready", 1, 1)
    queue.claim()
    queue.recover(most_attempts=2)
    assert state(queue) == ("failed", 1, 2)


def test_work_that_is_given_back_does_not_count(queue):
    queue.release(working(queue))
    assert state(queue) == ("ready", 1, 0)


def test_results_of_an_earlier_generation_are_not_sent(queue):
    old = working(queue)
    queue.add("a", "2", 1, "SCANNER")
    assert not queue.finish(old, [("file", "archive")])
    assert queue.next_delivery() is None
    queue.settle(0)
    assert queue.finish(queue.claim(), [("file", "archive")])
    assert queue.next_delivery().file == "file"


def test_a_series_is_failed_when_one_destination_is_and_only_that_is_tried_again(queue):
    queue.finish(working(queue), [("file", "one"), ("file", "two")])
    queue.delivered(queue.next_delivery())
    assert state(queue)[0] == "sending"
    queue.fail_delivery(queue.next_delivery(), "not reachable")
    assert state(queue)[0] == "failed"
    assert queue.retry_failed() == 1
    assert state(queue)[0] == "sending"
    assert queue.next_delivery().destination == "two"
    queue.delivered(queue.next_delivery())
    assert state(queue)[0] == "done"


def test_a_series_that_is_being_deleted_accepts_nothing(queue):
    queue.finish(working(queue), [])
    assert queue.expire(keep_hours=-1) == ["a"]
    assert not queue.add("a", "2", 1, "SCANNER")
    queue.forget("a")
    assert queue.add("a", "2", 1, "SCANNER")


@pytest.fixture
def sent(tmp_path):
    return [read_header(path) for path in write_series(tmp_path / "sent", SHORT)]


def test_a_stop_ends_a_segmentation_and_its_attempt_does_not_count(tmp_path, sent):
    config = config_for(tmp_path, 1)
    with running(config, WorkerProcess(segment_for_ever, ignore_signals)) as node:
        send(node.address[1], sent)
        until(node, lambda: states(node) == ["working"])
        until(node, lambda: node.worker._process.process_id is not None)
        started = time.monotonic()
    assert time.monotonic() - started < 25
    queue = Queue(node.store.queue)
    assert state(queue) == ("ready", 1, 0)
    queue.close()


def test_a_segmentation_that_takes_too_long_is_ended_and_fails_with_that_reason(tmp_path, sent, caplog):
    config = config_for(tmp_path, 1)
    limits, retries = replace(config.limits, seconds_per_series=1.0), replace(config.retries, segment=1)
    config = replace(config, limits=limits, retries=retries)
    with running(config, WorkerProcess(segment_for_ever, ignore_signals)) as node:
        send(node.address[1], sent)
        until(node, lambda: states(node) == ["failed"])
        (series,) = node.queue.all_series()
    assert "longer than 1 s" in series.reason
    assert "seconds_per_series" in series.reason
    assert f"series {series.id}: failed: {series.reason}" in caplog.text


def test_a_segmentation_that_is_killed_in_time_does_not_blame_the_limit(tmp_path, sent):
    config = config_for(tmp_path, 1)
    config = replace(config, retries=replace(config.retries, segment=1))
    with running(config, WorkerProcess(segment_for_ever, ignore_signals)) as node:
        send(node.address[1], sent)
        until(node, lambda: node.worker._process.process_id is not None)
        node.worker._kill()
        until(node, lambda: states(node) == ["failed"])
        assert "longer" not in node.queue.all_series()[0].reason
