"""The one training loop.

Every method hands it a module to optimise, a loss of one batch and numbered batches. Batch i is a pure
function of the seed and i, so a run that goes on from a checkpoint sees what an unstopped one would have
seen, and on a CPU ends with the same weights to the bit.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from continual_segment.errors import ContinualSegmentError
from continual_segment.progress import progress_bar
from continual_segment.training.checkpoint import load_checkpoint, save_checkpoint
from continual_segment.training.history import write_history
from continual_segment.training.interrupt import StopRequest
from continual_segment.training.loss import DiceClasses
from continual_segment.training.muon import Muon

log = logging.getLogger(__name__)

Optimiser = Literal["sgd", "adamw", "muon"]
Precision = Literal["float32", "bfloat16", "float16"]
LossOfBatch = Callable[[Tensor, Tensor], Tensor]
Rows = list[dict[str, float]]


@dataclass(frozen=True)
class TrainConfig:
    """How long and how fast one network learns."""

    iterations: int
    """Updates in all."""
    report_every: int = 250
    """Iterations between two reports, validations and checkpoints: nnU-Net's epoch."""
    optimiser: Optimiser = "sgd"
    """sgd: Nesterov momentum 0.99, as in the paper; adamw and still more muon learn faster in few updates."""
    learning_rate: float = 0.01
    """At the first iteration; it falls as (1 - share done) ** 0.9."""
    weight_decay: float = 3e-5
    """Of all weights; as in nnU-Net."""
    dice_over: DiceClasses = "all"
    """Classes in the Dice of a patch: all of the dataset, as in nnU-Net, or those present in it."""
    balance: float = 0.0
    """How much more the voxels of small organs count in the cross-entropy: 0 like any, as in nnU-Net; 1 until
    all organs of a patch count alike."""
    gradient_norm: float = 12.0
    """Gradients longer than this are shortened to it."""
    validation_batches: int = 8
    """Batches of the validation split behind each Dice in the log; 0 leaves validation out."""
    seed: int = 0
    """Initial weights and every patch follow from it."""
    device: str = "cpu"
    """cpu, cuda, cuda:1, mps, ..."""
    precision: Precision = "float32"
    """Of the forward pass; weights stay float32."""
    compile: bool = False
    """Run the networks through torch.compile."""
    workers: int = 0
    """Processes that cut and augment patches; 0 does it in the loop."""

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.report_every < 1:
            raise ValueError("iterations and report_every are at least 1.")
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate is above 0, not {self.learning_rate}.")
        if not 0 <= self.balance <= 1:
            raise ValueError(f"balance lies between 0 and 1, not {self.balance}.")
        if min(self.seed, self.workers, self.validation_batches) < 0:
            raise ValueError("seed, workers and validation_batches are at least 0.")
        for name, kind in (("optimiser", Optimiser), ("precision", Precision), ("dice_over", DiceClasses)):
            if (value := getattr(self, name)) not in get_args(kind):
                raise ValueError(f"{name} is one of {', '.join(get_args(kind))}, not {value!r}.")

    @property
    def settings(self) -> dict[str, object]:
        """What decides the weights; the signature of a run and the training card keep it."""
        return asdict(self) | {"device": torch.device(self.device).type, "workers": None}


def train(
    module: nn.Module,
    loss_of: LossOfBatch,
    batches: Dataset[tuple[Tensor, Tensor]],
    config: TrainConfig,
    folder: Path,
    signature: str,
    validate: Callable[[], float] | None = None,
    title: str = "training",
    measure: str = "validation_dice",
    make_update: Callable[[nn.Module, LossOfBatch, TrainConfig], Update] | None = None,
    enough: Callable[[Rows], bool] = lambda rows: False,
) -> Rows:
    """Optimise the module's parameters; return one row per report.

    Goes on from `folder`/checkpoint.pt where there is one. Ctrl-C writes a checkpoint before it stops.
    `measure` names the column of what `validate` gives. The run ends early where the rows are `enough`.
    """
    checkpoint = folder / "checkpoint.pt"
    folder.mkdir(parents=True, exist_ok=True)
    update = (make_update or Update)(module, loss_of, config)
    done, rows, spent = 0, Rows(), 0.0
    if state := load_checkpoint(checkpoint, signature):
        update.load_state_dict(state["update"])
        done, rows, spent = state["iteration"], state["rows"], state["seconds"]
        if enough(rows):
            return rows
        if done < config.iterations:
            log.info("%s goes on after iteration %d of %d", title, done, config.iterations)
    losses: list[float] = []
    started = time.monotonic() - spent
    bar = progress_bar(total=config.iterations, initial=done, desc=title, unit="it", dynamic_ncols=True)
    with StopRequest() as stop, bar:
        for images, labels in numbered_batches(batches, done, config):
            losses.append(update(images, labels, iteration=done))
            done += 1
            bar.update()
            reporting = done % config.report_every == 0 or done == config.iterations
            if reporting:
                refuse_divergence(losses[-1], done, checkpoint)
                row = report(done, losses, validate, measure, config, started)
                rows.append(row)
                bar.set_postfix_str(in_short(row, measure))
                losses = []
                write_history(folder, rows)
            if reporting or stop.asked:
                state = {"signature": signature, "iteration": done, "rows": rows}
                state |= {"seconds": time.monotonic() - started, "update": update.state_dict()}
                save_checkpoint(checkpoint, state)
            if reporting and enough(rows):
                break
            if stop.asked and done < config.iterations:
                raise KeyboardInterrupt(
                    f"stopped after iteration {done}; the same command goes on from there"
                )
    return rows


