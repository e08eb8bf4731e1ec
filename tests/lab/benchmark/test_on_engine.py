"""A benchmark on an engine: what tasks need is done before them, and results are those of one machine."""

from __future__ import annotations

import json
import pickle
from contextlib import contextmanager
from dataclasses import replace

import pytest
from long_tests import long_test

from continual_segment.data.prepare import prepare
from continual_segment.engine import Answer, EngineConfig, Finished
from continual_segment.errors import ConfigError, ContinualSegmentError
from continual_segment.lab.benchmark import Plan, make_orders, run_benchmark
from continual_segment.lab.benchmark.on_engine import run_tasks_on_engine
from continual_segment.lab.benchmark.paths import BenchmarkPaths
from continual_segment.lab.benchmark.tasks import BenchmarkTasks
from continual_segment.lab.protocol import HeldOut, ProtocolDataset
from continual_segment.training import history

ENGINE = EngineConfig("dask://test:1", seconds=None)
METHODS = ("ours", "mib", "plop", "upper-bound")


class LastFirst:
    """In place of a cluster: the task that was added last runs first, with arguments that were pickled."""

    def __init__(self, function, shared):
        self.function, self.shared = function, shared
        self.waiting, self.order, self.beside = [], [], {}

    @property
    def is_idle(self):
        return not self.waiting

    def add(self, name, *arguments):
        self.waiting.append((name, arguments))

    def step(self):
        name, arguments = self.waiting.pop()
        self.beside[name] = len(self.waiting)
        self.order.append(name)
        sent = pickle.loads(pickle.dumps((self.function, (*arguments, *self.shared))))
        return [Finished(name, self.answer(name, *sent), "worker")]

    def answer(self, name, function, arguments):
        function(*arguments)
        return Answer("done", seconds=1.0)


class WithoutWork(LastFirst):
    """Tasks are done at once, but for those that fail."""

    failing = ""

    def answer(self, name, function, arguments):
        return Answer("failed", problem="why.") if name == self.failing else Answer("done", seconds=1.0)


@pytest.fixture
def on_engine(monkeypatch):
    """Put a class in place of the engine; give the engines that were made."""
    made = []

    def put(kind):
        @contextmanager
        def opened(config, function, shared, folder, gpu=False):
            made.append(kind(function, shared))
            yield made[-1]

        monkeypatch.setattr("continual_segment.lab.benchmark.on_engine.on_engine", opened)
        return made

    return put


@pytest.fixture(scope="module")
def plan(raw_datasets, preset):
    segment = replace(preset.segment, overlap=0.0, progress=False)
    config = replace(preset.on(iterations=2, report_every=1), segment=segment)
    datasets = {name: ProtocolDataset(raw) for name, raw in raw_datasets.items()}
    orders = make_orders(list(datasets), ["A", "21"])
    return Plan(config, datasets, orders, METHODS, held_out=1)


@pytest.fixture
def tasks(plan, datasets, tmp_path):
    tests = {name: HeldOut.of(each.raw, datasets[name], 1) for name, each in plan.datasets.items()}
    return BenchmarkTasks(BenchmarkPaths(tmp_path, plan), datasets, tests)


def test_a_task_needs_only_tasks_before_it(tasks):
    """So that one machine, which does them in turn, finds what it needs as well."""
    known = set()
    for task in tasks.all():
        assert set(task.needs) <= known, task.title
        assert task.needs or task.kind == "train first", task.title
        known.add(task.key)


def test_every_task_is_done_once_after_what_it_needs_and_run_times_are_measured_alone(tasks, on_engine):
    made = on_engine(WithoutWork)
    run_tasks_on_engine(tasks, ENGINE)
    (engine,) = made
    everything = {task.title: task for task in tasks.all()}
    assert sorted(engine.order) == sorted(everything)
    done = set()
    for title in engine.order:
        assert set(everything[title].needs) <= done
        done.add(everything[title].key)
    alone = [title for title in engine.order if everything[title].runs_alone]
    assert alone == engine.order[-len(alone) :]
    assert {engine.beside[title] for title in alone} == {0}
    assert max(engine.beside.values()) > 2  # others run beside each other


def test_a_task_that_fails_stops_only_those_that_need_it(tasks, on_engine, monkeypatch):
    made = on_engine(WithoutWork)
    names = tasks.plan.orders["A"]
    monkeypatch.setattr(WithoutWork, "failing", f"order A, mib, step 2: {names[1]}")
    with pytest.raises(ContinualSegmentError, match=r"1 tasks failed.*mib, step 2.*why\.") as caught:
        run_tasks_on_engine(tasks, ENGINE)
    assert "run the same command again" in str(caught.value).lower()
    left = {task.title for task in tasks.all()} - set(made[0].order)
    assert {f"order A, mib, step 2: score {name}" for name in names} <= left
    assert all("mib, step 2" in title or "run time" in title for title in left)


def test_folders_must_be_the_same_on_every_machine(tasks, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    relative = replace(tasks, paths=BenchmarkPaths(tmp_path.relative_to(tmp_path), tasks.plan))
    with pytest.raises(ConfigError, match="root of the file system"):
        run_tasks_on_engine(relative, ENGINE)


@pytest.fixture(scope="module")
def small(plan):
    return replace(plan, orders=make_orders(list(plan.datasets), ["A"]), methods=("ours", "mib"))


@pytest.fixture(scope="module")
def without_pictures():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history, "curves_png", lambda rows: b"")
        patch.setattr("continual_segment.lab.benchmark.tasks.Task.part", "")
        yield


@pytest.fixture(scope="module")
def local(small, without_pictures, tmp_path_factory):
    """The benchmark on one machine."""
    return benchmark_in(tmp_path_factory.mktemp("benchmark") / "local", small)


def benchmark_in(folder, plan, engine=None):
    for name, dataset in plan.datasets.items():  # in this process: starting others takes longer
        prepare(dataset.raw, folder / "prepared" / name, plan.config.prepare, workers=1, progress=False)
    run_benchmark(folder, plan, engine)
    return folder


def check_same_results(folder, local):
    found, expected = (json.loads((each / "results.json").read_text()) for each in (folder, local))
    assert found["steps"] == expected["steps"]
    scores = [path.relative_to(local) for path in local.rglob("scores.csv")]
    assert scores
    for path in scores:
        assert (folder / path).read_bytes() == (local / path).read_bytes()


def test_results_are_those_of_one_machine(small, local, on_engine, tmp_path):
    made = on_engine(LastFirst)
    check_same_results(benchmark_in(tmp_path, small, ENGINE), local)
    assert made[0].order


@long_test
def test_on_a_cluster_whose_worker_is_killed_results_are_those_of_one_machine(small, local, tmp_path):
    """The one worker that is there is killed as soon as it trains; its nanny starts another one."""
    pytest.importorskip("distributed", reason="the extra [dask] is not installed")
    from made_cluster import MadeCluster, beside, kill, spawned, wait_for

    out = tmp_path / "out"
    with MadeCluster(tmp_path / "cluster") as cluster:
        nanny = cluster.worker("killed", nanny=True)
        cluster.wait_for_workers(1)

        def disturb():
            wait_for(lambda: list((out / "first").rglob("checkpoint*")))
            (worker,) = spawned(nanny.pid)
            kill(worker)
            cluster.worker("other")

        with beside(disturb):
            benchmark_in(out, small, EngineConfig(cluster.address, seconds=None))
    check_same_results(out, local)
