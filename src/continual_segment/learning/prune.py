"""Choose which blocks of a decoder become projections.

After distillation every block has a student, and each way through the decoder is a smaller decoder. All are
scored on the validation scans, one is chosen (see selection.py) and fine-tuned. The paper's appendix has
another way, greedy: deepest block first, a student stays if it costs little, and the next learns behind it.

In:  a trained decoder
Out: a smaller one; every path with its score
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from continual_segment.learning.distil import DistilConfig, distil_block
from continual_segment.learning.judge import Judge
from continual_segment.learning.selection import (
    TAUS,
    PathScore,
    Selection,
    loses_at_most,
    pareto_front,
    select,
)
from continual_segment.learning.train_decoder import FrozenStep, StageResult
from continual_segment.model.fingerprint import fingerprint_tensors
from continual_segment.networks import Decoder, Mask, PrunableDecoder
from continual_segment.training.train import Rows

Method = Literal["enumerate", "greedy"]


@dataclass(frozen=True)
class PruneConfig:
    """Which blocks of a decoder may become projections. Lengths are shares of the step's first training."""

    method: Method = "enumerate"
    """enumerate: every path is scored; greedy: deepest first, a student stays if it costs less than tau."""
    select_by: Selection = "cost"
    """What the chosen path has least of: params (the paper's rule), cost in multiply-adds, or time."""
    tau: float = 1.0
    """Dice points on the validation scans that the chosen path may lose against the decoder it came from."""
    validation_windows: int = 100
    """At most so many windows of the validation scans judge a path."""
    candidates: int = 3
    """So many paths that are smaller than the chosen one, and the best of their size, are fine-tuned for a
    while and judged again; 0, as in the paper: none."""
    candidate_share: float = 0.3
    """How long each."""
    candidate_rate: float = 1.0
    """At which share of the first training's learning rate."""
    fine_tune_share: float = 0.3
    """How long the chosen one is fine-tuned in the end."""
    slow_rate: float = 0.1
    """Learning rate of that, as a share of the first training's."""
    timing_repeats: int = 5
    """Runs behind each path's seconds, which are measured with select_by "time" alone."""

    def __post_init__(self) -> None:
        for name, kind in (("method", Method), ("select_by", Selection)):
            if (value := getattr(self, name)) not in get_args(kind):
                raise ValueError(f"{name} is one of {', '.join(get_args(kind))}, not {value!r}.")
        if not self.tau >= 0:
            raise ValueError(f"tau is a number of Dice points, 0 or more, not {self.tau}.")
        if min(self.validation_windows, self.timing_repeats) < 1 or self.candidates < 0:
            raise ValueError("validation_windows and timing_repeats are at least 1, candidates at least 0.")
        if min(self.candidate_share, self.candidate_rate, self.fine_tune_share, self.slow_rate) <= 0:
            raise ValueError("candidate_share, candidate_rate, fine_tune_share and slow_rate are above 0.")


def prune_decoder(
    step: FrozenStep,
    decoder: Decoder,
    distil: DistilConfig,
    config: PruneConfig,
    trained: Decoder | None = None,
) -> StageResult:
    """Swap blocks of a decoder for projections as far as tau allows, and fine-tune what is left.

    `trained` is the decoder that tau is counted from, where a search has put another in its place; if every
    path loses more, it stays.
    """
    pruning = Pruning(step, PrunableDecoder(decoder), distil, config, trained)
    scores = pruning.greedy() if config.method == "greedy" else pruning.enumerate()
    reference = pruning.reference(scores)
    chosen = choose(scores, reference, config)
    paths = [*scores, *([reference] if trained else [])]
    finished = pruning.finish(chosen, reference)
    card = {
        "settings": asdict(config),
        "distil": asdict(distil),
        "paths": [asdict(score) for score in paths],
        "chosen": paths.index(chosen),
        "final_dice": finished.dice,
    }
    if config.method == "enumerate":
        by_tau = {tau: select(scores, reference, tau, config.select_by) for tau in TAUS}
        card["choices"] = {f"{tau:g}": paths.index(score) for tau, score in by_tau.items()}
    return StageResult(finished.decoder, finished.rows, card, pruning.seconds)


