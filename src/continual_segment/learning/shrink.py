"""Make a trained decoder small: fit smaller blocks to it, choose a plan, train that with a teacher.

Every block may keep its kernel or take a smaller one, which is fitted in closed form (least_squares.py). So
each combination is a working decoder before any update, and all are scored on validation windows. What a plan
loses then predicts what it loses in the end: training regains about the same share of it. The smallest plan
that is expected to lose at most tau Dice points is trained, with the trained decoder as teacher; if it loses
more after all, the next larger one is. In the end the trained decoder itself is left: at most tau points are
lost on validation. With a budget of parameters and multiply-adds, the best plan within it is taken instead.

In:  a trained decoder
Out: a smaller one; every plan with its score
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from continual_segment.learning.budget import Budget
from continual_segment.learning.judge import Judge
from continual_segment.learning.least_squares import FitConfig, fit_blocks
from continual_segment.learning.selection import PlanScore, Selection, loses_at_most, pareto_front
from continual_segment.learning.teach import Teacher, train_with_teacher
from continual_segment.learning.train_decoder import FrozenStep
from continual_segment.networks import Decoder, DecoderPlan
from continual_segment.networks.block_tree import BlockTree, Kernels
from continual_segment.training.train import Rows


@dataclass(frozen=True)
class ShrinkConfig:
    """How a decoder is made small. Lengths are shares of the step's first training."""

    tau: float = 0.5
    """Dice points on the validation scans that may be lost against the trained decoder."""
    budget: Budget | None = None
    """What all packs of the model may have together. With it, tau does not count."""
    select_by: Selection = "cost"
    """What the chosen plan has least of: params, or cost in multiply-adds."""
    fit: FitConfig = field(default_factory=FitConfig)
    beam: int = 64
    """So many beginnings of plans are followed from block to block; of up to 64 plans, none is left out."""
    ranking_windows: int = 40
    """At most so many windows of the validation scans judge the fitted plans."""
    validation_windows: int = 100
    """The same for trained ones."""
    recovery: float = 0.85
    """Share of the Dice that a fitted plan loses which training is expected to regain."""
    candidates: int = 2
    """At most so many plans are trained, the next one if the one before loses more than tau."""
    share: float = 0.8
    """How long each is trained."""
    rate: float = 0.5
    """Learning rate, as a share of the first training's."""
    teacher_weight: float = 5.0
    """How much the teacher's probabilities count beside the labels."""

    def __post_init__(self) -> None:
        if not self.tau >= 0 or self.teacher_weight < 0 or not 0 <= self.recovery < 1:
            raise ValueError("tau and teacher_weight are 0 or more, recovery is a share below 1.")
        if self.select_by not in ("params", "cost"):
            raise ValueError(f"select_by is params or cost, not {self.select_by!r}.")
        if min(self.beam, self.ranking_windows, self.validation_windows, self.candidates) < 1:
            raise ValueError("beam, ranking_windows, validation_windows and candidates are at least 1.")
        if min(self.share, self.rate) <= 0:
            raise ValueError("share and rate are above 0.")


@dataclass(frozen=True, eq=False)
class Shrunk:
    """What shrinking ends with."""

    decoder: Decoder
    rows: Rows
    """The log of its training; empty for the trained decoder itself."""
    card: dict[str, Any]
    """For the pack: all plans, what was trained, settings."""
    seconds: float


def shrink_decoder(step: FrozenStep, decoder: Decoder, config: ShrinkConfig) -> Shrunk:
    """The smallest decoder that loses at most tau, or the best within the budget."""
    shrinking = Shrinking(step, decoder, config)
    fitted, tried = shrinking.fitted_plans(), list[Candidate]()
    chosen = Candidate(decoder, shrinking.whole, [])
    for plan in plans_to_train(fitted, shrinking.whole, config):
        tried.append(shrinking.train(plan))
        if config.budget or loses_at_most(config.tau, tried[-1].score.dice, shrinking.whole.dice):
            chosen = tried[-1]
            break
    card = {
        "settings": asdict(config),
        "trained": asdict(shrinking.whole),
        "fitted": [asdict(score) for score in fitted],
        "tried": [asdict(candidate.score) for candidate in tried],
        "chosen": asdict(chosen.score),
    }
    return Shrunk(chosen.decoder, chosen.rows, card, shrinking.seconds)


