"""ContinualMethod: the one shape of every method in the benchmark, the paper's own included.

All methods start from one training of the first dataset. A method learns each later dataset from the model
after the step before, and reads no scan of an earlier dataset. It stores ordinary model folders, so the same
code segments and scores the held-out scans for all methods. What differs between methods is declared here;
the benchmark reads these declarations and never a method's name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from continual_segment.config import ExperimentConfig
from continual_segment.data.prepared import PreparedDataset
from continual_segment.lab.baselines.budgets import share_of_first_step
from continual_segment.model import OrganPack
from continual_segment.networks import DecoderPlan, NetworkConfig, paper_count
from continual_segment.training import TrainConfig

Keeps = Literal["one network", "old decoders", "one network per dataset", "one pack per dataset"]
"""What is stored after a step: a network that knows all organs; every dataset's decoder on the newest
encoder; a separate network for each dataset; or one model that grows by a pack per step."""
Extra = Literal["decoders", "encoders", "merge rules", "run time"]
"""Tables that a method can add: sizes of its decoders, encoders trained on other datasets (needs a view of
all packs and one of the own pack), every merge rule on its packs, and their run time against one network."""


@dataclass(frozen=True)
class View:
    """One way to segment the datasets learned so far: one row of the tables."""

    packs: Literal["all", "own"] = "all"
    """Segment a dataset by all packs of the model merged, or by the pack that learned it alone."""
    label: str = ""
    """Follows the method's name in the tables; empty for a method's main view."""
    suffix: str = ""
    """Of the folders of its scores."""


@dataclass(frozen=True, eq=False)
class FirstStep:
    """The first step, which all methods share."""

    model: Path
    """As `learn` leaves it, after all its stages."""
    network: Path
    """The same before search and pruning: a whole nnU-Net."""
    dataset: PreparedDataset
    config: ExperimentConfig
    train: TrainConfig
    """How the method trains in later steps."""
    folder: Path
    """The method's model folder after the first step."""
    state: Path
    """Where the method stores its state after the first step."""


@dataclass(frozen=True, eq=False)
class LaterStep:
    """A dataset to learn after the first."""

    name: str
    dataset: PreparedDataset
    previous: Path
    """The model after the step before."""
    state: Path
    """Where the method stored its state after the step before."""
    folder: Path
    """The model after this step; the same as `previous` for a model that grows."""
    config: ExperimentConfig
    train: TrainConfig
    """How long to train, and at which learning rate."""
    anomalies: Sequence[str] = field(default=())
    """Diseases in the dataset's scans."""


class ContinualMethod(ABC):
    """A method: a frozen dataclass of its settings."""

    keeps: ClassVar[Keeps] = "one network"
    views: ClassVar[tuple[View, ...]] = (View(),)
    """How each dataset is segmented after a step; the main view first."""
    encoder: ClassVar[str] = ""
    """Label of its row in the table that compares frozen and trained encoders (Table 2 of the paper), whose
    scores are those of the view by each dataset's own pack; empty: no row."""
    extras: ClassVar[frozenset[Extra]] = frozenset()

    @property
    def reads_first_step(self) -> bool:
        """Whether a dataset's network depends on the first step, for methods with one network per dataset."""
        return False

    def has_adopted(self, first: FirstStep) -> bool:
        """Whether `adopt` has nothing left to do."""
        return True

    def adopt(self, first: FirstStep) -> None:  # noqa: B027, most methods read the shared network as it is
        """Take over what the method needs from the first step."""

    @abstractmethod
    def learn(self, step: LaterStep) -> None:
        """Learn one dataset, store the model in `step.folder`; resume where an earlier call was stopped."""

    def paper_budget(self, config: ExperimentConfig) -> TrainConfig:
        """How the method trains in a later step under the paper's budgets."""
        return share_of_first_step(config, 1 / 16, rate=1 / 2)

    def decoder_parameters(self, network: NetworkConfig, datasets: int, packs: Sequence[OrganPack]) -> int:
        """Parameters of all decoders after so many datasets, as the paper counts; `packs` are stored."""
        return paper_count(DecoderPlan.nnunet(network), network) * (
            1 if self.keeps == "one network" else datasets
        )
