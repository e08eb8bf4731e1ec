"""Several processes that train one network together, as torchrun starts them: one for each GPU.

All processes run the same program in step. In an update each of them reads a batch of its own, and gradients
are averaged: the update is that of one process with all these patches in its batch. What is not training,
such as validation, fits and files, the first process does alone (`on_main`), and the others wait for its
result. In a program that torchrun did not start, every function here is that of a single process.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from continual_segment.errors import ConfigError, ContinualSegmentError

Result = TypeVar("Result")
ENVIRONMENT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun sets for each of its processes."""
MEETING = timedelta(minutes=10)
"""How long a process looks for the others at its start."""
PATIENCE = timedelta(days=1)
"""How long a process waits for the others. The first one may validate or fit for an hour; if one dies,
connections close and torchrun ends the others, so that no short time is needed to notice it."""

_store: dist.Store | None = None
"""Shared by the processes of a group that was joined here; None: this process is by itself."""
_joined = 0
"""Groups that were joined so far: torchrun's store outlives a group, and the next must not read from it."""
_alone = False
"""The first process does something that the others wait for."""


def launched() -> bool:
    """Whether torchrun, or a launcher that sets the same variables, started several processes."""
    return all(name in os.environ for name in ENVIRONMENT) and int(os.environ["WORLD_SIZE"]) > 1


@contextmanager
def process_group() -> Iterator[None]:
    """Join the processes that were started together until the block ends; with a single one, do nothing.

    `cuda` is the GPU of this process from then on, and only the first process shows messages and progress.
    After an error the group is left as it is: the other processes may wait in it for ever.
    """
    if not launched() or dist.is_initialized():
        yield
        return
    join()
    yield
    leave()


def join() -> None:
    global _store, _joined
    local, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local < gpus:
        torch.cuda.set_device(local)
    # gloo for tensors on the CPU in any case: results, losses and requests to stop go through it
    backend = "cpu:gloo,cuda:nccl" if gpus else "gloo"
    store, rank, size = meet()
    store, _joined = dist.PrefixStore(f"group_{_joined}", store), _joined + 1
    dist.init_process_group(backend, timeout=PATIENCE, store=store, rank=rank, world_size=size)
    _store = dist.PrefixStore("continual_segment", store)
    if rank:
        logging.getLogger("continual_segment").setLevel(logging.ERROR)
        logging.getLogger("continual_segment.progress").setLevel(logging.ERROR)


def meet() -> tuple[dist.Store, int, int]:
    """What all processes share, the number of this one, and how many there are."""
    try:
        return next(dist.rendezvous("env://", timeout=MEETING))
    except dist.DistError as error:
        at = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise ContinualSegmentError(
            f"Process {os.environ['RANK']} of {os.environ['WORLD_SIZE']} found no other one at {at} "
            f"({str(error).splitlines()[0]}). Check that all were started and can reach that address."
        ) from error


def leave() -> None:
    global _store
    dist.destroy_process_group()
    _store = None


def in_group() -> bool:
    """Whether this is one of several processes, also while it works and the others wait."""
    return _store is not None


def world_size() -> int:
    """How many processes train together."""
    return 1 if _store is None or _alone else dist.get_world_size()


def rank() -> int:
    """The number of this process, from 0."""
    return 0 if _store is None or _alone else dist.get_rank()


def is_main() -> bool:
    """Whether this is the first process, which is the one that writes."""
    return rank() == 0


def check_device(name: str) -> None:
    """ConfigError where several processes cannot each have a device of their own."""
    device = torch.device(name)
    if world_size() == 1 or device.type == "cpu":
        return
    if device.type != "cuda" or device.index is not None:
        raise ConfigError(
            f"{world_size()} processes cannot train on the device '{name}': give --device cuda, with which "
            "each process has its own GPU, or --device cpu."
        )
    local, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local >= gpus:
        raise ConfigError(
            f"Process {rank()} is number {local} of its machine, which has {gpus} GPUs. Start at most as "
            "many processes per machine as it has GPUs: torchrun --nproc-per-node."
        )


def on_main(compute: Callable[[], Result]) -> Result:
    """What the first process computes, in all processes; the others wait for it.

    While it computes, it counts as a single process: what it calls may use this module, and may train.
    """
    global _alone
    if world_size() == 1:
        return compute()
    found: list[Result | None] = [None]
    if is_main():
        _alone = True
        try:
            found = [compute()]
        finally:
            _alone = False
    with lost_processes_reported():
        dist.broadcast_object_list(found, src=0, device=torch.device("cpu"))
    return found[0]  # type: ignore[return-value]


def agree(loss: float, stop: bool) -> tuple[float, bool]:
    """The mean of the losses of all processes, and whether any of them is to stop."""
    if world_size() == 1:
        return loss, stop
    sums = sum_over_processes(torch.tensor([loss, float(stop)], dtype=torch.float64))
    return float(sums[0]) / world_size(), bool(sums[1] > 0)


def sum_over_processes(values: Tensor) -> Tensor:
    """The sum of a tensor over all processes, without a gradient."""
    if world_size() == 1:
        return values
    total = values.detach().clone()
    with lost_processes_reported():
        dist.all_reduce(total)
    return total


def mean_over_processes(values: Tensor) -> Tensor:
    return values if world_size() == 1 else sum_over_processes(values) / world_size()


@torch.no_grad()
def share_weights(module: nn.Module) -> None:
    """Give all processes the parameters and buffers of the first one."""
    if world_size() == 1:
        return
    with lost_processes_reported():
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, src=0)


def parallel(module: nn.Module) -> nn.Module:
    """The module with gradients that are averaged over all processes; itself in a single process.

    Buffers are those of the first process. Parameters without a part in a loss are common: decoders take
    turns, and the coarsest output of a decoder has no weight. Their gradient stays None, as in one process.
    """
    if world_size() == 1:
        return module
    with lost_processes_reported():
        return DistributedDataParallel(module, find_unused_parameters=True)


@contextmanager
def lost_processes_reported() -> Iterator[None]:
    """Turn the error of a connection that broke into one that a user understands."""
    try:
        yield
    except RuntimeError as error:
        if world_size() == 1 or not _is_lost_connection(error):
            raise
        raise ContinualSegmentError(
            f"Process {rank()} of {world_size()} has lost the connection to another one, which has ended or "
            f"cannot be reached any more ({str(error).splitlines()[0]}). Its own message and torchrun's list "
            "of failures name the reason. Run the same command again to resume from the last checkpoint."
        ) from error


def _is_lost_connection(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def first_to_fail() -> bool:
    """Whether no other process has failed before this one, so that one message is shown for all."""
    if _store is None:
        return True
    try:
        return _store.add("failures", 1) == 1
    except RuntimeError:  # the store has ended with the process that kept it
        return True