def choose(scores: list[PathScore], reference: PathScore, config: PruneConfig) -> PathScore:
    """The path to take. Greedy has chosen while it went: its last path that is good enough."""
    if config.method == "enumerate":
        return select(scores, reference, config.tau, config.select_by)
    good = [score for score in scores if loses_at_most(config.tau, score.dice, reference.dice)]
    return good[-1] if good else reference


@dataclass(frozen=True, eq=False)
class Finished:
    """The chosen decoder, fine-tuned."""

    decoder: Decoder
    rows: Rows
    dice: float


class Pruning:
    """One decoder on its way to a smaller one: its paths, what judges them, and the time it took."""

    def __init__(
        self,
        step: FrozenStep,
        paths: PrunableDecoder,
        distil: DistilConfig,
        config: PruneConfig,
        trained: Decoder | None = None,
    ) -> None:
        self.step, self.paths, self.distil, self.config = step, paths, distil, config
        self.trained = trained
        self.device = step.settings.device
        self.judge = Judge(step, config.validation_windows)
        self.fine_tuned: dict[Mask, Decoder] = {}
        self.training_seconds = 0.0
        paths.to(self.device)
        step.encoder.to(self.device)

    def reference(self, scores: Sequence[PathScore]) -> PathScore:
        """What tau is counted from: the trained decoder, or the first of the scores where that is pruned."""
        return self.score_of_trained or scores[0]

    @cached_property
    def score_of_trained(self) -> PathScore | None:
        if self.trained is None:
            return None
        decoder, mask = self.trained.to(self.device), self.paths.no_students
        seconds = self.measure({mask: decoder})[mask] if self.config.select_by == "time" else None
        dice = self.judge.dice_of(decoder, "trained")
        window = self.step.source.patches.size
        return PathScore.of(decoder.plan, decoder, window, dice, mask=mask, seconds=seconds)

    def finish(self, chosen: PathScore, reference: PathScore) -> Finished:
        """Fine-tune the chosen path; if that makes it worse than tau allows, it stays as it was chosen."""
        if chosen is self.score_of_trained:
            assert self.trained is not None
            return Finished(self.trained, [], chosen.dice)
        small, config = self.decoder(chosen.mask), self.config
        before = copy.deepcopy(small)
        part = f"fine_tuning_{as_text(chosen.mask)}"
        rows = self.fine_tune(small, config.fine_tune_share, config.slow_rate, part)
        dice = self.judge.dice_of(small, "final")
        if chosen is not reference and not loses_at_most(config.tau, dice, reference.dice):
            return Finished(before, rows, chosen.dice)
        return Finished(small, rows, dice)

    def enumerate(self) -> list[PathScore]:
        """Students for all blocks, then a score for each path."""
        mask = self.paths.no_students
        for number in self.paths.replaceable:
            self.training_seconds += distil_block(self.step, self.paths, number, mask, self.distil)
            mask = with_student(mask, number)
        return self.recover(self.score(self.paths.masks, "paths"))

    def greedy(self) -> list[PathScore]:
        """Deepest first, keep a student that costs less than tau against the path before it."""
        scores = self.score([self.paths.no_students], "paths")
        as_it_stands = replace(self.distil, chain="path")  # the only path there will be
        for number in self.paths.replaceable:
            before = scores[-1]
            self.training_seconds += distil_block(self.step, self.paths, number, before.mask, as_it_stands)
            (after,) = self.score([with_student(before.mask, number)], f"paths_{number}")
            if before.dice - after.dice < self.config.tau / 100:
                scores.append(
                    after
                )  # else the next path goes by the teacher, as if no student had been there
        return scores

    def recover(self, scores: list[PathScore]) -> list[PathScore]:
        """Fine-tune the most promising paths below the chosen size for a while, and score them again.

        A student has learned to answer as its teacher, not to segment, and a projection cannot answer as a
        large kernel does: what a path loses at first, all its blocks together may well regain.
        """
        by, config = self.config.select_by, self.config
        limit = select(scores, self.reference(scores), config.tau, by).size(by)
        smaller = pareto_front([score for score in scores if score.size(by) < limit], by)
        for score in sorted(smaller, key=lambda score: -score.dice)[: config.candidates]:
            decoder, part = self.decoder(score.mask), f"candidate_{as_text(score.mask)}"
            self.fine_tune(decoder, config.candidate_share, config.candidate_rate, part)
            self.fine_tuned[score.mask] = decoder
            again = replace(score, dice=self.judge.dice_of(decoder, part), fine_tuned=True)
            scores[scores.index(score)] = again
        return scores

    def decoder(self, mask: Mask) -> Decoder:
        """A path as a decoder, in the best state it is known in."""
        return self.fine_tuned.get(mask) or self.paths.decoder(mask).to(self.device)

    def fine_tune(self, decoder: Decoder, share: float, rate: float, part: str) -> Rows:
        start = fingerprint_tensors(decoder.state_dict())
        schedule = self.step.schedule(share, rate, seed=2)
        rows = self.step.train_decoder(decoder, schedule, part, start=start)
        self.training_seconds += rows[-1]["seconds"]
        return rows

    def score(self, masks: list[Mask], file: str) -> list[PathScore]:
        """Dice and sizes of paths."""

        def compute() -> dict[str, Any]:
            dice = self.judge.dice_of_all(lambda features: self.paths.answers(features, masks))
            decoders = {mask: self.decoder(mask) for mask in masks}
            seconds = self.measure(decoders) if timed else {}
            return {as_text(mask): [dice[mask], seconds.get(mask)] for mask in masks}

        timed = self.config.select_by == "time"
        found = self.judge.remember(file, self.paths.state_dict(), compute, timed)
        return [self.scored(mask, *found[as_text(mask)]) for mask in masks]

    def scored(self, mask: Mask, dice: float, seconds: float | None) -> PathScore:
        plan, window = self.paths.plan_of(mask), self.step.source.patches.size
        return PathScore.of(plan, self.paths.whole, window, dice, mask=mask, seconds=seconds)

    @property
    def seconds(self) -> float:
        """Of all trainings and measurements."""
        return self.training_seconds + self.judge.seconds

    @torch.no_grad()
    def measure(self, decoders: Mapping[Mask, Decoder]) -> dict[Mask, float]:
        """Median seconds of each path on one window; they take turns, so that a busy moment hits all."""
        images, _ = self.judge.windows[0]
        features = self.step.features(images.to(self.device))
        times: dict[Mask, list[float]] = {mask: [] for mask in decoders}
        for repeat in range(self.config.timing_repeats + 1):
            for mask, decoder in decoders.items():
                seconds = seconds_of(decoder, features, self.device)
                if repeat:  # the first one warms up
                    times[mask].append(seconds)
        return {mask: statistics.median(taken) for mask, taken in times.items()}


def seconds_of(decoder: Decoder, features: list[Tensor], device: str) -> float:
    """How long a decoder takes, until its answer is there."""
    wait = torch.accelerator.synchronize if torch.device(device).type != "cpu" else lambda: None
    wait()
    started = time.perf_counter()
    decoder(features)
    wait()
    return time.perf_counter() - started


def with_student(mask: Mask, number: int) -> Mask:
    return (*mask[:number], True, *mask[number + 1 :])


def as_text(mask: Mask) -> str:
    """01001: a digit per block, deepest first; 1 for a student."""
    return "".join("1" if swapped else "0" for swapped in mask)
