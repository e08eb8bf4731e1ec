"""What one update costs by each method of the benchmark, side by side.

A preset's network in the paper's second step (103 organs known, 31 labelled, 4 of them shared) on made-up
patches: what is timed does not depend on what is seen. Rounds of all methods in turn, the median of each.

    python benchmarks/method_updates.py [--preset laptop] [--rounds 5] [--threads 1] [--methods mib,plop]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from continual_segment.config import ExperimentConfig, load_preset
from continual_segment.lab.baselines import METHODS, NetworkMethod, StepSettings
from continual_segment.lab.baselines.classes import StepClasses
from continual_segment.lab.baselines.step import LearningStep
from continual_segment.lab.benchmark.plan import make_method
from continual_segment.lab.phantom.organ_lists import CHEST, TOTALSEG
from continual_segment.malloc import keep_freed_memory
from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder
from continual_segment.networks.segmentation_network import SegmentationNetwork
from continual_segment.organs import find_organ
from continual_segment.training.update import Update


@dataclass(frozen=True, eq=False)
class MadeUp(Dataset):
    """Noise with boxes of organs, some in every patch."""

    size: Sequence[int]
    batch: int
    organs: int

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(number)
        images = torch.randn(self.batch, 1, *self.size, generator=generator)
        coarse = torch.randint(0, 2 * self.organs, (self.batch, 1, 4, 4, 4), generator=generator)
        coarse[coarse > self.organs] = 0
        labels = torch.nn.functional.interpolate(coarse.float(), size=tuple(self.size))[:, 0].long()
        return images, labels


@dataclass(frozen=True, eq=False)
class MadeUpStep(LearningStep):
    def training_batches(self) -> Any:
        patches = self.settings.patches
        return MadeUp(patches.size, patches.batch, len(self.dataset.organs))


def make_step(config: ExperimentConfig, method: str) -> MadeUpStep:
    known, labelled = (tuple(map(find_organ, names)) for names in (TOTALSEG, CHEST))
    network = config.network
    teacher = SegmentationNetwork(
        GeneralEncoder(network), Decoder(network, DecoderPlan.nnunet(network), len(known))
    ).freeze()
    one = make_method(method).keeps == "one network"
    classes = StepClasses.of(known if one else (), labelled)
    patches = config.patches.of_later_step(config.patches.size)
    settings = StepSettings(patches, config.augment, replace(config.later, iterations=1000))
    return MadeUpStep(teacher, classes, SimpleNamespace(organs=labelled), settings)  # type: ignore[arg-type]


def make_update(config: ExperimentConfig, method: str) -> Callable[[int], None]:
    """A method at work: call it with a number for one more update."""
    torch.manual_seed(0)
    step = make_step(config, method)
    made = make_method(method)
    assert isinstance(made, NetworkMethod), f"{method} does not train a whole network"
    learner = made.begin(step)
    batches = step.training_batches()
    update = Update(learner.objective(), config.later)

    def once(number: int) -> None:
        update(*batches[number % len(batches)], iteration=number)

    return once


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="laptop")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    names = [name for name, method in METHODS.items() if isinstance(method, NetworkMethod)]
    parser.add_argument("--methods", default=",".join(names))
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(args.threads)
    config = load_preset(args.preset)
    updates = {method: make_update(config, method) for method in args.methods.split(",")}
    seconds: dict[str, list[float]] = {method: [] for method in updates}
    for number in range(args.rounds + 1):
        for method, update in updates.items():
            started = time.perf_counter()
            update(number)
            if number:  # the first warms up
                seconds[method].append(time.perf_counter() - started)
    least = statistics.median(seconds[next(iter(seconds))])
    print(f"preset {args.preset}, {args.threads} thread(s), median of {args.rounds} rounds in turn")
    for method, each in seconds.items():
        middle = statistics.median(each)
        print(f"{method:14} {middle:7.3f} s  {middle / least:5.2f} times {next(iter(seconds))}")


if __name__ == "__main__":
    main()
