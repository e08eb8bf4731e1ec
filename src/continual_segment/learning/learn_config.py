"""LearnConfig: everything a learning step depends on besides its data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Self

from continual_segment.body_parts import BodyPartConfig
from continual_segment.data.augment import AugmentConfig
from continual_segment.data.patches import PatchConfig
from continual_segment.learning.assess import AssessConfig
from continual_segment.learning.distil import DistilConfig
from continual_segment.learning.prune import PruneConfig
from continual_segment.learning.search import SearchConfig
from continual_segment.learning.shrink import ShrinkConfig
from continual_segment.networks import NetworkConfig
from continual_segment.training import Loss, LossConfig, TrainConfig
from continual_segment.training.loss import as_loss_config

Stage = Literal["train", "shrink", "search", "prune"]
STAGES: tuple[tuple[Stage, ...], ...] = (
    ("train",),
    ("train", "shrink"),
    ("train", "search"),
    ("train", "prune"),
    ("train", "search", "prune"),
)
"""What a step may consist of."""


@dataclass(frozen=True)
class StageConfig:
    """What a step does."""

    stages: tuple[Stage, ...] = ("train",)
    """train; then, for a small decoder, shrink (fit smaller blocks to the trained ones) or the paper's way,
    search (kernels) and prune (projections where they do)."""
    first_step: float = 1.0
    """In the first step, lengths of the other stages are multiplied by this: its training, of which they are
    shares, includes the encoder and may be much longer."""

    def __post_init__(self) -> None:
        if self.stages not in STAGES:
            *others, last = (",".join(stages) for stages in STAGES)
            found = ",".join(map(str, self.stages)) or "none"
            raise ValueError(f"stages are {'; '.join(others)} or {last}, not {found}.")
        if self.first_step <= 0:
            raise ValueError(f"first_step is above 0, not {self.first_step}.")


@dataclass(frozen=True)
class LearnConfig:
    """Everything a learning step depends on besides its data."""

    network: NetworkConfig
    """Sizes of a new encoder; later steps take those of the model."""
    patches: PatchConfig
    """Training patches of a new model; later steps take its window."""
    augment: AugmentConfig
    first: TrainConfig
    """Training of encoder and first decoder."""
    later: TrainConfig
    """Training of every later decoder."""
    stage: StageConfig = field(default_factory=StageConfig, metadata={"table": "learn"})
    """Stages of every step; in TOML, the table [learn]."""
    search: SearchConfig = field(default_factory=SearchConfig)
    distil: DistilConfig = field(default_factory=DistilConfig)
    prune: PruneConfig = field(default_factory=PruneConfig)
    shrink: ShrinkConfig = field(default_factory=ShrinkConfig)
    body_parts: BodyPartConfig = field(default_factory=BodyPartConfig)
    """The regressor that the first step learns."""
    assess: AssessConfig = field(default_factory=AssessConfig)
    """What every new pack measures of itself."""

    def __post_init__(self) -> None:
        for size in self.patches.sizes:
            self.network.check_window(size)
        if self.network.input_channels != 1:
            raise ValueError(f"A CT has one input channel, not {self.network.input_channels}.")

    def with_loss(self, loss: LossConfig | Loss) -> Self:
        """The same with another loss of all training: settings, or a function of outputs and labels."""
        chosen = as_loss_config(loss)
        return replace(self, first=replace(self.first, loss=chosen), later=replace(self.later, loss=chosen))
