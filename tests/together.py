"""What each of several processes does in test_distributed.py: python together.py TASK FOLDER.

Numbers are float64, so that rounding is far below any difference that a wrong average makes.
"""

import os
import signal
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from torch import nn

from continual_segment.data.patches import NumberedBatches
from continual_segment.learning.joint import JointObjective, Turns, TurnUpdate
from continual_segment.learning.search import AlternatingPatches, SearchConfig, SearchUpdate
from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder, MixedDecoder, NetworkConfig
from continual_segment.training import (
    LossConfig,
    Objective,
    TrainConfig,
    TrainingRun,
    distributed,
    history,
    train,
)

NETWORK = NetworkConfig((4, 6), ((3, 3, 3), (3, 3, 3)), ((1, 1, 1), (2, 2, 2)))
LOSS = LossConfig(dice_over="present", balance=0.5).build()
SIZE = (4, 4, 4)
ITERATIONS = 6


class Made(NumberedBatches):
    """Batch i of these processes, joined; it follows from i and their numbers. Odd ones lack an organ."""

    def __init__(self, ranks=(0,), seed=0):
        self.ranks, self.seed = ranks, seed

    def __getitem__(self, number):
        images, labels = zip(*(self.of(number, rank) for rank in self.ranks), strict=True)
        return torch.cat(images), torch.cat(labels)

    def of(self, number, rank):
        draw = torch.Generator().manual_seed(1000 * self.seed + 100 * rank + number)
        images = torch.randn(2, 1, *SIZE, generator=draw, dtype=torch.float64)
        odd = (number + rank) % 2
        return images, (images[:, 0] > 0.3).long() + (images[:, 0] > 1).long() * (1 - odd)

    def for_rank(self, rank):
        return Made((rank,), self.seed)


def config(**settings):
    known = {"iterations": ITERATIONS, "report_every": 4, "learning_rate": 0.02, "validation_batches": 0}
    return TrainConfig(**known | settings)


def plain(folder, ranks=(0,), at_batch=lambda: None):
    """One network; one of its layers has no part in the loss."""
    torch.manual_seed(distributed.rank())  # only the first process has the weights to start from
    network = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.InstanceNorm3d(4), nn.Conv3d(4, 3, 1)).double()
    unused = nn.Linear(2, 2).double()

    def loss_of(images, labels):
        at_batch()
        return LOSS([network(images)], labels)

    objective = Objective(loss_of, network=network, unused=unused)
    rows = train(TrainingRun(objective, Made(ranks), config(), folder, "plain", validate=lambda: 0.5))
    return objective.state_dict() | {"losses": torch.tensor([row["loss"] for row in rows])}


def joint(folder, ranks=(0,)):
    """Two decoders that take turns on one encoder."""
    torch.manual_seed(0)
    encoder = GeneralEncoder(NETWORK)
    decoders = [Decoder(NETWORK, DecoderPlan.nnunet(NETWORK), 2) for _ in range(2)]
    objective = JointObjective(encoder, decoders, LOSS).double()
    batches = Turns([Made(ranks, seed) for seed in (1, 2)])
    settings = config(optimiser="muon")
    train(TrainingRun(objective, batches, settings, folder, "joint", make_update=TurnUpdate))
    return objective.state_dict()


def search(folder, ranks=(0,)):
    """Weights and shares of kernels in turn."""
    torch.manual_seed(0)
    encoder, mixed = GeneralEncoder(NETWORK).double().freeze(), MixedDecoder(NETWORK, 2).double()

    def loss_of(images, labels):
        return LOSS(mixed.forward_supervised(encoder(images)), labels)

    objective = Objective(loss_of, decoder=mixed)
    batches = AlternatingPatches(Made(ranks, 3), Made(ranks, 4), warm_up=2)
    known = SearchConfig(warm_up_share=2 / ITERATIONS, cost_weight=0.1)
    make = partial(SearchUpdate, mixed=mixed, search=known, window=SIZE)
    settings = config(optimiser="adamw")
    train(TrainingRun(objective, batches, settings, folder, "search", make_update=make))
    return objective.state_dict()


TRAININGS = {"plain": plain, "joint": joint, "search": search}


def all_trainings(folder):
    """In a run folder for each process, so that a test sees which of them writes."""
    for name, training in TRAININGS.items():
        save(training(folder / f"runs_{distributed.rank()}" / name), folder, name)


def stop_and_resume(folder):
    """An undisturbed run, and one of which only the last process is asked to stop."""
    save(plain(folder / "unstopped"), folder, "unstopped")
    try:
        plain(folder / "stopped", at_batch=signals_at(3, signal.SIGTERM))
    except KeyboardInterrupt as stop:
        (folder / f"message_{distributed.rank()}.txt").write_text(str(stop))
    save(plain(folder / "stopped"), folder, "resumed")


def die(folder):
    plain(folder / "run", at_batch=signals_at(3, signal.SIGKILL))


def signals_at(batch, number):
    """Sends the last process a signal when it has reached a batch."""
    seen = []

    def at_batch():
        seen.append(None)
        if len(seen) == batch and distributed.rank() == distributed.world_size() - 1:
            os.kill(os.getpid(), number)

    return at_batch


def separate_storage(folder):
    """The first process finds a checkpoint that the other does not see."""
    plain(folder / "shared")
    run = folder / ("shared" if distributed.is_main() else "elsewhere")
    plain(run)


def again_and_again(folder):
    """Several groups, one after the other; the first process is late each time."""
    for number in range(4):
        time.sleep(0.2 * (os.environ["RANK"] == "0"))
        with distributed.process_group():
            plain(folder / str(number))


def save(state, folder, name):
    torch.save(state, folder / f"{name}_{distributed.rank()}.pt")


if __name__ == "__main__":
    history.curves_png = lambda rows: b""  # drawing takes longer than these runs
    task, where = globals()[sys.argv[1]], Path(sys.argv[2])
    with nullcontext() if task is again_and_again else distributed.process_group():
        task(where)
    sys.stdout.flush()
    os._exit(0)  # threads of torch have aborted the interpreter's end, once in many runs, when all was done
