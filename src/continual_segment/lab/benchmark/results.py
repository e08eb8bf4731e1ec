"""Results: everything a benchmark has measured so far, read back from its folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from continual_segment import __version__
from continual_segment.evaluation.forgetting import AllScores, StepForgetting, all_scores, forgetting
from continual_segment.evaluation.report import dices
from continual_segment.evaluation.scores import Evaluation, ScoreMean
from continual_segment.lab.benchmark.paths import BenchmarkPaths
from continual_segment.lab.benchmark.plan import Plan
from continual_segment.lab.protocol import is_scored
from continual_segment.learning.step import run_folder
from continual_segment.model import Model, OrganPack
from continual_segment.networks import DecoderPlan, paper_count
from continual_segment.segmentation.merge import RULES
from continual_segment.training.history import read_history


@dataclass(frozen=True, eq=False)
class Results:
    """Scores of every method, order, step and dataset that exist."""

    paths: BenchmarkPaths

    @property
    def plan(self) -> Plan:
        return self.paths.plan

    @property
    def methods(self) -> tuple[str, ...]:
        """Rows of the tables: every method by each of its views; of several seeds, the first."""
        return tuple(self.plan.repeated)

    @cached_property
    def scores(self) -> dict[tuple[str, str, int, str], Evaluation]:
        """By order, method, step and dataset."""
        found = {}
        for order, names in self.plan.orders.items():
            for method in self.plan.rows:
                for number in range(1, len(names) + 1):
                    for dataset in names[:number]:
                        folder = self.paths.scores(order, method, number, dataset)
                        if is_scored(folder):
                            found[order, method, number, dataset] = Evaluation.read(folder)
        return found

    def after(self, order: str, method: str, step: int) -> dict[str, Evaluation]:
        """Per dataset learned by then; empty where a score is missing."""
        names = self.plan.orders[order][:step]
        found = {name: self.scores.get((order, method, step, name)) for name in names}
        return {name: each for name, each in found.items() if each} if all(found.values()) else {}

    def steps(self, order: str, method: str) -> int:
        """Steps with complete scores, counted from the first."""
        count = 0
        while count < len(self.plan.orders[order]) and self.after(order, method, count + 1):
            count += 1
        return count

    def finished(self, order: str) -> list[str]:
        """Methods with all steps."""
        return [name for name in self.methods if self.steps(order, name) == len(self.plan.orders[order])]

    def last(self, order: str, method: str) -> dict[str, Evaluation]:
        return self.after(order, method, len(self.plan.orders[order]))

    def seeds(self, order: str, method: str, step: int | None = None) -> list[str]:
        """The rows of a method's seeds that have come to a step, or to the last one."""
        wanted = len(self.plan.orders[order]) if step is None else step
        return [name for name in self.plan.repeated[method] if self.steps(order, name) >= wanted]

    def forgetting(self, order: str, method: str) -> list[StepForgetting]:
        steps = range(1, self.steps(order, method) + 1)
        return forgetting(
            [
                {name: each.mean.dice for name, each in self.after(order, method, step).items()}
                for step in steps
            ]
        )

    def all(self, found: dict[str, Evaluation], metric: str = "dice") -> AllScores:
        """One metric over all organs; datasets in the order of learning."""
        return all_scores(
            {
                name: {organ.name: getattr(organ, metric) for organ in each.organs}
                for name, each in found.items()
            }
        )

    def first_step(self, order: str, method: str, step: int) -> str:
        """Fingerprint of the encoder after the first step; empty where a score does not record it."""
        recorded = {each.first_step for each in self.after(order, method, step).values()}
        return recorded.pop() if len(recorded) == 1 else ""

    def packs(self, order: str, method: str) -> list[OrganPack]:
        """Of a method with further tables, in the order learned; those that exist."""
        return self._packs.get((order, method), [])

    @cached_property
    def _packs(self) -> dict[tuple[str, str], list[OrganPack]]:
        return {
            (order, method): packs_of(self.paths.model(order, method, len(names)), names)
            for order, names in self.plan.orders.items()
            for method in self.plan.methods
            if self.plan.method(method).extras
        }

    def parameters(self, order: str, method: str) -> tuple[float, float]:
        """Decoders' parameters as the paper counts, in millions, and relative to one nnU-Net decoder."""
        network = self.plan.config.network
        one = paper_count(DecoderPlan.nnunet(network), network)
        row = self.plan.rows[method]
        packs = self.packs(order, row.method_name)
        total = row.method.decoder_parameters(network, len(self.plan.orders[order]), packs)
        return total / 1e6, total / one

    def training_seconds(self, order: str, method: str) -> float:
        """Of all later steps that are done, all stages; `method` is one of the plan."""
        total = 0.0
        for number, name in enumerate(self.plan.orders[order][1:], start=2):
            model = self.paths.model(order, method, number)
            if model.exists() and name in Model.open(model).pack_names:
                total += seconds_of(model, name)
        return total

    def merging(self, order: str, method: str) -> dict[tuple[str, str], Evaluation]:
        """By rule and dataset, with all packs of a method."""
        folders = {
            (rule, dataset): self.paths.merging(order, method, rule, dataset)
            for rule in RULES
            for dataset in self.plan.orders[order]
        }
        return {key: Evaluation.read(folder) for key, folder in folders.items() if is_scored(folder)}

    def run_times(self, order: str, method: str) -> dict[str, list[float]]:
        """Seconds of the method and of the first step's network, run in turn."""
        path = self.paths.run_time(order, method)
        return json.loads(path.read_text()) if path.exists() else {}

    def order_changes_nothing(self) -> bool | None:
        """Whether packs are bit-identical in orders that start alike; None: nothing to compare."""
        by_first: dict[tuple[str, str], list[dict[str, str]]] = {}
        for (order, method), packs in self._packs.items():
            names = self.plan.orders[order]
            fingerprints = {pack.name: pack.fingerprint for pack in packs}
            if len(packs) == len(names):
                by_first.setdefault((names[0], method), []).append(fingerprints)
        compared = [group for group in by_first.values() if len(group) > 1]
        return all(each == group[0] for group in compared for each in group) if compared else None

    def as_data(self) -> dict[str, Any]:
        """All of it as plain data."""
        return {
            "version": __version__,
            "torch": torch.__version__,
            "budgets": self.plan.budgets,
            "held_out": self.plan.held_out,
            "clean_up": self.plan.clean_up,
            "split": self.plan.split,
            "orders": {order: list(names) for order, names in self.plan.orders.items()},
            "our_packs_do_not_depend_on_the_order": self.order_changes_nothing(),
            "steps": [self._step(order, method, step) for order, method, step in self._known()],
            "run_seconds": {order: self._all_run_times(order) for order in self.plan.orders},
        }

    def _all_run_times(self, order: str) -> dict[str, list[float]]:
        timed = self.plan.methods_with("run time")
        return {name: each for method in timed for name, each in self.run_times(order, method).items()}

    def _known(self) -> Iterable[tuple[str, str, int]]:
        for order in self.plan.orders:
            for method in self.plan.rows:
                for step in range(1, self.steps(order, method) + 1):
                    yield order, method, step

    def _step(self, order: str, method: str, step: int) -> dict[str, Any]:
        found = self.after(order, method, step)
        overall = self.all(found)
        lost = [each for each in self.forgetting(order, method) if each.step == step]
        return {
            "order": order,
            "method": method,
            "step": step,
            "first_step": self.first_step(order, method, step) or None,
            "dice_all_organs": overall.all_organs,
            "dice_all_pairs": overall.all_pairs,
            "dice_all_macro": overall.all_macro,
            "forgetting": lost[0].relative if lost else {},
            "mean_forgetting": lost[0].mean_relative if lost else None,
            "decoder_parameters": self.parameters(order, method),
            "datasets": {name: mean_data(each.mean) for name, each in found.items()},
            "organ_dice": {name: dices(each) for name, each in found.items()},
        }


def packs_of(folder: Path, names: Sequence[str]) -> list[OrganPack]:
    """The packs with these names; none where there is no model."""
    model = Model.open(folder) if folder.exists() else None
    return [model.pack(name) for name in names if name in model.pack_names] if model else []


def seconds_of(model: Path, pack: str) -> float:
    """Of a pack's training, all stages: from its card, else from the log beside the model, if any."""
    stages = Model.open(model).pack(pack).card.get("seconds")
    if stages is None:
        run = run_folder(model, pack)
        return read_history(run)[-1]["seconds"] if (run / "log.csv").exists() else 0.0
    return sum(stages.values())


def mean_data(mean: ScoreMean) -> dict[str, Any]:
    return {
        "dice": mean.dice,
        "hd95_mm": mean.hd95_mm,
        "asd_mm": mean.asd_mm,
        "hd95_penalised_mm": mean.hd95_penalised_mm,
        "asd_penalised_mm": mean.asd_penalised_mm,
        "scored": mean.scored,
        "missed": mean.excluded,
    }
