"""Choose which blocks of a decoder become projections.

After distillation every block has a student, and each way through the decoder is a smaller decoder. All are
scored on the validation scans, one is chosen (see selection.py) and fine-tuned. The paper's appendix has
another way, greedy: deepest block first, a student stays if it costs little, and the next learns behind it.

In:  a trained decoder
Out: a smaller one; every path with its score
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from continual_segment.files.atomic import write_json
from continual_segment.learning.distil import DistilConfig, distil_block
from continual_segment.learning.selection import TAUS, PathScore, Selection, pareto_front, select
from continual_segment.learning.train_decoder import FrozenStep
from continual_segment.learning.validation import CoveringWindows, dice_of_paths
from continual_segment.model.fingerprint import fingerprint_data, fingerprint_tensors
from continual_segment.networks import Decoder, Mask, PrunableDecoder, multiply_adds, paper_count, true_count
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


@dataclass(frozen=True, eq=False)
class Pruned:
    """What pruning ends with."""

    decoder: Decoder
    rows: Rows
    """The log of its fine-tuning."""
    card: dict[str, Any]
    """For the pack: all paths, the choices, settings."""
    seconds: float


def prune_decoder(step: FrozenStep, decoder: Decoder, distil: DistilConfig, config: PruneConfig) -> Pruned:
    """Swap blocks of a decoder for projections as far as tau allows, and fine-tune what is left."""
    pruning = Pruning(step, PrunableDecoder(decoder), distil, config)
    scores = pruning.greedy() if config.method == "greedy" else pruning.enumerate()
    # greedy has chosen while it went: its last path is the answer
    chosen = scores[-1] if config.method == "greedy" else select(scores, config.tau, config.select_by)
    small = pruning.decoder(chosen.mask)
    rows = pruning.fine_tune(small, config.fine_tune_share, config.slow_rate, "fine_tuning")
    card = {
        "settings": asdict(config),
        "distil": asdict(distil),
        "paths": [asdict(score) for score in scores],
        "chosen": scores.index(chosen),
        "final_dice": pruning.dice_of(small, "final"),
    }
    if config.method == "enumerate":
        card["choices"] = {f"{tau:g}": scores.index(select(scores, tau, config.select_by)) for tau in TAUS}
    return Pruned(small, rows, card, pruning.seconds)


class Pruning:
    """One decoder on its way to a smaller one: its paths, what judges them, and the time it took."""

    def __init__(
        self, step: FrozenStep, paths: PrunableDecoder, distil: DistilConfig, config: PruneConfig
    ) -> None:
        self.step, self.paths, self.distil, self.config = step, paths, distil, config
        self.device = step.settings.device
        self.windows = CoveringWindows(
            step.source.dataset, step.source.patches.size, config.validation_windows
        )
        self.fine_tuned: dict[Mask, Decoder] = {}
        self.seconds = 0.0
        paths.to(self.device)
        step.encoder.to(self.device)

    def enumerate(self) -> list[PathScore]:
        """Students for all blocks, then a score for each path."""
        mask = self.paths.no_students
        for number in self.paths.replaceable:
            self.seconds += distil_block(self.step, self.paths, number, mask, self.distil)
            mask = with_student(mask, number)
        return self.recover(self.score(self.paths.masks, "paths"))

    def greedy(self) -> list[PathScore]:
        """Deepest first, keep a student that costs less than tau against the path before it."""
        scores = self.score([self.paths.no_students], "paths")
        as_it_stands = replace(self.distil, chain="path")  # the only path there will be
        for number in self.paths.replaceable:
            before = scores[-1]
            self.seconds += distil_block(self.step, self.paths, number, before.mask, as_it_stands)
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
        limit = select(scores, config.tau, by).size(by)
        smaller = pareto_front([score for score in scores if score.size(by) < limit], by)
        for score in sorted(smaller, key=lambda score: -score.dice)[: config.candidates]:
            decoder, part = self.decoder(score.mask), f"candidate_{as_text(score.mask)}"
            self.fine_tune(decoder, config.candidate_share, config.candidate_rate, part)
            self.fine_tuned[score.mask] = decoder
            again = replace(score, dice=self.dice_of(decoder, part), fine_tuned=True)
            scores[scores.index(score)] = again
        return scores

    def decoder(self, mask: Mask) -> Decoder:
        """A path as a decoder, in the best state it is known in."""
        return self.fine_tuned.get(mask) or self.paths.decoder(mask).to(self.device)

    def fine_tune(self, decoder: Decoder, share: float, rate: float, part: str) -> Rows:
        start = fingerprint_tensors(decoder.state_dict())
        schedule = self.step.schedule(share, rate, seed=2)
        rows = self.step.train_decoder(decoder, schedule, part, start=start)
        self.seconds += rows[-1]["seconds"]
        return rows

    def score(self, masks: list[Mask], file: str) -> list[PathScore]:
        """Dice and sizes of paths."""

        def answers(images: Tensor) -> Any:
            return self.paths.answers(self.step.features(images), masks)

        def compute() -> dict[str, Any]:
            dice = dice_of_paths(answers, self.windows, self.paths.organs, self.device, self.title)
            seconds = self.measure(masks) if self.config.select_by == "time" else {}
            return {as_text(mask): [dice[mask], seconds.get(mask)] for mask in masks}

        found = self.remember(file, self.paths.state_dict(), compute)
        return [self.scored(mask, *found[as_text(mask)]) for mask in masks]

    def scored(self, mask: Mask, dice: float, seconds: float | None) -> PathScore:
        plan, network, organs = self.paths.plan_of(mask), self.paths.network, self.paths.organs
        with torch.device("meta"):  # counted without being made
            decoder = Decoder(network, plan, organs)
        return PathScore(
            mask=mask,
            plan=plan.kernels,
            dice=dice,
            paper_parameters=paper_count(plan, network),
            true_parameters=true_count(decoder),
            multiply_adds=multiply_adds(plan, network, self.step.source.patches.size, organs),
            seconds=seconds,
        )

    def dice_of(self, decoder: Decoder, file: str) -> float:
        """Of one decoder, on the windows that judge paths."""
        mask = self.paths.no_students  # any name would do

        def compute() -> float:
            return dice_of_paths(
                lambda images: [(mask, decoder(self.step.features(images)))],
                self.windows,
                decoder.organs,
                self.device,
                self.title,
            )[mask]

        return self.remember(file, decoder.state_dict(), compute)

    @property
    def title(self) -> str:
        return f"judging {self.step.name}"

    def remember(self, file: str, weights: Mapping[str, Tensor], compute: Callable[[], Any]) -> Any:
        """What was computed for these weights before, or now; a resumed run must not measure again."""
        path = self.step.run / f"{file}.json"
        settings = [self.config.validation_windows, self.config.select_by == "time"]
        signature = fingerprint_data([fingerprint_tensors(weights), settings])
        kept = json.loads(path.read_text()) if path.exists() else {}
        if kept.get("signature") != signature:
            started = time.monotonic()
            result = compute()
            kept = {"signature": signature, "seconds": time.monotonic() - started, "result": result}
            write_json(path, kept)
        self.seconds += kept["seconds"]
        return kept["result"]

    @torch.no_grad()
    def measure(self, masks: list[Mask]) -> dict[Mask, float]:
        """Median seconds of each path on one window; they take turns, so that a busy moment hits all."""
        images, _ = self.windows[0]
        features = self.step.features(images.to(self.device))
        decoders = {mask: self.decoder(mask) for mask in masks}
        times: dict[Mask, list[float]] = {mask: [] for mask in masks}
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
