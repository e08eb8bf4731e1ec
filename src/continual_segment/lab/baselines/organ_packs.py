"""The paper's method: a frozen encoder, and one small organ pack per dataset."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from continual_segment.config import ExperimentConfig
from continual_segment.lab.baselines.budgets import equal_budget
from continual_segment.lab.baselines.method import ContinualMethod, Extra, FirstStep, Keeps, LaterStep, View
from continual_segment.learning import learn_dataset
from continual_segment.model import OrganPack
from continual_segment.networks import NetworkConfig, paper_count
from continual_segment.training import TrainConfig


@dataclass(frozen=True)
class OrganPacks(ContinualMethod):
    """What `conseg learn` does: each dataset adds a pack to one model, and no earlier pack changes.

    A dataset is segmented by all packs merged, and by its own pack alone, which shows what merging costs.
    """

    keeps: ClassVar[Keeps] = "one pack per dataset"
    views: ClassVar[tuple[View, ...]] = (View("all", suffix="_merged"), View("own", label="own pack"))
    encoder: ClassVar[str] = "frozen"
    extras: ClassVar[frozenset[Extra]] = frozenset({"decoders", "encoders", "merge rules", "run time"})

    def has_adopted(self, first: FirstStep) -> bool:
        return first.folder.exists()

    def adopt(self, first: FirstStep) -> None:
        copy_folder(first.model, first.folder)

    def learn(self, step: LaterStep) -> None:
        learn_dataset(step.dataset, step.folder, step.config, step.name, anomalies=step.anomalies)

    def paper_budget(self, config: ExperimentConfig) -> TrainConfig:
        return equal_budget(config)

    def decoder_parameters(self, network: NetworkConfig, datasets: int, packs: Sequence[OrganPack]) -> int:
        return sum(paper_count(pack.plan, network) for pack in packs)


def copy_folder(source: Path, target: Path) -> None:
    """The copy appears complete or not at all."""
    building = target.with_name(f".{target.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    shutil.copytree(source, building)
    building.rename(target)
