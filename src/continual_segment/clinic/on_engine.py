"""A batch on the workers of a cluster: the jobs of a local batch, each segmented and written by a worker.

Workers read scans and write results themselves, on storage that all machines share; only names of files,
settings and summaries travel. A worker opens the model once and refuses to work where it differs from the
one that this machine sees.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from continual_segment.body_parts import BodyPartRegressor
from continual_segment.clinic.jobs import Job
from continual_segment.clinic.manifest import request_of
from continual_segment.clinic.outputs import OutputConfig, write_result
from continual_segment.clinic.read import read_case
from continual_segment.clinic.segment_case import announce, segment_case
from continual_segment.clinic.summary import Summary
from continual_segment.engine import EngineConfig, Finished, on_engine
from continual_segment.errors import ModelError, UnfitWorkerError, WorkerError
from continual_segment.model import Model
from continual_segment.names import printable
from continual_segment.progress import progress_bar
from continual_segment.segmentation import MultiSegmenter, SegmentConfig, Segmenter, open_segmenter

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Batch:
    """What all jobs of a batch have in common."""

    models: tuple[Path, ...]
    organs: tuple[str, ...] | None
    packs: tuple[str, ...] | None
    config: SegmentConfig
    outputs: OutputConfig
    request: str
    """Of `request_of`, as JSON: what a worker must compute as well from the model that it opens."""

    @classmethod
    def of(
        cls,
        models: Sequence[Path],
        organs: Sequence[str] | None,
        packs: Sequence[str] | None,
        config: SegmentConfig,
        outputs: OutputConfig,
        request: dict[str, Any],
    ) -> Batch:
        """With absolute paths, because workers have folders of their own to start from."""
        body_parts = outputs.body_parts and outputs.body_parts.resolve()
        return cls(
            tuple(folder.resolve() for folder in models),
            None if organs is None else tuple(organs),
            None if packs is None else tuple(packs),
            replace(config, progress=False),
            replace(outputs, engine=None, body_parts=body_parts),
            json.dumps(request),
        )


def segment_on_engine(jobs: Sequence[Job], batch: Batch, engine: EngineConfig) -> dict[str, str]:
    """Segment the jobs on the workers of an engine; return the failures, scan -> sentence."""
    failures: dict[str, str] = {}
    by_case = {job.case: job for job in jobs}
    gpu = batch.config.device.startswith("cuda")
    log.info("%d %s on the workers of %s.", len(jobs), "case" if len(jobs) == 1 else "cases", engine.address)
    with (
        on_engine(engine, segment_job, (batch,), jobs[0].folder, gpu) as dispatcher,
        progress_bar(total=len(jobs), desc="segmenting", unit="case", disable=None) as bar,
    ):
        for job in jobs:
            dispatcher.add(job.case, replace(job, source=job.source.resolve(), folder=job.folder.resolve()))
        for number, finished in enumerate(dispatcher.run(), start=1):
            bar.update()
            show(finished, by_case[finished.name], number, len(jobs))
            if finished.answer.kind == "failed":
                failures[by_case[finished.name].title] = finished.answer.problem
    return failures


def show(finished: Finished, job: Job, number: int, total: int) -> None:
    """What a local batch shows: what is odd about the scan, then a line or why it failed."""
    for level, text in finished.answer.messages:
        log.log(level, "%s", printable(text, 1000))
    if finished.answer.kind == "failed":
        log.error("%s: failed, %s", job.case, printable(finished.answer.problem, 1000))
        return
    summary: Summary = finished.answer.result
    if job.alone:
        log.info("%s", summary.table())
    else:
        log.info("[%d/%d] %s", number, total, summary.line())


def segment_job(job: Job, batch: Batch) -> Summary:
    """Segment a scan and write its results; runs in a process of a worker."""
    if not job.source.exists():
        raise WorkerError(f"{job.source} is not visible on this worker. Is its storage mounted there?")
    segmenter, regressor = opened(batch)
    case = read_case(job, batch.outputs.series, batch.outputs.force)
    announce(case)
    result = segment_case(case, segmenter, regressor, batch.outputs)
    write_result(result, batch.outputs, json.loads(batch.request))
    return result.summary


@lru_cache(maxsize=1)
def opened(batch: Batch) -> tuple[Segmenter | MultiSegmenter, BodyPartRegressor | None]:
    """The models, loaded once in this process; the same as where the batch was started."""
    outputs = batch.outputs
    try:
        models = [Model.open(folder) for folder in batch.models]
        segmenter = open_segmenter(models, batch.organs, batch.packs, batch.config)
        regressor = BodyPartRegressor.read(outputs.body_parts) if outputs.body_parts else None
    except ModelError as error:
        raise UnfitWorkerError(str(error)) from error
    except (RuntimeError, AssertionError) as error:  # no such device
        raise UnfitWorkerError(
            f"{batch.config.device} cannot be computed on ({str(error).splitlines()[0]})."
        ) from error
    if request_of(segmenter, outputs.for_manifest(), regressor) != json.loads(batch.request):
        raise UnfitWorkerError(
            f"{', '.join(map(str, batch.models))}: another model, or networks of another backend, than on "
            "the machine that started the run. Models must be on shared storage or be the same everywhere."
        )
    return segmenter, regressor
