"""Engine: tasks on the workers of a cluster, in place of this process.

`on_engine` runs one function over named tasks. What a task is, a scan or a part of a benchmark, is decided by
the packages above; a task is described by the same data whether it runs here or there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from continual_segment.engine.call import Answer
from continual_segment.engine.config import EngineConfig
from continual_segment.engine.dispatch import Dispatcher, Finished

__all__ = ["Answer", "Dispatcher", "EngineConfig", "Finished", "on_engine"]


@contextmanager
def on_engine(
    config: EngineConfig,
    function: Callable[..., Any],
    shared: tuple[Any, ...],
    folder: Path,
    gpu: bool = False,
) -> Iterator[Dispatcher]:
    """A dispatcher whose tasks call function(*arguments, *shared) on workers; all are stopped at the end.

    `folder` receives the results, under the same path on every machine.
    """
    from continual_segment.engine.dask_cluster import DaskCluster  # imported on demand, as Dask is

    cluster = DaskCluster(config, function, shared, folder.resolve(), gpu)
    try:
        yield Dispatcher(cluster, config)
    finally:
        cluster.close()