def in_short(row: dict[str, float], measure: str) -> str:
    """A row for the progress bar; what was not measured is left out."""
    seen = {"loss": row["loss"], measure.removeprefix("validation_"): row[measure]}
    return ", ".join(f"{name}={value:.3f}" for name, value in seen.items() if math.isfinite(value))


def refuse_divergence(loss: float, iteration: int, checkpoint: Path) -> None:
    """A pack of weights that are no numbers must never come to be; the checkpoint before stays as it is."""
    if not math.isfinite(loss):
        raise ContinualSegmentError(
            f"{checkpoint.parent}: the loss is {loss} after {iteration} iterations: it has diverged. "
            "Delete the folder and start anew with a lower learning_rate, or in float32."
        )


class Update:
    """One optimiser step on one batch."""

    def __init__(self, module: nn.Module, loss_of: LossOfBatch, config: TrainConfig) -> None:
        self.module, self.loss_of, self.config = module, loss_of, config
        self.optimiser = make_optimiser(module, config)
        self.device = torch.device(config.device)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.precision == "float16")

    def __call__(self, images: Tensor, labels: Tensor, iteration: int) -> float:
        remaining = 1 - iteration / self.config.iterations
        for group in self.optimiser.param_groups:
            group["lr"] = self.config.learning_rate * remaining**0.9
        self.optimiser.zero_grad(set_to_none=True)
        with forward_precision(self.config):
            loss = self.loss_of(
                images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)
            )
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimiser)
        nn.utils.clip_grad_norm_(self.module.parameters(), self.config.gradient_norm)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        return float(loss.detach())

    def state_dict(self) -> dict[str, Any]:
        """All that the next update depends on."""
        return {
            "module": self.module.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.module.load_state_dict(state["module"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.scaler.load_state_dict(state["scaler"])


def make_optimiser(module: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """An optimiser of the parameters that may change, and of no others."""
    if config.optimiser == "muon":
        return Muon(module, config.learning_rate, config.weight_decay)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if config.optimiser == "sgd":
        return torch.optim.SGD(
            parameters, config.learning_rate, momentum=0.99, nesterov=True, weight_decay=config.weight_decay
        )
    return torch.optim.AdamW(parameters, config.learning_rate, weight_decay=config.weight_decay)


def numbered_batches(
    batches: Dataset[tuple[Tensor, Tensor]], first: int, config: TrainConfig
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches `first` to the last, in order whatever the number of workers."""
    return iter(
        DataLoader(
            batches,
            batch_size=None,  # an item is a whole batch
            sampler=range(first, config.iterations),
            num_workers=config.workers,
            pin_memory=config.device.startswith("cuda"),
            generator=torch.Generator(),  # the loader must not draw from, and so move, the global one
        )
    )


def forward_precision(config: TrainConfig) -> torch.autocast | nullcontext[None]:
    """The context in which networks run."""
    if config.precision == "float32":
        return nullcontext()
    return torch.autocast(torch.device(config.device).type, getattr(torch, config.precision))


def report(
    iteration: int,
    losses: list[float],
    validate: Callable[[], float] | None,
    measure: str,
    config: TrainConfig,
    started: float,
) -> dict[str, float]:
    """A row of the log."""
    return {
        "iteration": iteration,
        "loss": sum(losses) / max(1, len(losses)),
        measure: validate() if validate else float("nan"),
        "learning_rate": config.learning_rate * (1 - (iteration - 1) / config.iterations) ** 0.9,
        "seconds": round(time.monotonic() - started, 1),
    }
