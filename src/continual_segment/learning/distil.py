"""Train a projection to replace a decoder block.

Deepest block first, each block is the teacher of a projection: both read the same features, those that the
blocks before give on a path, and the projection learns to reproduce its teacher's output. No gradient reaches
teachers or features. Then finer blocks and heads are adapted to it, slowly, in a copy of the decoder.

In:  a trained decoder as PrunableDecoder
Out: the same with one student more
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from continual_segment.learning.train_decoder import FrozenStep
from continual_segment.model.fingerprint import fingerprint_tensors
from continual_segment.networks import Mask, PrunableDecoder
from continual_segment.training import Objective, TrainConfig, TrainingRun, train
from continual_segment.training.train import Rows

Chain = Literal["path", "any"]
REPORTS = 20  # of a student's training: one per 5 % of it


@dataclass(frozen=True)
class DistilConfig:
    """How projections learn from blocks. Lengths are shares of the step's first training."""

    students_share: float = 0.8
    """Training of all students together; each gets the same part of it."""
    saturation: float = 0.01
    """A student is done when its least error fell by less than this share of it for a while; 0: never."""
    saturation_reports: int = 3
    """That while, in reports; there is one for every 5 % of a student's time. The paper's would be 1, but
    a rate that is still high lets the error waver."""
    adapt_share: float = 0.2
    """Time for finer blocks and heads to get used to a student, as a share of the student's; 0 for none."""
    slow_rate: float = 0.1
    """Learning rate of that, as a share of the first training's."""
    chain: Chain = "any"
    """What a student's features come through: the students before it, as in the paper ("path"), or, anew
    for each batch, any of the paths that may be chosen in the end ("any")."""

    def __post_init__(self) -> None:
        if min(self.students_share, self.slow_rate) <= 0 or min(self.saturation, self.adapt_share) < 0:
            raise ValueError(
                "students_share and slow_rate are above 0, saturation and adapt_share not below it."
            )
        if self.saturation_reports < 1:
            raise ValueError(f"saturation_reports is at least 1, not {self.saturation_reports}.")
        if self.chain not in get_args(Chain):
            raise ValueError(f"chain is one of {', '.join(get_args(Chain))}, not {self.chain!r}.")


class Counter(nn.Module):
    """Counts the batches of a run; as a buffer, the count resumes with the run."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def next(self) -> int:
        self.count += 1
        return int(self.count) - 1


def distil_block(
    step: FrozenStep, paths: PrunableDecoder, number: int, mask: Mask, config: DistilConfig
) -> float:
    """Give a block a student and a decoder that is adapted to it; return the seconds it took.

    `mask` marks the blocks before it that are students.
    """
    rows = train_student(step, paths, number, mask, config)
    adapted = adapt_to_student(step, paths, number, mask, config) if config.adapt_share else []
    return sum(part[-1]["seconds"] for part in (rows, adapted) if part)


def train_student(
    step: FrozenStep, paths: PrunableDecoder, number: int, mask: Mask, config: DistilConfig
) -> Rows:
    """Train the projection that may replace a block."""
    schedule = step.schedule(config.students_share / len(paths.replaceable), seed=10 + number)
    schedule = replace(schedule, report_every=max(1, schedule.iterations // REPORTS))
    torch.manual_seed(schedule.seed)
    student, counter = paths.add_student(number).to(schedule.device), Counter()
    paths.requires_grad_(False)
    student.requires_grad_(True)

    def pair(images: Tensor, path: Mask) -> tuple[Tensor, Tensor]:
        """The student's answer and its teacher's."""
        with torch.no_grad():  # neither teacher nor features learn
            read = paths.input_of(number, step.features(images), path)
            target = paths.used_to(path, number).stages[number](*read)
        return student(*read), target

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        path = chain(paths, number, mask, config, counter.next(), schedule.seed)
        answer, target = pair(images, path)
        return functional.mse_loss(answer.float(), target.float())

    held_out = step.source.validation(replace(schedule, validation_batches=2))

    @torch.no_grad()
    def fit() -> float:
        """Share of the teacher's variance that the student explains, on patches that stay the same."""
        both = [pair(held_out[number][0].to(schedule.device), mask) for number in range(2)]
        error = sum(functional.mse_loss(answer, target) for answer, target in both)
        return float(1 - error / sum(target.var() for _, target in both))

    return train(
        TrainingRun(
            Objective(loss_of, student=student, counter=counter).to(schedule.device),
            step.source.training(schedule),
            schedule,
            step.run / f"student_{number}",
            distil_signature(step, paths, number, mask, config, schedule),
            title=f"distilling {step.name}, block {number + 1}",
            validate=fit,
            measure="validation_fit",
            enough=saturated(config.saturation, config.saturation_reports),
        )
    )


def saturated(least_improvement: float, reports: int) -> Callable[[Rows], bool]:
    """Has the least error fallen by less than this share in the last reports?"""

    def enough(rows: Rows) -> bool:
        errors = [1 - row["validation_fit"] for row in rows]
        if not least_improvement or len(errors) <= reports:
            return False
        before, now = min(errors[:-reports]), min(errors[-reports:])
        return before - now < least_improvement * before

    return enough


def chain(
    paths: PrunableDecoder, number: int, mask: Mask, config: DistilConfig, iteration: int, seed: int
) -> Mask:
    """The blocks before, in one iteration: the current path, or one of all that may be chosen later."""
    if config.chain == "path":
        return mask
    draw = torch.Generator().manual_seed(seed * 1_000_003 + iteration)
    coins = torch.rand(len(mask), generator=draw) < 0.5
    return tuple(swapped and bool(coin) for swapped, coin in zip(mask, coins, strict=True))


def adapt_to_student(
    step: FrozenStep, paths: PrunableDecoder, number: int, mask: Mask, config: DistilConfig
) -> Rows:
    """Let the finer blocks and the heads get used to a student, in a copy of the decoder."""
    share = config.adapt_share * config.students_share / len(paths.replaceable)
    schedule = step.schedule(share, rate=config.slow_rate, seed=20 + number)
    copy, counter = paths.add_copy(number, mask).to(schedule.device), Counter()
    paths.requires_grad_(False)
    for part in (copy.transpconvs[number + 1 :], copy.stages[number + 1 :], copy.seg_layers[number:]):
        part.requires_grad_(True)
    loss = schedule.loss.build()

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        before = chain(paths, number, mask, config, counter.next(), schedule.seed)
        path = (*before[:number], True, *mask[number + 1 :])
        return loss(paths.forward_supervised(step.features(images), path), labels)

    rows = train(
        TrainingRun(
            Objective(loss_of, decoder=copy, counter=counter).to(schedule.device),
            step.source.training(schedule),
            schedule,
            step.run / f"student_{number}" / "adapting",
            distil_signature(step, paths, number, mask, config, schedule),
            title=f"adapting {step.name} to block {number + 1}",
        )
    )
    paths.requires_grad_(False)
    return rows


def distil_signature(
    step: FrozenStep,
    paths: PrunableDecoder,
    number: int,
    mask: Mask,
    config: DistilConfig,
    schedule: TrainConfig,
) -> str:
    weights = fingerprint_tensors(paths.state_dict())
    return step.signature(schedule, distil=asdict(config), block=number, mask=mask, paths=weights)