def plans_to_train(fitted: Sequence[PlanScore], whole: PlanScore, config: ShrinkConfig) -> list[Kernels]:
    """What to train, in this order, until one is good enough.

    The scores of fitted plans include that of the trained decoder, on the same windows.
    """
    if config.budget:
        allowed = [score for score in fitted if config.budget.allows(score, whole)]
        best = max(allowed, key=lambda score: score.dice)
        return [best.plan] if best.plan != whole.plan else []  # which is trained already
    trained = next(score for score in fitted if score.plan == whole.plan)
    limit = config.tau / (1 - config.recovery)
    smaller = [score for score in fitted if score.size(config.select_by) < whole.size(config.select_by)]
    hopeful = [score for score in smaller if loses_at_most(limit, score.dice, trained.dice)]
    return [score.plan for score in pareto_front(hopeful, config.select_by)][: config.candidates]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A decoder that may be chosen."""

    decoder: Decoder
    score: PlanScore
    rows: Rows


class Shrinking:
    """One decoder on its way to a smaller one: the fitted blocks, what judges plans, and the time it took."""

    def __init__(self, step: FrozenStep, decoder: Decoder, config: ShrinkConfig) -> None:
        self.step, self.config = step, config
        self.tree = BlockTree(decoder).requires_grad_(False).to(step.settings.device)
        step.encoder.to(step.settings.device)
        self.ranking = Judge(step, config.ranking_windows)
        self.judge = Judge(step, config.validation_windows)
        self.own_seconds = 0.0
        self.whole = self.scored(self.tree.whole, self.judge.dice_of(decoder, "trained"))

    @property
    def seconds(self) -> float:
        """Of fits, trainings and measurements."""
        return self.own_seconds + self.ranking.seconds + self.judge.seconds

    def fitted_plans(self) -> list[PlanScore]:
        """Fit blocks from the deepest to the finest, and score the plans made of them."""
        beginnings: list[Kernels] = [()]
        for number in range(len(self.tree.whole)):
            started = time.monotonic()
            fit_blocks(self.step, self.tree, beginnings, self.config.fit)
            self.own_seconds += time.monotonic() - started
            beginnings = [(*begun, name) for begun in beginnings for name in self.tree.choices(number)]
            if len(beginnings) > self.config.beam:
                beginnings = self.most_promising(beginnings)
        return self.rank(beginnings, "fitted_plans")

    def most_promising(self, beginnings: list[Kernels]) -> list[Kernels]:
        """Those that lose least for their size, judged with the trained blocks behind them."""
        number = len(beginnings[0])
        scores = self.rank([(*begun, *self.tree.whole[number:]) for begun in beginnings], f"beam_{number}")
        smallest = min(
            scores, key=lambda score: score.size("cost")
        )  # which fits every budget that can be kept
        kept = [score for score in scores if score.plan == self.tree.whole or score is smallest]
        while len(kept) < self.config.beam:  # one front after the other
            kept += pareto_front([score for score in scores if score not in kept], "cost")
        return [score.plan[:number] for score in kept[: max(self.config.beam, 2)]]

    def rank(self, plans: Sequence[Kernels], file: str) -> list[PlanScore]:
        """Plans as they are fitted, with their Dice, the best first."""

        def compute() -> dict[str, float]:
            dice = self.ranking.dice_of_all(lambda features: self.tree.logits(features, set(plans)))
            return {"-".join(plan): found for plan, found in dice.items()}

        found = self.ranking.remember(file, self.tree.state_dict(), compute, *sorted(plans))
        scores = [self.scored(plan, found["-".join(plan)]) for plan in plans]
        return sorted(scores, key=lambda score: -score.dice)

    def train(self, plan: Kernels) -> Candidate:
        """Train a fitted plan with the trained decoder as teacher."""
        decoder, part = self.tree.assembled(plan), f"small_{'-'.join(plan)}"
        schedule = self.step.schedule(self.config.share, self.config.rate, seed=2)
        teacher = Teacher(self.tree.decoder, self.config.teacher_weight)
        rows = train_with_teacher(self.step, decoder, teacher, schedule, part)
        self.own_seconds += rows[-1]["seconds"]
        score = self.scored(plan, self.judge.dice_of(decoder, part))
        return Candidate(decoder, replace(score, fine_tuned=True), rows)

    def scored(self, plan: Kernels, dice: float) -> PlanScore:
        return PlanScore.of(DecoderPlan(plan), self.tree.decoder, self.step.source.patches.size, dice)
