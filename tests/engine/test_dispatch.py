"""Who runs which task, on a cluster of the test's own: nothing here waits or connects."""

from __future__ import annotations

from itertools import pairwise

import pytest

from continual_segment.engine import dispatch
from continual_segment.engine.call import Answer
from continual_segment.engine.config import EngineConfig
from continual_segment.engine.dispatch import Dispatcher
from continual_segment.errors import ContinualSegmentError

FULL = Answer("worker", problem="No space left on device.")


class Cluster:
    """Workers answer at once, by a function of worker and task; None: they begin and never end."""

    def __init__(self, workers, answer=lambda worker, task: Answer("done", task)):
        self.workers, self.answer = dict(workers), answer
        self.given, self.forgotten, self.arrived = [], [], []

    def slots(self):
        return dict(self.workers)

    def submit(self, worker, slot, arguments):
        key = str(len(self.given))
        self.given.append((worker, slot, arguments[0]))
        self.arrived += [(key, None), *self._answered(key, worker, arguments[0])]
        return key

    def _answered(self, key, worker, task):
        found = self.answer(worker, task)
        return [] if found is None else [(key, found)]

    def forget(self, key):
        self.forgotten.append(key)

    def events(self, seconds):
        arrived, self.arrived = self.arrived, []
        return arrived

    def workers_of(self, task):
        return [worker for worker, _, given in self.given if given == task]


@pytest.fixture
def clock(monkeypatch):
    """Time that passes when the test says so; a minute with every look."""

    class Clock:
        now, step = 0.0, 60.0

        def monotonic(self):
            self.now += self.step
            return self.now

    found = Clock()
    monkeypatch.setattr(dispatch, "time", found)
    return found


def run(cluster, *tasks, **limits):
    dispatcher = Dispatcher(cluster, EngineConfig("dask://test:1", **limits))
    for task in tasks:
        dispatcher.add(task, task)
    return {each.name: each.answer for each in dispatcher.run()}, dispatcher


@pytest.mark.usefixtures("clock")
def test_every_task_is_finished_once():
    cluster = Cluster({"a": 1, "b": 2})
    found, _ = run(cluster, *"123456789")
    assert {name: answer.result for name, answer in found.items()} == {task: task for task in "123456789"}
    assert len(cluster.given) == 9
    assert {(worker, slot) for worker, slot, _ in cluster.given} == {("a", 0), ("b", 0), ("b", 1)}


@pytest.mark.usefixtures("clock")
def test_a_slot_has_one_task_at_a_time():
    cluster = Cluster({"a": 1, "b": 1}, lambda worker, task: None)
    dispatcher = Dispatcher(cluster, EngineConfig("dask://test:1", seconds=None))
    for task in "1234":
        dispatcher.add(task, task)
    for _ in range(3):
        dispatcher.step()
    assert len(cluster.given) == 2
    assert len(dispatcher.waiting) == 2


@pytest.mark.usefixtures("clock")
def test_a_task_that_fails_on_a_worker_is_tried_on_another():
    cluster = Cluster(
        {"full": 1, "good": 1}, lambda worker, task: FULL if worker == "full" else Answer("done")
    )
    found, _ = run(cluster, *"123")
    assert {answer.kind for answer in found.values()} == {"done"}
    for task in "123":
        assert cluster.workers_of(task) in (["good"], ["full", "good"])


@pytest.mark.usefixtures("clock")
def test_with_one_worker_it_is_tried_there_again():
    answers = iter([FULL, FULL, Answer("done")])
    found, _ = run(Cluster({"a": 1}, lambda *_: next(answers)), "1")
    assert found["1"].kind == "done"


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_attempts_are_bounded_and_the_last_reason_is_given(attempts, caplog):
    cluster = Cluster({"a": 1, "b": 1, "c": 1}, lambda *_: FULL)
    found, _ = run(cluster, "1", attempts=attempts)
    assert found["1"].kind == "failed"
    assert "No space left" in found["1"].problem
    assert len(cluster.given) == attempts
    assert caplog.text.count("is repeated") == attempts - 1


@pytest.mark.usefixtures("clock")
def test_a_damaged_scan_is_not_tried_again():
    cluster = Cluster({"a": 1, "b": 1}, lambda *_: Answer("failed", problem="truncated"))
    found, _ = run(cluster, "1", "2")
    assert [answer.problem for answer in found.values()] == ["truncated"] * 2
    assert len(cluster.given) == 2


@pytest.mark.usefixtures("clock")
def test_a_task_of_a_worker_that_dies_is_tried_elsewhere():
    cluster = Cluster({"a": 1}, lambda worker, task: None if worker == "a" else Answer("done"))
    dispatcher = Dispatcher(cluster, EngineConfig("dask://test:1"))
    dispatcher.add("1", "1")
    assert dispatcher.step() == []
    cluster.workers = {"b": 1}
    assert dispatcher.step() == []
    assert cluster.forgotten == ["0"]
    (finished,) = dispatcher.run()
    assert (finished.answer.kind, finished.worker) == ("done", "b")


