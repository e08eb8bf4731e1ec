"""Workers of a real scheduler, with tasks that take no time to load."""

from __future__ import annotations

import signal
import threading
import time

import made_tasks
import pytest

pytest.importorskip("distributed", reason="the extra [dask] is not installed")
from long_tests import long_test
from made_cluster import MadeCluster, spawned, wait_for

from continual_segment.engine import EngineConfig, dispatch, on_engine
from continual_segment.errors import ContinualSegmentError

pytestmark = long_test


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A scheduler with two workers."""
    with MadeCluster(tmp_path_factory.mktemp("cluster")) as made:
        made.pair = [made.worker("one", nanny=True), made.worker("two")]
        yield made


def run(config, function, tasks, folder, shared=()):
    with on_engine(config, function, shared, folder) as dispatcher:
        wait_for(lambda: len(dispatcher.cluster.slots()) >= 2)
        for name, arguments in tasks.items():
            dispatcher.add(name, *arguments)
        return {finished.name: finished for finished in dispatcher.run()}


def test_tasks_run_on_all_workers_and_nothing_is_left_in_the_folder(cluster, tmp_path):
    tasks = {str(number): (number,) for number in range(20)}
    found = run(EngineConfig(cluster.address), made_tasks.double, tasks, tmp_path, shared=("shared",))
    assert {int(name): each.answer.result for name, each in found.items()} == {n: 2 * n for n in range(20)}
    assert len({each.worker for each in found.values()}) == 2
    assert not list(tmp_path.iterdir())


def test_a_task_that_hangs_is_given_up_after_its_attempts_and_the_others_are_done(cluster, tmp_path, caplog):
    config = EngineConfig(cluster.address, attempts=2, seconds=4.0)
    with on_engine(config, made_tasks.sleep, (), tmp_path) as dispatcher:
        dispatcher.add("hangs", 10000)
        for number in range(3):
            dispatcher.add(str(number), 0)
        found = {finished.name: finished.answer for finished in dispatcher.run()}
    assert found.pop("hangs").kind == "failed"
    assert [answer.kind for answer in found.values()] == ["done"] * 3
    assert caplog.text.count("longer than 4 s") == 1


def test_a_stopped_run_ends_its_tasks_on_the_workers(cluster, tmp_path):
    (one,) = wait_for(lambda: spawned(cluster.pair[0].pid))
    workers = [one.pid, cluster.pair[1].pid]

    def stop_when_both_run():
        wait_for(lambda: all(map(spawned, workers)))
        time.sleep(1)
        signal.raise_signal(signal.SIGINT)

    threading.Thread(target=stop_when_both_run, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        run(EngineConfig(cluster.address), made_tasks.sleep, {"a": (10000,), "b": (10000,)}, tmp_path)
    wait_for(lambda: not any(map(spawned, workers)))
    assert not list(tmp_path.iterdir())


def test_a_worker_that_is_frozen_as_a_whole_is_left_alone(cluster, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(dispatch, "GRACE_SECONDS", 5.0)
    frozen = cluster.pair[1]
    (other,) = wait_for(lambda: spawned(cluster.pair[0].pid))

    def freeze():
        """Once its task runs: before, the command does not know that the worker has begun."""
        wait_for((tmp_path / str(frozen.pid)).exists)
        for process in spawned(frozen.pid):
            process.send_signal(signal.SIGSTOP)
        frozen.send_signal(signal.SIGSTOP)

    threading.Thread(target=freeze, daemon=True).start()
    try:
        tasks = dict.fromkeys("ab", (tmp_path, 5))
        found = run(EngineConfig(cluster.address, seconds=20.0), made_tasks.mark_and_sleep, tasks, tmp_path)
    finally:
        frozen.send_signal(signal.SIGCONT)
    assert [each.answer.kind for each in found.values()] == ["done"] * 2
    assert "does not respond" in caplog.text
    assert other.is_running()


def test_storage_that_a_worker_does_not_share_ends_the_run_with_its_reason(cluster, tmp_path):
    with on_engine(EngineConfig(cluster.address), made_tasks.double, (), tmp_path) as dispatcher:
        dispatcher.cluster.token.unlink()  # as a worker sees it where the folder is on a local disk
        dispatcher.add("1", 1)
        with pytest.raises(ContinualSegmentError, match="storage that all machines share"):
            list(dispatcher.run())


def test_without_a_scheduler_the_address_is_in_the_message(tmp_path, monkeypatch):
    monkeypatch.setattr("continual_segment.engine.dask_cluster.SECONDS_TO_CONNECT", 2)
    with (
        pytest.raises(ContinualSegmentError, match=r"dask://127\.0\.0\.1:9: no scheduler answers"),
        on_engine(EngineConfig("dask://127.0.0.1:9"), made_tasks.double, (), tmp_path),
    ):
        pass
