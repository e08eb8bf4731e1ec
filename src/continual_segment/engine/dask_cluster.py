"""DaskCluster: the workers of a scheduler of dask.distributed.

Dask brings what is hard to write well: workers on many machines that come and go, connections (with TLS as an
option), its own deployments for Slurm and Kubernetes, a page that shows them. Which task runs where is
decided by our Dispatcher, because Dask has neither a time limit for a task nor a way to try it elsewhere.

Names of tasks in Dask are random: no name of a case is in the scheduler's logs or on its page.
"""

from __future__ import annotations

import logging
import queue
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from continual_segment import __version__
from continual_segment.engine.call import Answer, Call
from continual_segment.engine.config import EngineConfig
from continual_segment.engine.dispatch import Event
from continual_segment.engine.worker import answer
from continual_segment.errors import ConfigError, ContinualSegmentError
from continual_segment.files.atomic import UNFINISHED
from continual_segment.names import printable

if TYPE_CHECKING:
    from distributed import Client, Future

log = logging.getLogger(__name__)

SECONDS_TO_CONNECT = 30
GPU = "GPU"
"""Resource of a worker: how many GPUs it has."""


class DaskCluster:
    """A connection to a scheduler, for calls of one function."""

    def __init__(
        self,
        config: EngineConfig,
        function: Callable[..., Any],
        shared: tuple[Any, ...],
        folder: Path,
        gpu: bool = False,
    ) -> None:
        """`folder` is where results are written, `gpu` whether a task needs a GPU of its own."""
        self.config, self.gpu = config, gpu
        self.function, self.shared = function, shared
        self.run = secrets.token_hex(8)
        self.token = folder / f"{UNFINISHED}run-{self.run}"
        self._workers: dict[str, tuple[int, int]] = {}
        """Slots and threads."""
        self._futures: dict[str, Future] = {}
        self._events: queue.Queue[tuple[str, bool]] = queue.Queue()
        """Keys of tasks that have begun (False) or ended (True)."""
        self._client = connect(config.scheduler, config.address)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.token.touch()
            self._client.subscribe_topic(self._topic, self._begun)
        except BaseException:
            self.close()
            raise

    @property
    def _topic(self) -> str:
        return f"conseg-{self.run}"

    def _begun(self, event: tuple[float, Any]) -> None:
        self._events.put((str(event[1]), False))

    def slots(self) -> Mapping[str, int]:
        """Workers now; details are asked for only when one is new."""
        try:
            there = self._client.nthreads()
            if there.keys() - self._workers.keys():
                described = self._client.scheduler_info(n_workers=-1)["workers"]
                self._workers |= {each: self._described(described[each]) for each in described}
        except (OSError, TimeoutError, ValueError) as error:  # a closed connection is an OSError
            raise lost(self.config.address) from error
        return {each: self._workers[each][0] for each in there if self._workers.get(each, (0, 0))[0]}

    def _described(self, worker: Mapping[str, Any]) -> tuple[int, int]:
        """Slots and threads: a scan at a time with all threads, or one for each GPU."""
        threads = max(1, int(worker["nthreads"]))
        slots = int(worker.get("resources", {}).get(GPU, 0)) if self.gpu else 1
        return slots, max(1, threads // max(1, slots))

    def submit(self, worker: str, slot: int, arguments: tuple[Any, ...]) -> str:
        """Give a task to one worker and no other."""
        key = f"{self._topic}-{secrets.token_hex(8)}"
        call = Call(
            self.function, (*arguments, *self.shared), self.run, __version__, self.token, self.config.seconds
        )
        threads = self._workers[worker][1]
        future = self._client.submit(
            answer_on_worker, call, slot, threads, self.gpu, self._topic,
            key=key, workers=[worker], allow_other_workers=False, pure=False,
            resources={GPU: 1} if self.gpu else None,
        )  # fmt: skip
        self._futures[key] = future
        future.add_done_callback(lambda done: self._events.put((done.key, True)))
        return key

    def forget(self, key: str) -> None:
        future = self._futures.pop(key, None)
        if future is not None:
            future.cancel()

    def events(self, seconds: float) -> Sequence[Event]:
        """What arrived; waits for the first."""
        try:
            arrived = [self._events.get(timeout=seconds)]
        except queue.Empty:
            return []
        while not self._events.empty():
            arrived.append(self._events.get_nowait())
        return [(key, self._answer(key) if ended else None) for key, ended in arrived if key in self._futures]

    def _answer(self, key: str) -> Answer:
        """What came back, or why nothing did."""
        future = self._futures.pop(key)
        try:
            found = future.result(timeout=SECONDS_TO_CONNECT)
        except (ModuleNotFoundError, AttributeError) as error:
            problem = (
                f"It cannot run our software ({printable(str(error))}). Install continual-segment there."
            )
            return Answer("unfit", problem=problem)
        except Exception as error:  # of Dask: the worker died, its answer cannot be fetched
            return Answer("worker", problem=f"Its worker failed ({type(error).__name__}).")
        return found if isinstance(found, Answer) else Answer("worker", problem="It gave no valid answer.")

    def close(self) -> None:
        """Stop what runs; workers notice within a second that their tasks are no longer wanted."""
        self.token.unlink(missing_ok=True)
        futures = list(self._futures.values())
        self._futures.clear()
        try:
            if futures:
                self._client.cancel(futures)
            self._client.close(timeout=SECONDS_TO_CONNECT)
        except (OSError, TimeoutError) as error:  # the scheduler is gone, and with it all tasks
            log.debug("closing the connection", exc_info=error)


def connect(scheduler: str, address: str) -> Client:
    try:
        from distributed import Client
    except ImportError as error:
        raise ConfigError(
            "--engine needs dask.distributed, which is not installed: pip install '.[dask]' in the clone"
        ) from error
    try:
        return Client(scheduler, timeout=SECONDS_TO_CONNECT, set_as_default=False)
    except (OSError, TimeoutError, ValueError, TypeError) as error:
        raise ContinualSegmentError(
            f"{address}: no scheduler answers at {scheduler} ({printable(str(error), 400)}). Start one with "
            "`dask scheduler`, or check address, firewall and certificates."
        ) from error


def lost(address: str) -> ContinualSegmentError:
    return ContinualSegmentError(
        f"{address}: the connection to the scheduler is lost. Start it and run the same command again to "
        "resume."
    )


def answer_on_worker(call: Call, slot: int, threads: int, gpu: bool, topic: str) -> Answer:
    """In a thread of a Dask worker: run the call as long as somebody waits for it."""
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()

    def is_wanted() -> bool:
        """A cancelled task, or one whose client is gone, stays in another state until its thread ends."""
        task = worker.state.tasks.get(key)
        return task is not None and task.state not in ("cancelled", "released", "forgotten")

    return answer(call, slot, threads, gpu, is_wanted, begun=lambda: worker.log_event(topic, key))
