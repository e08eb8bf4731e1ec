"""Make a trained decoder small: fit smaller blocks to it, choose a plan, train that with a teacher.

Every block may keep its form or take a smaller one, which is fitted in closed form (low_rank.py,
least_squares.py). So each combination is a working decoder before any update. Every smaller block is scored
on validation windows with the trained blocks around it; the products of what they keep choose a few
combinations, which are fitted and scored themselves. What a plan loses then predicts what it loses in the
end: training regains about the same share of it. The smallest plan that is expected to lose at most tau Dice
points is trained, with the trained decoder as teacher; if it loses more after all, the next larger one is. In
the end the trained decoder itself is left: at most tau points are lost on validation. With a budget of
parameters and multiply-adds, the best plan within it is taken instead.

In:  a trained decoder
Out: a smaller one; every plan with its score
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import get_args

from continual_segment.learning.budget import Budget
from continual_segment.learning.expected_plans import expected_plans
from continual_segment.learning.judge import Judge
from continual_segment.learning.least_squares import FitConfig, find_directions, fit_blocks
from continual_segment.learning.low_rank import DecoderDirections
from continual_segment.learning.selection import PlanScore, Selection, loses_at_most, pareto_front
from continual_segment.learning.teach import Teacher, train_with_teacher
from continual_segment.learning.train_decoder import FrozenStep, StageResult
from continual_segment.networks import Decoder, DecoderPlan, NetworkConfig
from continual_segment.networks.block_form import BlockForm, KernelName
from continual_segment.networks.block_tree import BlockTree, Kernels
from continual_segment.training.train import Rows

CAUTION = 3.0
"""Where a candidate loses too much, the next one may lose so many times less by its fit."""


FEWEST_CHANNELS = 2
"""Of a block: with one it can only pass on a single map, and twice no training regained what that lost."""


@dataclass(frozen=True)
class ShrinkConfig:
    """How a decoder is made small. Lengths are shares of the step's first training."""

    tau: float = 0.5
    """Dice points on the validation scans that may be lost against the trained decoder."""
    budget: Budget | None = None
    """What all packs of the model may have together. With it, tau does not count."""
    select_by: Selection = "cost"
    """What the chosen plan has least of: params, or cost in multiply-adds."""
    kernels: tuple[KernelName, ...] = ("nnunet", "2d")
    """What a smaller block may have; nnunet is the kernel of the trained one."""
    widths: tuple[float, ...] = (1.0, 0.75, 0.5, 0.375, 0.25, 0.125)
    """Channels that its convolutions may be reduced to, as shares of what the block writes.

    Its first one reads twice as many, so 1 is smaller than the block is. It may also be left as it is.
    """
    shortlist: int = 6
    """So many combinations of smaller blocks are fitted and judged."""
    fit: FitConfig = field(default_factory=FitConfig)
    ranking_windows: int = 20
    """At most so many windows of the validation scans judge the fitted plans."""
    validation_windows: int = 100
    """The same for trained ones."""
    recovery: float = 0.9
    """Share of the Dice that a fitted plan loses which training is expected to regain."""
    candidates: int = 2
    """At most so many plans are trained, the next one if the one before loses more than tau."""
    share: float = 1.0
    """How long each is trained."""
    rate: float = 2.0
    """Learning rate, as a share of the first training's."""
    teacher_weight: float = 5.0
    """How much the teacher's probabilities count beside the labels."""

    def __post_init__(self) -> None:
        if not self.tau >= 0 or self.teacher_weight < 0 or not 0 <= self.recovery < 1:
            raise ValueError("tau and teacher_weight are 0 or more, recovery is a share below 1.")
        if self.select_by not in ("params", "cost"):
            raise ValueError(f"select_by is params or cost, not {self.select_by!r}.")
        counts = (self.shortlist, self.ranking_windows, self.validation_windows, self.candidates)
        if min(counts) < 1:
            raise ValueError("shortlist, ranking_windows, validation_windows and candidates are at least 1.")
        if unknown := set(self.kernels) - set(get_args(KernelName)):
            raise ValueError(f"kernels are some of {', '.join(get_args(KernelName))}, not {unknown.pop()!r}.")
        if not self.kernels or not self.widths or not all(0 < share <= 1 for share in self.widths):
            raise ValueError("There is a kernel and a width, and widths are above 0 and at most 1.")
        if min(self.share, self.rate) <= 0:
            raise ValueError("share and rate are above 0.")

    def forms(self, network: NetworkConfig, number: int) -> list[BlockForm]:
        """What a block may become, if that is smaller than it is: of all channels, or reduced to some."""
        features = network.features[-2 - number]
        widths = dict.fromkeys(max(FEWEST_CHANNELS, round(share * features)) for share in self.widths)
        return [BlockForm(kernel, width) for kernel in self.kernels for width in (None, *widths)]

    def smallest_plan(self, network: NetworkConfig) -> DecoderPlan:
        """What needs the least multiply-adds."""
        numbers = range(len(network.features) - 1)
        smallest = [min(self.forms(network, n), key=partial(block_weights, network, n)) for n in numbers]
        return DecoderPlan(tuple(form.name for form in smallest))


def block_weights(network: NetworkConfig, number: int, form: BlockForm) -> int:
    return sum(conv.weights for conv in form.convs(network, number))


