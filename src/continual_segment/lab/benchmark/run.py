"""benchmark: all steps of all methods in all orders, scored after every step, and the tables of the paper.

The first step is trained once. Every task ends with a file on disk, and a task whose file exists is not
repeated. Call it again to resume a benchmark that was stopped; training resumes from its last checkpoint.

In:  raw datasets, a preset, orders, methods
Out: results.json, results.md, tables/*.csv and *.md, figures/*.png
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

from continual_segment.data.prepare import prepare
from continual_segment.engine import EngineConfig
from continual_segment.errors import ConfigError
from continual_segment.files.atomic import write_json
from continual_segment.lab.benchmark.first_steps import check_first_steps
from continual_segment.lab.benchmark.on_engine import run_tasks_on_engine
from continual_segment.lab.benchmark.paths import BenchmarkPaths
from continual_segment.lab.benchmark.plan import Plan
from continual_segment.lab.benchmark.progress import Progress
from continual_segment.lab.benchmark.results import Results
from continual_segment.lab.benchmark.tasks import BenchmarkTasks, Task
from continual_segment.lab.benchmark.write import write_results
from continual_segment.lab.protocol import HeldOut
from continual_segment.training.distributed import is_main, on_main

log = logging.getLogger(__name__)


def run_benchmark(folder: Path, plan: Plan, engine: EngineConfig | None = None) -> Path:
    """Do what is left of a benchmark in `folder`; return the path of results.md.

    With an engine, tasks run on the workers of a cluster, and those that do not need each other at once.
    """
    if engine:
        folder = folder.resolve()
    on_main(partial(claim, folder, plan))
    paths = BenchmarkPaths(folder, plan)
    prepared, tests = {}, {}
    for name, dataset in plan.datasets.items():
        preparation = partial(prepare, dataset.raw, paths.prepared(name), plan.config.prepare)
        prepared[name] = on_main(preparation).learnable()
        tests[name] = HeldOut.of(dataset.raw, prepared[name], plan.held_out, plan.split)
    check_first_steps(Results(paths))  # before training adds hours of results that cannot be compared
    tasks = BenchmarkTasks(paths, prepared, tests)
    if engine:
        run_tasks_on_engine(tasks, engine)
    else:
        run_tasks(paths, tasks.all())
    return on_main(partial(write_results, paths))


def run_tasks(paths: BenchmarkPaths, tasks: list[Task]) -> None:
    """Do all tasks that are left; write the results so far after each method."""
    progress = Progress(paths.folder / "progress.json", tasks)
    for number, task in enumerate(tasks):
        if on_main(task.is_done):
            continue
        if is_main():
            log.info("%s: %s", progress.sentence(tasks), task.title)
        started = time.monotonic()
        run_task(task)
        on_main(partial(progress.add, task, time.monotonic() - started))
        if number + 1 < len(tasks) and tasks[number + 1].part != task.part:
            on_main(partial(write_results, paths))
    if is_main():
        log.info("%s", progress.sentence(tasks))


def run_task(task: Task) -> None:
    """Several processes train together; the first one does everything else."""
    if task.trains:
        task.do()
    else:
        on_main(task.do)


def claim(folder: Path, plan: Plan) -> None:
    """Store what determines the results in a new folder; raise where a benchmark of other settings is.

    Orders, methods and seeds can be added later, and other scorings of the same networks.
    """
    settings = {
        "config": asdict(plan.config),
        "datasets": {name: str(dataset.raw.folder.resolve()) for name, dataset in plan.datasets.items()},
        "held_out": plan.held_out,
        "budgets": plan.budgets,
        "anomalies": {name: list(dataset.anomalies) for name, dataset in plan.datasets.items()},
    }
    settings = json.loads(json.dumps(settings))
    note = folder / "benchmark.json"
    found = json.loads(note.read_text()) if note.exists() else settings
    found.setdefault("anomalies", settings["anomalies"])  # earlier versions did not store them
    if found != settings:
        changed = ", ".join(key for key in settings if settings[key] != found.get(key))
        raise ConfigError(
            f"{folder} holds a benchmark with another {changed}. Choose another --out, or delete it."
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_json(note, settings)
