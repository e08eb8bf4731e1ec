"""A benchmark on the workers of a cluster: a task starts as soon as the tasks that it needs are done.

The tasks are those of a benchmark on one machine, with the same results. A worker gets the description of the
whole benchmark and the title of its task. Training resumes from the checkpoints in the benchmark's folder,
so a worker that dies costs what was trained since the last one.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence

from continual_segment.engine import Dispatcher, EngineConfig, Finished, on_engine
from continual_segment.errors import ConfigError, ContinualSegmentError
from continual_segment.lab.benchmark.progress import Progress
from continual_segment.lab.benchmark.tasks import BenchmarkTasks, Task
from continual_segment.names import printable

log = logging.getLogger(__name__)


def run_tasks_on_engine(tasks: BenchmarkTasks, engine: EngineConfig) -> None:
    """Do all tasks that are left; where some fail, do what does not need them, then raise."""
    check_paths(tasks)
    run = EngineRun(tasks)
    with on_engine(engine, do_task, (tasks,), tasks.paths.folder, uses_gpu(tasks)) as dispatcher:
        run.start_ready(dispatcher)
        while not dispatcher.is_idle:
            for finished in dispatcher.step():
                run.end(finished)
            run.start_ready(dispatcher)
    if run.failures:
        first, problem = next(iter(run.failures.items()))
        raise ContinualSegmentError(
            f"{len(run.failures)} tasks failed and {len(run.waiting)} that need them were not started. The "
            f"first is {first}: {problem} Run the same command again to resume."
        )


class EngineRun:
    """Which tasks are done, run, wait and have failed."""

    def __init__(self, tasks: BenchmarkTasks) -> None:
        self.tasks = tasks.all()
        self.done = keys_of_done(self.tasks)
        self.waiting = [task for task in self.tasks if task.key not in self.done]
        self.running: dict[str, Task] = {}
        self.failures: dict[str, str] = {}
        self.progress = Progress(tasks.paths.folder / "progress.json", self.tasks)

    def start_ready(self, dispatcher: Dispatcher) -> None:
        """Give out every task whose needs are met; one that runs alone only while no other does."""
        ready = [task for task in self.waiting if self.done.issuperset(task.needs)]
        for task in sorted(ready, key=lambda task: task.runs_alone):
            if task.runs_alone and self.running:
                return
            self.waiting.remove(task)
            self.running[task.title] = task
            dispatcher.add(task.title, task.title)

    def end(self, finished: Finished) -> None:
        """Record how a task ended."""
        task, answer = self.running.pop(finished.name), finished.answer
        for level, text in answer.messages:
            log.log(level, "%s", printable(text, 1000))
        if answer.kind == "done":
            self.done.add(task.key)
            self.progress.add(task, answer.seconds)
            log.info("%s: %s", self.progress.sentence(self.tasks), task.title)
        else:
            self.failures[task.title] = answer.problem
            log.error("%s: failed, %s", task.title, printable(answer.problem, 1000))


def keys_of_done(tasks: Sequence[Task]) -> set[Hashable]:
    """Keys of the tasks that are done with all that they need; a task follows what it needs.

    Most methods adopt the first step as it is: that task has nothing to do, before the first step is trained
    as well as after it. What needs it would start too early if it counted as done from the beginning.
    """
    done: set[Hashable] = set()
    for task in tasks:
        if done.issuperset(task.needs) and task.is_done():
            done.add(task.key)
    return done


def do_task(title: str, tasks: BenchmarkTasks) -> None:
    """On a worker: the task of this title, unless it is done by now."""
    (task,) = [task for task in tasks.all() if task.title == title]
    if not task.is_done():
        task.do()


def uses_gpu(tasks: BenchmarkTasks) -> bool:
    config = tasks.plan.config
    devices = (config.first.device, config.later.device, config.segment.device)
    return any(device.startswith("cuda") for device in devices)


def check_paths(tasks: BenchmarkTasks) -> None:
    """Workers have folders of their own to start from."""
    folders = [tasks.paths.folder, *(dataset.raw.folder for dataset in tasks.plan.datasets.values())]
    for folder in folders:
        if not folder.is_absolute():
            raise ConfigError(f"{folder}: with an engine, name folders from the root of the file system.")
