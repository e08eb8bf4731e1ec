"""Workers of a real scheduler, with tasks that take no time to load."""

from __future__ import annotations

import signal

import made_tasks
import pytest

pytest.importorskip("distributed", reason="the extra [dask] is not installed")
from made_cluster import (
    MadeCluster,
    addresses,
    beside,
    family,
    has_begun,
    kill,
    press_ctrl_c,
    spawned,
    wait_for,
)

from continual_segment.engine import EngineConfig, dispatch, on_engine
from continual_segment.errors import ContinualSegmentError


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A scheduler with two workers."""
    with MadeCluster(tmp_path_factory.mktemp("cluster")) as made:
        made.pair = [made.worker("one", nanny=True), made.worker("two")]
        made.wait_for_workers(2)
        yield made


def run(config, function, tasks, folder, shared=()):
    with on_engine(config, function, shared, folder) as dispatcher:
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
    repeated = [text for text in caplog.messages if text.startswith("hangs: attempt 1 of 2")]
    assert ["longer than 4 s" in text for text in repeated] == [True]


def test_a_stopped_run_ends_its_tasks_on_the_workers(cluster, tmp_path):
    (one,) = wait_for(lambda: spawned(cluster.pair[0].pid))
    workers = [one.pid, cluster.pair[1].pid]
    marks = tmp_path / "marks"
    marks.mkdir()

    def stop_when_both_run():
        wait_for(lambda: len(list(marks.iterdir())) == 2)
        press_ctrl_c()

    tasks = dict.fromkeys("ab", (marks, 10000))
    with pytest.raises(KeyboardInterrupt), beside(stop_when_both_run):
        run(EngineConfig(cluster.address), made_tasks.mark_and_sleep, tasks, tmp_path)
    assert {int(path.name) for path in marks.iterdir()} == set(workers)
    wait_for(lambda: not any(map(spawned, workers)))
    assert [path.name for path in tmp_path.iterdir()] == ["marks"]


def test_a_worker_that_is_frozen_as_a_whole_is_left_alone(cluster, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(dispatch, "GRACE_SECONDS", -590.0)  # so that the worker's own limit is far away
    frozen = cluster.pair[1]
    (other,) = wait_for(lambda: spawned(cluster.pair[0].pid))
    config = EngineConfig(cluster.address, seconds=600.0)
    with on_engine(config, made_tasks.hang_on, (), tmp_path) as dispatcher:
        (address,) = addresses(dispatcher, "two")
        for name in "ab":
            dispatcher.add(name, frozen.pid)
        found = []
        while not has_begun(dispatcher, address):
            found += dispatcher.step()
        for process in [frozen, *spawned(frozen.pid)]:
            process.send_signal(signal.SIGSTOP)
        try:
            found += dispatcher.run()
        finally:
            for process in [frozen, *spawned(frozen.pid)]:
                process.send_signal(signal.SIGCONT)
    assert sorted((each.name, each.answer.kind) for each in found) == [("a", "done"), ("b", "done")]
    assert address not in {each.worker for each in found}
    assert caplog.text.count("does not respond") == 2  # the worker gets no more tasks; its task is repeated
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


def test_a_scheduler_that_dies_ends_the_run_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setattr("continual_segment.engine.dask_cluster.SECONDS_TO_CONNECT", 15)
    with MadeCluster(tmp_path / "cluster") as cluster:
        cluster.worker("only")
        cluster.wait_for_workers(1)
        config = EngineConfig(cluster.address)
        with on_engine(config, made_tasks.sleep, (), tmp_path / "out") as dispatcher:
            dispatcher.add("a", 10000)
            while not dispatcher.running:
                dispatcher.step()
            for process in family(cluster.processes[0].pid):
                kill(process)
            with pytest.raises(ContinualSegmentError, match=r"scheduler is lost.*resume"):
                list(dispatcher.run())
    assert not list((tmp_path / "out").iterdir())