def test_a_scan_that_kills_every_worker_is_given_up():
    """Memory runs out on it everywhere; the other tasks must not wait for it."""
    cluster = Cluster({"0": 1}, lambda worker, task: None)
    dispatcher = Dispatcher(cluster, EngineConfig("dask://test:1", attempts=3))
    dispatcher.add("deadly", "deadly")
    found = []
    for number in range(1, 9):
        found += dispatcher.step(0)
        cluster.workers = {str(number): 1}  # the nanny starts another one
    assert [each.answer.kind for each in found] == ["failed"]
    assert len(cluster.given) == 3
    assert dispatcher.is_idle


def test_a_worker_that_does_not_stop_a_late_task_is_left_alone(clock):
    clock.step = 0.0
    cluster = Cluster({"hangs": 1}, lambda worker, task: None if worker == "hangs" else Answer("done"))
    dispatcher = Dispatcher(cluster, EngineConfig("dask://test:1", seconds=100))
    dispatcher.add("1", "1")
    dispatcher.step()
    clock.now += 100
    dispatcher.step()
    assert not dispatcher.set_aside
    cluster.workers["good"] = 1
    clock.now += dispatch.GRACE_SECONDS + 1
    dispatcher.step()
    assert set(dispatcher.set_aside) == {"hangs"}
    (finished,) = dispatcher.run()
    assert finished.worker == "good"


def test_a_task_that_waits_for_its_worker_is_not_late(clock):
    """Somebody else's tasks may run there: time counts from the beginning."""
    clock.step = 0.0
    cluster = Cluster({"busy": 1}, lambda worker, task: None)
    dispatcher = Dispatcher(cluster, EngineConfig("dask://test:1", seconds=100))
    dispatcher.add("1", "1")
    cluster.events = lambda seconds: []
    dispatcher.step()
    clock.now += 10000
    dispatcher.step()
    assert len(dispatcher.running) == 1


def test_a_worker_that_fails_gets_its_next_task_later_and_later(clock):
    clock.step = 0.0
    cluster = Cluster({"bad": 1}, lambda *_: FULL)
    dispatcher = Dispatcher(cluster, EngineConfig("dask://test:1", attempts=100))
    dispatcher.add("1", "1")
    times = []
    for _ in range(100):
        before = len(cluster.given)
        dispatcher.step()
        times += [clock.now] * (len(cluster.given) - before)
        clock.now += 1
    assert [later - sooner for sooner, later in pairwise(times)] == [2, 4, 8, 16, 32]


@pytest.mark.usefixtures("clock")
def test_a_worker_that_lacks_something_gets_no_more_tasks_and_costs_no_attempt():
    unfit = Answer("unfit", problem="another model")
    cluster = Cluster(
        {"x": 1, "y": 1, "good": 1}, lambda worker, _: Answer("done") if worker == "good" else unfit
    )
    found, dispatcher = run(cluster, *"12345678", attempts=1)
    assert {answer.kind for answer in found.values()} == {"done"}
    assert set(dispatcher.set_aside) == {"x", "y"}
    assert sum(worker in "xy" for worker, _, _ in cluster.given) == 2


@pytest.mark.usefixtures("clock")
def test_a_run_without_a_usable_worker_ends_with_all_reasons():
    cluster = Cluster(
        {"x": 1, "y": 1}, lambda worker, _: Answer("unfit", problem=f"{worker} has another model.")
    )
    with pytest.raises(ContinualSegmentError, match=r"x has another model.*|y has another model.*") as caught:
        run(cluster, "1", "2")
    assert all(f"{worker} has another model." in str(caught.value) for worker in "xy")


@pytest.mark.usefixtures("clock")
def test_a_fault_that_all_tasks_share_ends_the_run():
    """The shared disk is full: days of computing would be lost."""
    cluster = Cluster({"a": 1, "b": 1}, lambda *_: FULL)
    with pytest.raises(ContinualSegmentError, match=r"No space left.*resume"):
        run(cluster, *map(str, range(1000)))
    assert len(cluster.given) < 3 * (dispatch.FAILED_IN_A_ROW + 2)


@pytest.mark.usefixtures("clock")
def test_workers_may_come_late_and_their_absence_is_shown(caplog):
    cluster = Cluster({})
    dispatcher = Dispatcher(cluster, EngineConfig("dask://test:1"))
    dispatcher.add("1", "1")
    with caplog.at_level("INFO"):
        for _ in range(3):
            assert dispatcher.step() == []
    assert "no worker yet" in caplog.text
    cluster.workers["a"] = 1
    assert [each.name for each in dispatcher.run()] == ["1"]
