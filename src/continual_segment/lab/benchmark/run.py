"""benchmark: all steps of all methods in all orders, scored after every step, and the tables of the paper.

The first step is trained once. Every piece of work ends with a file on disk, and a piece whose file is there
is not done again: a benchmark that was killed goes on with the same call, training from its last checkpoint.

In:  raw datasets, a preset, orders, methods
Out: results.json, results.md, tables/*.csv and *.md, figures/*.png
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from continual_segment.data.prepare import prepare
from continual_segment.data.prepared import PreparedDataset
from continual_segment.errors import ConfigError
from continual_segment.evaluation.evaluate import score_case
from continual_segment.evaluation.scores import Evaluation, ScoreRow
from continual_segment.files.atomic import write_json
from continual_segment.lab.baselines import StepSettings, learn_step
from continual_segment.lab.baselines.classes import StepClasses
from continual_segment.lab.baselines.first_step import first_step_of
from continual_segment.lab.baselines.step import read_memory, training_batches, write_memory
from continual_segment.lab.benchmark.first_steps import check_first_steps
from continual_segment.lab.benchmark.places import Places
from continual_segment.lab.benchmark.plan import OURS, Plan, make_method
from continual_segment.lab.benchmark.progress import Progress
from continual_segment.lab.benchmark.results import Results
from continual_segment.lab.benchmark.write import write_results
from continual_segment.lab.protocol import HeldOut, score_step
from continual_segment.learning import learn_dataset
from continual_segment.learning.step import run_folder
from continual_segment.model import Model, OrganPack
from continual_segment.networks.segmentation_network import SegmentationNetwork
from continual_segment.segmentation import Segmenter
from continual_segment.segmentation.merge import RULES, MergeRule

log = logging.getLogger(__name__)

TIMED_REPEATS = 3


@dataclass(frozen=True, eq=False)
class Piece:
    """Work that is done or not."""

    title: str
    kind: str
    """Pieces of one kind take time in proportion to their size."""
    size: float
    is_done: Callable[[], bool]
    do: Callable[[], None]

    @property
    def part(self) -> str:
        """Order and method, as the title begins: results are written after each."""
        return self.title.partition(", step")[0]


def run_benchmark(folder: Path, plan: Plan) -> Path:
    """Do what is left of a benchmark in `folder`; return the path of results.md."""
    claim(folder, plan)
    return Benchmark(folder, plan).run()


class Benchmark:
    """A benchmark at work."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.plan, self.places = plan, Places(folder, plan)
        self.prepared: dict[str, PreparedDataset] = {}
        self.tests: dict[str, HeldOut] = {}
        for name, dataset in plan.datasets.items():
            prepared = prepare(dataset.raw, self.places.prepared(name), plan.config.prepare)
            self.prepared[name] = prepared.learnable()
            self.tests[name] = HeldOut.of(dataset.raw, self.prepared[name], plan.held_out)

    def run(self) -> Path:
        check_first_steps(
            Results(self.places)
        )  # before hours of training are added to results that do not fit
        pieces = list(self.pieces())
        progress = Progress(self.places.folder / "progress.json", pieces)
        for number, piece in enumerate(pieces):
            if piece.is_done():
                continue
            log.info("%s: %s", progress.sentence(pieces), piece.title)
            started = time.monotonic()
            piece.do()
            progress.add(piece, time.monotonic() - started)
            if number + 1 < len(pieces) and pieces[number + 1].part != piece.part:
                write_results(self.places)  # what there is so far
        log.info("%s", progress.sentence(pieces))
        return write_results(self.places)

    def pieces(self) -> Iterator[Piece]:
        """All work, in an order in which each finds what it needs."""
        for first in dict.fromkeys(order[0] for order in self.plan.orders.values()):
            yield from self.first_pieces(first)
        for order in self.plan.orders:
            for method in self.plan.methods:
                yield from self.our_pieces(order) if method == OURS else self.method_pieces(order, method)
        for order in self.plan.orders:
            if OURS in self.plan.methods:
                yield from self.final_pieces(order)

    def first_pieces(self, name: str) -> Iterator[Piece]:
        folder, config = self.places.first(name), self.plan.config
        model, network, scores = folder / "model", folder / "network", folder / "scores" / name
        yield Piece(
            f"first step: {name}",
            "train first",
            config.first.iterations,
            network.exists,
            lambda: self.learn_first(name, model, network),
        )
        yield self.score_piece(f"score the first step: {name}", network, None, name, scores)

    def learn_first(self, name: str, model: Path, network: Path) -> None:
        """Our first step, and the whole nnU-Net in it as a model of its own: where all methods start."""
        dataset = self.plan.datasets[name]
        if not model.exists():
            learn_dataset(self.prepared[name], model, self.plan.config, name, anomalies=dataset.anomalies)
        opened, trained = Model.open(model), run_folder(model, name) / "train.pack"
        pack = OrganPack.read(trained) if trained.exists() else opened.pack(name)  # before it was made small
        Model.create(network, opened.load_encoder(), opened.prepare, opened.window, pack)

    def our_pieces(self, order: str) -> Iterator[Piece]:
        names, folder = self.plan.orders[order], self.places.ours(order)
        model = folder / "model"

        def has(pack: str) -> bool:
            return model.exists() and pack in Model.open(model).pack_names

        for number, name in enumerate(names, start=1):
            if number == 1:
                yield Piece(
                    f"order {order}, ours: the first step's model",
                    "copy",
                    0,
                    lambda: model.exists(),
                    lambda: copy_folder(self.places.first(names[0]) / "model", model),
                )
            else:
                yield Piece(
                    f"order {order}, ours, step {number}: {name}",
                    "train ours",
                    self.plan.training(OURS).iterations,
                    lambda name=name: has(name),  # type: ignore[misc]
                    lambda name=name: self.learn_ours(name, model),  # type: ignore[misc]
                )
            scores = [self.places.scores(order, OURS, number, each) for each in names[:number]]
            yield Piece(
                f"order {order}, ours, step {number}: scores",
                "score",
                sum(len(self.tests[each].cases) for each in names[:number]),
                lambda scores=scores: all(map(is_scored, scores)),  # type: ignore[misc]
                lambda number=number: self.score_ours(order, number),  # type: ignore[misc]
            )

    def learn_ours(self, name: str, model: Path) -> None:
        dataset = self.plan.datasets[name]
        learn_dataset(self.prepared[name], model, self.plan.config, name, anomalies=dataset.anomalies)

    def score_ours(self, order: str, number: int) -> None:
        names, folder = self.plan.orders[order], self.places.ours(order)
        tests = {name: self.tests[name] for name in names[:number]}
        scores = folder / "scores" / f"step_{number}"
        score_step(folder / "model", names[number - 1], tests, self.plan.config, scores)

    def method_pieces(self, order: str, method: str) -> Iterator[Piece]:
        names = self.plan.orders[order]
        for number in range(2, len(names) + 1):
            name, model = names[number - 1], self.places.network(order, method, number)
            yield Piece(
                f"order {order}, {method}, step {number}: {name}",
                f"train {method}",
                self.plan.training(method).iterations,
                model.exists,
                lambda number=number: self.learn_method(order, method, number),  # type: ignore[misc]
            )
            learned = names[number - 1 : number] if self.places.one_per_dataset(method) else names[:number]
            for each in learned:
                packs = (each,) if make_method(method).keeps == "old decoders" else None
                scores = self.places.scores(order, method, number, each)
                title = f"order {order}, {method}, step {number}: score {each}"
                yield self.score_piece(title, model, packs, each, scores)

    def learn_method(self, order: str, method: str, number: int) -> None:
        made, name = make_method(method), self.plan.orders[order][number - 1]
        before = 1 if self.places.one_per_dataset(method) else number - 1
        previous = self.places.network(order, method, before)
        settings = self.settings(method)
        learn_step(
            made,
            previous,
            self.prepared[name],
            self.places.network(order, method, number),
            settings,
            name,
            self.first_memory(order, method) if before == 1 else None,
        )

    def settings(self, method: str) -> StepSettings:
        config = self.plan.config
        patches = config.patches.of_later_step(config.patches.size)  # as ours
        return StepSettings(patches, config.augment, self.plan.training(method))

    def first_memory(self, order: str, method: str) -> Any:
        """What a method takes along from the first step, computed once while that dataset is at hand."""
        remember = getattr(make_method(method), "after_first_step", None)
        if remember is None:
            return {}
        first = self.plan.orders[order][0]
        place = (
            self.places.folder / "first" / f"{first}_{Path(self.places.step(order, method, 2)).parent.name}"
        )
        if not (memory := read_memory(place)):
            network = Model.open(self.places.network(order, method, 1))
            whole = SegmentationNetwork(network.load_encoder(), network.pack(first).decoder()).freeze()
            classes = StepClasses.of((), self.prepared[first].organs)
            settings = replace(self.settings(method), patches=self.plan.config.patches)
            memory = remember(whole, classes, training_batches(self.prepared[first], settings))
            write_memory(place, memory)
        return memory

    def score_piece(
        self, title: str, model: Path, packs: Sequence[str] | None, dataset: str, scores: Path
    ) -> Piece:
        return Piece(
            title,
            "score",
            len(self.tests[dataset].cases),
            lambda: is_scored(scores),
            lambda: self.score(model, packs, dataset, scores),
        )

    def score(self, model: Path, packs: Sequence[str] | None, dataset: str, scores: Path) -> None:
        """Segment and score the held-out scans of a dataset by a model, or by some of its packs."""
        opened, test = Model.open(model), self.tests[dataset]
        segmenter = Segmenter(opened, packs=packs, config=self.plan.config.segment)
        rows = []
        for case in test.cases:
            scan, truth = test.raw.read(case)
            rows += score_case(case.name, segmenter(scan, title=case.name).labels, truth)
        Evaluation.from_rows(rows, test.splits, first_step_of(opened)).write(scores)

    def final_pieces(self, order: str) -> Iterator[Piece]:
        names = self.plan.orders[order]
        for name in names:
            scores = [self.places.merging(order, rule, name) for rule in RULES]
            yield Piece(
                f"order {order}, merge rules: {name}",
                "merge rules",
                len(self.tests[name].cases),
                lambda scores=scores: all(map(is_scored, scores)),  # type: ignore[misc]
                lambda name=name: self.score_rules(order, name),  # type: ignore[misc]
            )
        times = self.places.ours(order) / "run_time.json"
        yield Piece(
            f"order {order}, run time", "run time", 1, times.exists, lambda: self.time_ours(order, times)
        )

    def score_rules(self, order: str, dataset: str) -> None:
        """Every merge rule on the same answers of all packs."""
        model, test = Model.open(self.places.ours(order) / "model"), self.tests[dataset]
        segmenter = Segmenter(model, config=self.plan.config.segment)
        rows: dict[str, list[ScoreRow]] = {rule: [] for rule in RULES}
        for case in test.cases:
            scan, truth = test.raw.read(case)
            rules: dict[str, MergeRule] = {rule: segmenter.merge_rule(rule) for rule in RULES}
            for rule, found in segmenter.compare_rules(scan, rules, title=case.name).items():
                rows[rule] += score_case(case.name, found.labels, truth)
        for name, each in rows.items():
            scored = Evaluation.from_rows(each, test.splits, model.encoder_fingerprint)
            scored.write(self.places.merging(order, name, dataset))

    def time_ours(self, order: str, path: Path) -> None:
        """All packs against the first step's network alone, in turn, on one scan."""
        first, config = self.plan.orders[order][0], self.plan.config.segment
        models = {
            "ours": self.places.ours(order) / "model",
            "first network": self.places.first(first) / "network",
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


def is_scored(folder: Path) -> bool:
    return (folder / "evaluation.json").exists()


def copy_folder(source: Path, target: Path) -> None:
    """The copy is there as a whole or not at all."""
    building = target.with_name(f".{target.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    shutil.copytree(source, building)
    building.rename(target)


def claim(folder: Path, plan: Plan) -> None:
    """Note what decides the results in a new folder; refuse one that holds a benchmark of other settings.

    Orders and methods may be added later.
    """
    settings = {
        "config": asdict(plan.config),
        "datasets": {name: str(dataset.raw.folder.resolve()) for name, dataset in plan.datasets.items()},
        "held_out": plan.held_out,
        "budgets": plan.budgets,
    }
    settings = json.loads(json.dumps(settings))
    note = folder / "benchmark.json"
    if note.exists() and (found := json.loads(note.read_text())) != settings:
        changed = ", ".join(key for key in settings if settings[key] != found.get(key))
        raise ConfigError(
            f"{folder} holds a benchmark with another {changed}. Choose another --out, or delete it."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(note, settings)
