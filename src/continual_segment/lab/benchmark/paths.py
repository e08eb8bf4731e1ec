"""BenchmarkPaths: where a benchmark stores its models and scores.

benchmark.json                        settings; a benchmark of other settings needs another folder
prepared/DATASET/
first/DATASET/                        the shared first step: model, network before search and pruning, scores
own/METHOD/DATASET/                   separate networks per dataset, which no order changes
ORDER/METHOD/step_N_DATASET/          model and scores/DATASET/ after a step
ORDER/METHOD/                         of a model that grows: model, and scores/step_N/DATASET/
results.json  results.md  tables/  figures/
cleaned/  validation/                 the same of a further scoring, which is in scores_cleaned/, ...
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from continual_segment.lab.benchmark.plan import Plan


@dataclass(frozen=True, eq=False)
class BenchmarkPaths:
    """Paths of a benchmark; a method is named as in the plan, with its settings."""

    folder: Path
    plan: Plan

    def prepared(self, dataset: str) -> Path:
        return self.folder / "prepared" / dataset

    def first(self, dataset: str) -> Path:
        return self.folder / "first" / dataset

    @property
    def report(self) -> Path:
        """Folder of tables and figures."""
        return self.folder / self.plan.variant

    def _of_variant(self, name: str) -> str:
        return f"{name}_{self.plan.variant}" if self.plan.variant else name

    def first_scores(self, dataset: str) -> Path:
        """Folder of the first step's evaluation."""
        return self.first(dataset) / self._of_variant("scores") / dataset

    def of_method(self, order: str, method: str) -> Path:
        """What a method stores of an order."""
        return self.folder / order / folder_name(method)

    def step(self, order: str, method: str, number: int) -> Path:
        """Folder of a method's step; methods that read the shared first network have that one in common."""
        dataset = self.plan.orders[order][number - 1]
        if self.grows(method):
            return self.of_method(order, method)
        if number == 1:
            return self.first(dataset)
        if self.one_per_dataset(method):
            first = self.plan.orders[order][0] if self.plan.method(method).reads_first_step else ""
            return self.folder / "own" / folder_name(method) / first / dataset
        return self.of_method(order, method) / f"step_{number}_{dataset}"

    def model(self, order: str, method: str, number: int) -> Path:
        """The model after a method's step."""
        shared = number == 1 and not self.grows(method)
        return self.step(order, method, number) / ("network" if shared else "model")

    def state(self, order: str, method: str, number: int) -> Path:
        """What a method's state after a step is stored beside."""
        if number == 1:
            return self.folder / "first" / f"{self.plan.orders[order][0]}_{folder_name(method)}"
        return self.model(order, method, number)

    def previous_step(self, method: str, number: int) -> int:
        """The step that a step starts from."""
        return 1 if self.one_per_dataset(method) else number - 1

    def segmenting_step(self, order: str, method: str, number: int, dataset: str) -> int:
        """The step whose model segments a dataset after step `number`."""
        return self.plan.orders[order].index(dataset) + 1 if self.one_per_dataset(method) else number

    def scores(self, order: str, row: str, number: int, dataset: str) -> Path:
        """Folder of the evaluation of a dataset after a step, by row of the tables."""
        method, view = self.plan.rows[row].method_name, self.plan.rows[row].view
        number = self.segmenting_step(order, method, number, dataset)
        folder = self.step(order, method, number) / self._of_variant("scores")
        return (folder / f"step_{number}" if self.grows(method) else folder) / f"{dataset}{view.suffix}"

    def merging(self, order: str, method: str, rule: str, dataset: str) -> Path:
        return self.of_method(order, method) / self._of_variant("merging") / rule / dataset

    def run_time(self, order: str, method: str) -> Path:
        return self.of_method(order, method) / "run_time.json"

    def one_per_dataset(self, method: str) -> bool:
        return self.plan.method(method).keeps == "one network per dataset"

    def grows(self, method: str) -> bool:
        """Whether all steps of a method add to one model."""
        return self.plan.method(method).keeps == "one pack per dataset"


def folder_name(method: str) -> str:
    """A method's name with its settings as a folder's name."""
    return re.sub("[:=,]", "_", method)
