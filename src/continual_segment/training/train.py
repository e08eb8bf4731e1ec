"""The one training loop.

Every method describes its run: an objective, numbered batches, settings. Batch i is a pure function of the
seed and i, so a run that resumes from a checkpoint reads the batches of an uninterrupted one, and on a CPU
ends with the same weights bit by bit.
"""

from __future__ import annotations

import logging
import math
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from continual_segment.data.patches import NumberedBatches
from continual_segment.errors import ContinualSegmentError
from continual_segment.progress import progress_bar
from continual_segment.training import distributed
from continual_segment.training.checkpoint import load_checkpoint, save_checkpoint
from continual_segment.training.history import write_history
from continual_segment.training.interrupt import StopRequest
from continual_segment.training.train_config import TrainConfig
from continual_segment.training.update import Update

log = logging.getLogger(__name__)

Batches = Dataset[tuple[Tensor, Tensor]]
Rows = list[dict[str, float]]


def never(rows: Rows) -> bool:
    """Train all iterations."""
    return False


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """What the loop trains, on what, how, and where it keeps its state."""

    objective: nn.Module
    """Images and labels in, loss out; its parameters that require a gradient are trained."""
    batches: Batches
    """Item i is the whole batch of iteration i."""
    config: TrainConfig
    folder: Path
    """For checkpoint, log and curves."""
    signature: str
    """Of all that decides the weights; a checkpoint with another signature is refused."""
    title: str = "training"
    """Of the progress bar."""
    validate: Callable[[], float] | None = None
    """Called at every report."""
    measure: str = "validation_dice"
    """Column of the log for what `validate` returns."""
    make_update: Callable[[nn.Module, TrainConfig], Update] = Update
    enough: Callable[[Rows], bool] = never
    """Called at every report; the run ends early where it returns True."""


def train(run: TrainingRun) -> Rows:
    """Optimise the objective's parameters; return one row per report.

    Resumes from `run.folder`/checkpoint.pt where there is one. Ctrl-C writes a checkpoint before it stops.
    Several processes end with the same rows and weights; the first one writes.
    """
    distributed.check_device(run.config.device)
    state = RunState(run)
    if not run.enough(state.rows):
        update_until_done(state)
    distributed.share_weights(run.objective)  # buffers: those of the others are of their own batches
    return state.rows


def update_until_done(state: RunState) -> None:
    """The iterations that are left, with reports and checkpoints."""
    run, total = state.run, state.run.config.iterations
    bar = progress_bar(total=total, initial=state.done, desc=run.title, unit="it", dynamic_ncols=True)
    with StopRequest() as stop, bar:
        for images, labels in numbered_batches(batches_of_process(run.batches), state.done, run.config):
            stopping = state.update_on(images, labels, stop)
            bar.update()
            reporting = state.done % run.config.report_every == 0 or state.done == total
            if reporting:
                bar.set_postfix_str(in_short(state.report(), run.measure))
            if distributed.world_size() == 1:  # several processes agree on a stop after an update alone
                stopping = stop.requested
            if reporting or stopping:
                state.save()
            if reporting and run.enough(state.rows):
                break
            if stopping and state.done < total:
                raise KeyboardInterrupt(
                    f"stopped after iteration {state.done}; run the same command again to resume"
                )


def batches_of_process(batches: Batches) -> Batches:
    """Those that this process learns from: where there are several, each has its own."""
    if distributed.world_size() == 1:
        return batches
    assert isinstance(batches, NumberedBatches)
    return batches.for_rank(distributed.rank())


class RunState:
    """Where a run is: its update, iterations done, rows and time, as in its checkpoint."""

    def __init__(self, run: TrainingRun) -> None:
        self.run, self.checkpoint = run, run.folder / "checkpoint.pt"
        if distributed.is_main():
            run.folder.mkdir(parents=True, exist_ok=True)
        self.update = run.make_update(run.objective, run.config)
        self.done, self.rows, self.losses = 0, Rows(), list[float]()
        spent = self._resume()
        self.started = time.monotonic() - spent

    def _resume(self) -> float:
        """Take over a checkpoint, if there is one; return the seconds spent before it."""
        state = load_checkpoint(self.checkpoint, self.run.signature)
        check_same_storage(self.checkpoint, state["iteration"] if state else 0)
        if state is None:
            return 0.0
        self.update.load_state_dict(state["update"])
        self.done, self.rows = state["iteration"], state["rows"]
        if self.done < self.run.config.iterations:
            log.info(
                "%s resumes after iteration %d of %d", self.run.title, self.done, self.run.config.iterations
            )
        return state["seconds"]

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def update_on(self, images: Tensor, labels: Tensor, stop: StopRequest) -> bool:
        """The next iteration; whether this or another process is to stop after it."""
        with distributed.lost_processes_reported():
            loss = self.update(images, labels, iteration=self.done)
        loss, stopping = distributed.agree(loss, stop.requested)
        self.losses.append(loss)
        self.done += 1
        return stopping

    def report(self) -> dict[str, float]:
        """A new row of the log."""
        refuse_divergence(self.losses[-1], self.done, self.run.folder)
        row = distributed.on_main(self._row)
        self.rows.append(row)
        self.losses = []
        if distributed.is_main():
            write_history(self.run.folder, self.rows)
        return row

    def _row(self) -> dict[str, float]:
        return {
            "iteration": self.done,
            "loss": sum(self.losses) / len(self.losses),
            self.run.measure: self.run.validate() if self.run.validate else float("nan"),
            "learning_rate": self.run.config.learning_rate_at(self.done - 1),
            "seconds": round(self.seconds, 2),
        }

    def save(self) -> None:
        """Replace the checkpoint."""
        if not distributed.is_main():
            return
        save_checkpoint(
            self.checkpoint,
            {
                "signature": self.run.signature,
                "processes": distributed.world_size(),
                "iteration": self.done,
                "rows": self.rows,
                "seconds": self.seconds,
                "update": self.update.state_dict(),
            },
        )


def check_same_storage(checkpoint: Path, iteration: int) -> None:
    """Raise where this process has found another checkpoint than the first one."""
    if (first := distributed.on_main(lambda: iteration)) != iteration:
        raise ContinualSegmentError(
            f"{checkpoint}: process {distributed.rank()} resumes after iteration {iteration}, the first one "
            f"after {first}. The folders of data, model and run must be on storage that all machines share."
        )


def in_short(row: dict[str, float], measure: str) -> str:
    """A row for the progress bar; what was not measured is left out."""
    seen = {"loss": row["loss"], measure.removeprefix("validation_"): row[measure]}
    return ", ".join(f"{name}={value:.3f}" for name, value in seen.items() if math.isfinite(value))


def refuse_divergence(loss: float, iteration: int, folder: Path) -> None:
    """Raise where weights are no numbers any more, before they replace the checkpoint."""
    if not math.isfinite(loss):
        raise ContinualSegmentError(
            f"{folder}: the loss is {loss} after {iteration} iterations: it has diverged. "
            "Delete the folder and start anew with a lower learning_rate, or in float32."
        )


def ignore_stops(worker: int) -> None:
    """A stop is often sent to all processes at once; the loop needs its batch until it has ended."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def numbered_batches(batches: Batches, first: int, config: TrainConfig) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches `first` to the last, in order whatever the number of workers."""
    return iter(
        DataLoader(
            batches,
            batch_size=None,  # an item is a whole batch
            sampler=range(first, config.iterations),
            num_workers=config.workers,
            worker_init_fn=ignore_stops,
            pin_memory=config.device.startswith("cuda"),
            generator=torch.Generator(),  # the loader must not draw from, and so move, the global one
        )
    )
