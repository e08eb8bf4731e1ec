"""Where a benchmark keeps things, and by which model each dataset is segmented after a step.

benchmark.json                        settings; another benchmark does not go into this folder
prepared/DATASET/
first/DATASET/                        the first step, shared: model (ours), network (all others), scores
own/METHOD/DATASET/                   networks of a dataset's own; no order changes them
ORDER/METHOD/step_N_DATASET/          model and scores/DATASET/ after a step
ORDER/ours/                           model, and scores/step_N/DATASET/
results.json  results.md  tables/  figures/
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from continual_segment.lab.benchmark.plan import OURS, OWN_PACK, Plan, make_method


@dataclass(frozen=True, eq=False)
class Places:
    """Paths of a benchmark."""

    folder: Path
    plan: Plan

    def prepared(self, dataset: str) -> Path:
        return self.folder / "prepared" / dataset

    def first(self, dataset: str) -> Path:
        return self.folder / "first" / dataset

    def ours(self, order: str) -> Path:
        return self.folder / order / OURS

    def step(self, order: str, method: str, number: int) -> Path:
        """Folder of a comparison method's step; the first is the same for all."""
        dataset = self.plan.orders[order][number - 1]
        if number == 1:
            return self.first(dataset)
        name = method.replace(":", "_").replace("=", "_").replace(",", "_")
        if self.one_per_dataset(method):
            return self.folder / "own" / name / dataset
        return self.folder / order / name / f"step_{number}_{dataset}"

    def network(self, order: str, method: str, number: int) -> Path:
        """The model that a comparison method's step leaves."""
        return self.step(order, method, number) / ("network" if number == 1 else "model")

    def scores(self, order: str, method: str, number: int, dataset: str) -> Path:
        """Folder of the evaluation of a dataset after a step."""
        if method in (OURS, OWN_PACK):
            merged = "_merged" if method == OURS else ""
            return self.ours(order) / "scores" / f"step_{number}" / f"{dataset}{merged}"
        if self.one_per_dataset(method):
            number = self.plan.orders[order].index(dataset) + 1
        return self.step(order, method, number) / "scores" / dataset

    def merging(self, order: str, rule: str, dataset: str) -> Path:
        return self.ours(order) / "merging" / rule / dataset

    def one_per_dataset(self, method: str) -> bool:
        return method not in (OURS, OWN_PACK) and make_method(method).keeps == "one network per dataset"
