"""The tasks of a benchmark: learn, segment and score, each with a result on disk.

Tasks are the same for every method. What differs is declared by the method: the models it stores, the views
by which it segments, and the further tables it adds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from continual_segment.data.prepared import PreparedDataset
from continual_segment.errors import ConfigError
from continual_segment.files.atomic import write_json
from continual_segment.lab.baselines import FirstStep, LaterStep
from continual_segment.lab.baselines.first_step import first_step_of, learn_first_step
from continual_segment.lab.benchmark.paths import BenchmarkPaths
from continual_segment.lab.benchmark.plan import Plan, Row
from continual_segment.lab.protocol import HeldOut, is_scored, score_rules
from continual_segment.model import Model
from continual_segment.model.pieces import FIELD as PIECES
from continual_segment.segmentation import Segmenter
from continual_segment.segmentation.merge import RULES, RuleName

FIRST_NETWORK = "first network"
"""Name of the first step's network among the run times."""
TIMED_REPEATS = 3


@dataclass(frozen=True, eq=False)
class Task:
    """Work that is done once its result is on disk."""

    title: str
    kind: str
    """Tasks of one kind take time in proportion to their size."""
    size: float
    key: Hashable
    """Tasks with the same key have the same result: all methods share the first step's scores."""
    is_done: Callable[[], bool]
    do: Callable[[], None]
    needs: tuple[Hashable, ...] = ()
    """Keys of the tasks whose results it reads, or whose results it would change."""

    @property
    def runs_alone(self) -> bool:
        """Whether tasks beside it would change its result: it measures time."""
        return self.kind == "run time"

    @property
    def trains(self) -> bool:
        return self.kind.startswith("train")

    @property
    def part(self) -> str:
        """Order and method, as the title begins: results are written after each."""
        return self.title.partition(", step")[0]


