"""Three balls in three steps, all of them in every patch: which method keeps the old ones?

With everything in sight, a right MiB keeps old organs and fine-tuning loses them. That the methods
forget on whole-body data is then their nature, and no mistake of ours.

    python benchmarks/spheres.py [--iterations 120] [--methods mib,rcil:kd_weight=10]
    python benchmarks/spheres.py --first 100 --iterations 1000 --optimiser sgd --methods plop,rcil
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from continual_segment.lab.baselines import METHODS, NetworkMethod, StepSettings
from continual_segment.lab.baselines.classes import StepClasses
from continual_segment.lab.baselines.step import LearningStep
from continual_segment.lab.benchmark.plan import make_method
from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder, NetworkConfig
from continual_segment.networks.segmentation_network import SegmentationNetwork
from continual_segment.organs import find_organ
from continual_segment.training import LossConfig, Objective, TrainConfig, TrainingRun, history, train
from continual_segment.training.train_config import Optimiser

NETWORK = NetworkConfig((6, 12), ((3, 3, 3), (3, 3, 3)), ((1, 1, 1), (2, 2, 2)))
SIZE, RADIUS = 12, 3.0
BRIGHTNESS = (0.0, 0.6, 1.2)
ORGANS = tuple(map(find_organ, ("liver", "spleen", "aorta")))
UNSEEN = 99
RATES: dict[Optimiser, float] = {"muon": 0.02, "sgd": 0.01}


class Balls(Dataset):
    """Three balls of their own brightness at random places in noise; one of them, or all, labelled."""

    def __init__(self, labelled: int | None, seed: int, count: int) -> None:
        self.labelled, self.seed, self.count = labelled, seed, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(10_000 * self.seed + number)
        images = -1 + 0.1 * torch.randn(2, 1, SIZE, SIZE, SIZE, generator=generator)
        labels = torch.zeros(2, SIZE, SIZE, SIZE, dtype=torch.int64)
        for sample in range(2):
            for ball in torch.randperm(3, generator=generator).tolist():
                inside = ball_at(2 + (SIZE - 5) * torch.rand(3, generator=generator))
                noise = 0.1 * torch.randn(int(inside.sum()), generator=generator)
                images[sample, 0][inside] = BRIGHTNESS[ball] + noise
                labels[sample][inside] = ball + 1
        if self.labelled is not None:
            labels = (labels == self.labelled + 1).long()
        return images, labels


def ball_at(centre: Tensor) -> Tensor:
    axis = torch.arange(SIZE)
    z, y, x = ((axis - at).square() for at in centre)
    return z[:, None, None] + y[None, :, None] + x < RADIUS**2


@dataclass(frozen=True, eq=False)
class BallStep(LearningStep):
    """A step whose patches are made up."""

    def training_batches(self) -> Any:
        return Balls(self.dataset.labelled, self.dataset.labelled, self.train.iterations)  # type: ignore[attr-defined]


def settings(iterations: int, optimiser: Optimiser = "muon") -> TrainConfig:
    loss, rate = LossConfig(dice_over="present"), RATES[optimiser]
    return TrainConfig(iterations, iterations, optimiser, rate, loss=loss, validation_batches=0)


def first_network(config: TrainConfig, folder: Path) -> SegmentationNetwork:
    """Knows the first ball."""
    torch.manual_seed(0)
    network = SegmentationNetwork(GeneralEncoder(NETWORK), Decoder(NETWORK, DecoderPlan.nnunet(NETWORK), 1))

    loss = config.loss.build()

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        return loss(network.decoder.forward_supervised(network.encoder(images)), labels)

    objective, batches = Objective(loss_of, network=network), Balls(0, 0, config.iterations)
    train(TrainingRun(objective, batches, config, folder, "first", title="first ball"))
    return network


def learn_all(
    method: NetworkMethod,
    network: SegmentationNetwork,
    config: TrainConfig,
    folder: Path,
    steps: tuple[int, ...],
) -> SegmentationNetwork:
    """The network after these further balls, one step each."""
    known, state = ORGANS[:1], {}
    if hasattr(method, "after_first_step"):
        state = method.after_first_step(network, StepClasses.of((), known), Balls(0, 0, config.iterations))
    for number in steps:
        classes = StepClasses.of(known, ORGANS[number : number + 1])
        dataset: Any = SimpleNamespace(organs=ORGANS[number : number + 1], labelled=number)
        nothing: Any = None
        torch.manual_seed(0)
        step = BallStep(network.freeze(), classes, dataset, StepSettings(nothing, nothing, config), state)
        learner = method.begin(step)
        title, batches = f"{type(method).__name__}, ball {number + 1}", step.training_batches()
        train(TrainingRun(learner.objective(), batches, config, folder / str(number), "", title=title))
        state, network, known = learner.finish(), learner.network, classes.organs
    return network


@torch.no_grad()
def dice(network: SegmentationNetwork, batches: int = 8) -> list[float]:
    """Of every ball that the network knows, on patches that no step saw."""
    network.eval()
    balls = network.decoder.organs
    overlap, both = torch.zeros(balls), torch.zeros(balls)
    for number in range(batches):
        images, labels = Balls(None, UNSEEN, batches)[number]
        winner = network(images).argmax(1)
        for ball in range(1, balls + 1):
            overlap[ball - 1] += 2 * ((winner == ball) & (labels == ball)).sum()
            both[ball - 1] += (winner == ball).sum() + (labels == ball).sum()
    return (overlap / both).tolist()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=120, help="of every step")
    parser.add_argument("--first", type=int, help="of the first step, which is learned with Muon")
    parser.add_argument("--optimiser", choices=RATES, default="muon", help="of later steps")
    names = [name for name, method in METHODS.items() if method.keeps == "one network"]
    parser.add_argument("--methods", default=",".join(names))
    args = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    history.curves_png = lambda rows: b""  # drawing takes longer than these runs
    config = settings(args.iterations, args.optimiser)
    print("| method | first ball | second | third |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        first = first_network(settings(args.first or args.iterations), Path(folder) / "first")
        print(f"| after the first step | {dice(first)[0]:.3f} | | |", flush=True)
        for name in args.methods.split(","):
            network = learn_all(make_method(name), first, config, Path(folder) / name, (1, 2))
            print(f"| {name} | {' | '.join(f'{value:.3f}' for value in dice(network))} |", flush=True)


if __name__ == "__main__":
    main()
