"""How long a method trains in a later step: as many updates for every method, or the paper's schedules."""

from __future__ import annotations

from dataclasses import replace

from continual_segment.config import ExperimentConfig
from continual_segment.training import TrainConfig


def equal_budget(config: ExperimentConfig) -> TrainConfig:
    """A later training with the updates of all stages of a step that `learn` makes."""
    return with_iterations(config.later, config.later.iterations * stage_shares(config))


def share_of_first_step(config: ExperimentConfig, share: float, rate: float) -> TrainConfig:
    """A later training with this share of the first step's updates, at this share of its learning rate."""
    slower = replace(config.later, learning_rate=config.first.learning_rate * rate)
    return with_iterations(slower, config.first.iterations * share)


def with_iterations(config: TrainConfig, iterations: float) -> TrainConfig:
    count = max(1, round(iterations))
    return replace(config, iterations=count, report_every=min(config.report_every, count))


def stage_shares(config: ExperimentConfig) -> float:
    """Updates of all stages of a later step, per update of its first stage."""
    stages, distil, prune = config.stage.stages, config.distil, config.prune
    shares = 1.0
    if "search" in stages:
        shares += config.search.iterations_share + config.search.retrain_share
    if "prune" in stages:
        shares += distil.students_share * (1 + distil.adapt_share)
        shares += prune.candidates * prune.candidate_share + prune.fine_tune_share
    if "shrink" in stages:
        shares += config.shrink.share  # of one candidate; a second one is the exception
    return shares