def shrink_decoder(step: FrozenStep, decoder: Decoder, config: ShrinkConfig) -> StageResult:
    """The smallest decoder that loses at most tau, or the best within the budget."""
    return Shrinking(step, decoder, config).finish(config)


def plans_to_train(fitted: Sequence[PlanScore], whole: PlanScore, config: ShrinkConfig) -> list[Kernels]:
    """What to train, in this order, until one is good enough."""
    if config.budget:
        best = best_first([score for score in fitted if config.budget.allows(score, whole)])[0]
        return [best.plan] if best.plan != whole.plan else []  # which is trained already
    smallest = [scores[0].plan for scores in hopeful(fitted, whole, config) if scores]
    return list(dict.fromkeys(smallest))


def shortlist(expected: Sequence[PlanScore], whole: PlanScore, config: ShrinkConfig) -> list[Kernels]:
    """The combinations that are worth a fit, by what they are expected to lose."""
    if config.budget:
        allowed = [score for score in expected if config.budget.allows(score, whole)]
        return [score.plan for score in best_first(allowed)[: config.shortlist]]
    each = -(-config.shortlist // config.candidates)
    found = [score.plan for scores in hopeful(expected, whole, config) for score in scores[:each]]
    return list(dict.fromkeys(found))


def hopeful(scores: Sequence[PlanScore], whole: PlanScore, config: ShrinkConfig) -> list[list[PlanScore]]:
    """For every candidate the decoders that may lose at most tau once they are trained, smallest first.

    The first one is chosen by the recovery that is expected, every later one with more caution. The scores
    include that of the trained decoder, on the same windows.
    """
    trained = next(score for score in scores if score.plan == whole.plan)
    smaller = [score for score in scores if score.size(config.select_by) < whole.size(config.select_by)]
    limits = [config.tau / (1 - config.recovery) / CAUTION**number for number in range(config.candidates)]
    within = [[s for s in smaller if loses_at_most(limit, s.dice, trained.dice)] for limit in limits]
    return [pareto_front(good, config.select_by) for good in within]


def best_first(scores: Sequence[PlanScore]) -> list[PlanScore]:
    return sorted(scores, key=lambda score: -score.dice)


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

    def finish(self, config: ShrinkConfig) -> StageResult:
        """Choose a plan and train it; `config` may differ from the first one in what is allowed."""
        fitted, tried = self.fitted_plans(config), list[Candidate]()
        chosen = Candidate(self.tree.decoder, self.whole, [])
        for plan in plans_to_train(fitted, self.whole, config):
            tried.append(self.train(plan))
            if config.budget or loses_at_most(config.tau, tried[-1].score.dice, self.whole.dice):
                chosen = tried[-1]
                break
        card = {
            "settings": asdict(config),
            "trained": asdict(self.whole),
            "fitted": [asdict(score) for score in fitted],
            "tried": [asdict(candidate.score) for candidate in tried],
            "chosen": asdict(chosen.score),
        }
        return StageResult(chosen.decoder, chosen.rows, card, self.seconds)

    def fitted_plans(self, config: ShrinkConfig) -> list[PlanScore]:
        """Plans with one smaller block each, and the most promising combinations of those, with scores."""
        plans = shortlist(self.expected, self.whole, config)
        self.fit({plan[:length] for plan in plans for length in range(1, len(plan) + 1)})
        known = {score.plan for score in self.blocks_alone}
        found = self.rank([plan for plan in plans if plan not in known], "shortlist")
        return best_first([*self.blocks_alone, *found])

    @cached_property
    def expected(self) -> list[PlanScore]:
        """All combinations of smaller blocks, with what they are expected to lose."""
        whole, *single = self.blocks_alone
        return expected_plans(single, whole)

    @cached_property
    def blocks_alone(self) -> list[PlanScore]:
        """Every smaller block with the trained ones around it; the trained decoder itself is the first."""
        whole, network = self.tree.whole, self.step.encoder.config
        blocks = [
            (*whole[:number], name)
            for number in range(len(whole))
            for name in self.tree.smaller_forms(number, self.config.forms(network, number))
        ]
        self.fit(blocks)
        return self.rank([whole, *(block + whole[len(block) :] for block in blocks)], "blocks_alone")

    def fit(self, blocks: Collection[Kernels]) -> None:
        """Fit the last blocks of these beginnings of plans, where the tree lacks them, deepest first."""
        started = time.monotonic()
        for length in range(1, len(self.tree.whole) + 1):
            missing = sorted(block for block in blocks if len(block) == length and not self.tree.has(block))
            fit_blocks(self.step, self.tree, missing, self.directions, self.config.fit)
        self.own_seconds += time.monotonic() - started

    @cached_property
    def directions(self) -> DecoderDirections:
        return find_directions(self.step, self.tree.decoder, self.config.fit)

    def rank(self, plans: Sequence[Kernels], file: str) -> list[PlanScore]:
        """Plans as they are fitted, with their Dice."""
        if not plans:
            return []

        def compute() -> dict[str, float]:
            dice = self.ranking.dice_of_all(lambda features: self.tree.logits(features, set(plans)))
            return {"-".join(plan): found for plan, found in dice.items()}

        found = self.ranking.remember(file, self.tree.state_dict(), compute, *sorted(plans))
        return [self.scored(plan, found["-".join(plan)]) for plan in plans]

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