@dataclass(frozen=True, eq=False)
class BenchmarkTasks:
    """Makes the tasks of a plan."""

    paths: BenchmarkPaths
    prepared: Mapping[str, PreparedDataset]
    tests: Mapping[str, HeldOut]

    @property
    def plan(self) -> Plan:
        return self.paths.plan

    def all(self) -> list[Task]:
        """Every task once, in an order in which each finds what it needs."""
        tasks: dict[Hashable, Task] = {}
        for task in self._with_repeats():
            tasks.setdefault(task.key, task)
        return list(tasks.values())

    def _with_repeats(self) -> Iterator[Task]:
        for first in dict.fromkeys(order[0] for order in self.plan.orders.values()):
            yield from self.first_tasks(first)
        for order in self.plan.orders:
            for method in self.plan.methods:
                yield from self.method_tasks(order, method)
        for order in self.plan.orders:
            yield from self.extra_tasks(order)

    def first_tasks(self, name: str) -> Iterator[Task]:
        """Train and score the first step, which all methods share."""
        folder = self.paths.first(name)
        model, network, scores = folder / "model", folder / "network", self.paths.first_scores(name)
        data, config, anomalies = self.prepared[name], self.plan.config, self.plan.datasets[name].anomalies
        learn = partial(learn_first_step, name, data, config, model, network, anomalies)
        yield Task(
            f"first step: {name}", "train first", config.first.iterations, network, network.exists, learn
        )

        def score() -> None:
            opened = Model.open(network)
            segmenter = self.segmenter(opened)
            score_rules(segmenter, {scores: segmenter.merge_rule()}, self.tests[name], first_step_of(opened))

        title = f"score the first step: {name}"
        is_done = partial(is_scored, scores)
        yield Task(title, "score", self._scans(name), scores, is_done, score, needs=(network,))

    def method_tasks(self, order: str, method: str) -> Iterator[Task]:
        """All steps of a method in one order, and the scores after each."""
        names = self.plan.orders[order]
        yield self.adopt_task(order, method)
        for number in range(1, len(names) + 1):
            if number > 1:
                yield self.learn_task(order, method, number)
            for dataset in names[:number]:
                yield self.score_task(order, method, number, dataset)

    def adopt_task(self, order: str, method: str) -> Task:
        made, name = self.plan.method(method), self.plan.orders[order][0]
        folder, model = self.paths.first(name), self.paths.model(order, method, 1)
        first = FirstStep(
            folder / "model",
            folder / "network",
            self.prepared[name],
            self.plan.config,
            self.plan.training(method),
            model,
            self.paths.state(order, method, 1),
        )
        return Task(
            f"order {order}, {method}, step 1: adopt {name}",
            "adopt",
            0,
            (model, first.state),
            partial(made.has_adopted, first),
            partial(made.adopt, first),
            needs=(folder / "network",),
        )

    def learn_task(self, order: str, method: str, number: int) -> Task:
        paths, name = self.paths, self.plan.orders[order][number - 1]
        before = paths.previous_step(method, number)
        step = LaterStep(
            name,
            self.prepared[name],
            paths.model(order, method, before),
            paths.state(order, method, before),
            paths.model(order, method, number),
            self.plan.config_of(method),
            self.plan.training(method),
            self.plan.datasets[name].anomalies,
        )
        return Task(
            f"order {order}, {method}, step {number}: {name}",
            f"train {method}",
            step.train.iterations,
            (step.folder, name),
            partial(has_pack, step.folder, name),
            partial(self.plan.method(method).learn, step),
            needs=(self._key_of_step(order, method, before), *self._scores_before(order, method, number)),
        )

    def _key_of_step(self, order: str, method: str, number: int) -> Hashable:
        """Key of the task that makes the model after a step."""
        model = self.paths.model(order, method, number)
        if number == 1:
            return model, self.paths.state(order, method, 1)
        return model, self.plan.orders[order][number - 1]

    def _scores_before(self, order: str, method: str, number: int) -> Iterator[Hashable]:
        """Keys of the scores that a step must wait for: those of a model to which it adds a pack."""
        name = self.plan.orders[order][number - 1]
        if self.paths.grows(method) and not has_pack(self.paths.model(order, method, number), name):
            for dataset in self.plan.orders[order][: number - 1]:
                yield self._key_of_scores(order, method, number - 1, dataset)

    def _key_of_scores(self, order: str, method: str, number: int, dataset: str) -> Hashable:
        return next(iter(self._scores(order, method, number, dataset)))

    def _scores(self, order: str, method: str, number: int, dataset: str) -> dict[Path, Row]:
        """Folders of scores, by view of the method."""
        rows = [row for row in self.plan.rows.values() if row.method_name == method]
        return {self.paths.scores(order, row.name, number, dataset): row for row in rows}

    def score_task(self, order: str, method: str, number: int, dataset: str) -> Task:
        """Score the held-out scans of a dataset after a step, by all views of the method."""
        scores = self._scores(order, method, number, dataset)
        step = self.paths.segmenting_step(order, method, number, dataset)
        model, learned = self.paths.model(order, method, step), self.plan.orders[order][:number]
        return Task(
            f"order {order}, {method}, step {number}: score {dataset}",
            "score",
            self._scans(dataset),
            self._key_of_scores(order, method, number, dataset),
            lambda: all(map(is_scored, scores)),
            lambda: self.score(model, learned, dataset, scores),
            needs=(self._key_of_step(order, method, step),),
        )

    def score(self, model: Path, learned: tuple[str, ...], dataset: str, scores: Mapping[Path, Row]) -> None:
        """Segment once by the packs learned so far, and write the scores of each view."""
        opened = Model.open(model)
        own = {folder: row.view.packs == "own" for folder, row in scores.items()}
        merged = [name for name in learned if name in opened.pack_names]
        packs = [dataset] if all(own.values()) else merged
        segmenter = self.segmenter(opened, packs)
        rules = {
            folder: segmenter.single_pack_rule(dataset) if own[folder] else segmenter.merge_rule()
            for folder in scores
        }
        score_rules(segmenter, rules, self.tests[dataset], first_step_of(opened))

    def segmenter(self, model: Model, packs: Sequence[str] | None = None) -> Segmenter:
        """As the plan segments; ConfigError where clean-up would be for some methods alone."""
        for name in packs or model.pack_names:
            if self.plan.clean_up and PIECES not in model.pack(name).card:
                raise ConfigError(
                    f"{model.folder}: pack '{name}' was made by an earlier version, which did not store what "
                    "clean-up has to know. Leave --clean-up out, or choose another --out."
                )
        return Segmenter(model, packs=packs, config=self.plan.segment)

    def extra_tasks(self, order: str) -> Iterator[Task]:
        """What the further tables of methods need, after the last step."""
        for method in self.plan.methods_with("merge rules"):
            for name in self.plan.orders[order]:
                yield self.merging_task(order, method, name)
        for method in self.plan.methods_with("run time") if not self.plan.variant else ():
            path = self.paths.run_time(order, method)
            measure = partial(self.measure_run_time, order, method, path)
            last = self._key_of_step(order, method, len(self.plan.orders[order]))
            title = f"order {order}, {method}, run time"
            yield Task(title, "run time", 1, path, path.exists, measure, needs=(last,))

    def merging_task(self, order: str, method: str, dataset: str) -> Task:
        folders = {rule: self.paths.merging(order, method, rule, dataset) for rule in RULES}
        return Task(
            f"order {order}, {method}, merge rules: {dataset}",
            "merge rules",
            self._scans(dataset),
            self.paths.merging(order, method, "", dataset),
            lambda: all(map(is_scored, folders.values())),
            lambda: self.score_merge_rules(self._last_model(order, method), dataset, folders),
            needs=(self._key_of_step(order, method, len(self.plan.orders[order])),),
        )

    def score_merge_rules(self, model: Path, dataset: str, folders: Mapping[RuleName, Path]) -> None:
        """Every merge rule on the same predictions of all packs."""
        opened = Model.open(model)
        segmenter = self.segmenter(opened)
        rules = {folders[rule]: segmenter.merge_rule(rule) for rule in RULES}
        score_rules(segmenter, rules, self.tests[dataset], first_step_of(opened))

    def measure_run_time(self, order: str, method: str, path: Path) -> None:
        """Write the seconds of all packs and of the first step's network alone, in turn, on one scan."""
        first, config = self.plan.orders[order][0], self.plan.segment
        models = {
            method: self._last_model(order, method),
            FIRST_NETWORK: self.paths.first(first) / "network",
        }
        scan, _ = self.tests[first].raw.read(self.tests[first].cases[0])
        segmenters = {name: Segmenter(Model.open(model), config=config) for name, model in models.items()}
        seconds: dict[str, list[float]] = {name: [] for name in models}
        for repeat in range(TIMED_REPEATS + 1):
            for name, segmenter in segmenters.items():
                started = time.monotonic()
                segmenter(scan)
                if repeat:  # the first warms up
                    seconds[name].append(time.monotonic() - started)
        write_json(path, seconds)

    def _last_model(self, order: str, method: str) -> Path:
        return self.paths.model(order, method, len(self.plan.orders[order]))

    def _scans(self, dataset: str) -> int:
        return len(self.tests[dataset].cases)


def has_pack(model: Path, pack: str) -> bool:
    return model.exists() and pack in Model.open(model).pack_names
