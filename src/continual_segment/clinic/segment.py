"""segment: scans in, results in every format out, with one loading of the model.

In a batch one process reads the next scan and another writes the last result while this one computes. A scan
that cannot be read, or a process that dies over it, costs that case alone; failures are listed at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from continual_segment.body_parts import BodyPartRegressor
from continual_segment.clinic.formats import FORMATS, format_of_file
from continual_segment.clinic.jobs import Job, list_jobs
from continual_segment.clinic.manifest import is_done, request_of
from continual_segment.clinic.on_engine import Batch, segment_on_engine
from continual_segment.clinic.outputs import OutputConfig, Result, write_result
from continual_segment.clinic.read import Case, read_case
from continual_segment.clinic.segment_case import announce, segment_case
from continual_segment.clinic.summary import Summary
from continual_segment.errors import ConfigError, ContinualSegmentError, sentence_of
from continual_segment.files import is_scan_file
from continual_segment.model import Model
from continual_segment.processes import WorkerProcess
from continual_segment.segmentation import SegmentConfig, open_segmenter

log = logging.getLogger(__name__)

Value = TypeVar("Value")
Compute = Callable[[Case], Result]


def segment(
    source: str | Path,
    model: str | Path | Model | Sequence[str | Path | Model],
    output: str | Path,
    organs: Sequence[str] | None = None,
    config: SegmentConfig | None = None,
    outputs: OutputConfig | None = None,
    packs: Sequence[str] | None = None,
) -> dict[str, str]:
    """Segment a scan, or all of a folder or list, into `output`; return the failures, scan -> sentence.

    A scan is a NIfTI, NRRD or MetaImage file, or a DICOM series as folder or zip. One scan becomes `output`
    itself where that names a file, else `output`/<case>.nii.gz. Of several models, labels are merged.
    `organs` and `packs` restrict what is segmented. What was found is logged, one scan as a table, a batch
    with a line per case. With `outputs.engine` the workers of a cluster segment them, with the same results.
    """
    source, output, outputs = Path(source), Path(output), outputs or OutputConfig()
    models = [model] if isinstance(model, (str, Path, Model)) else model
    opened = [each if isinstance(each, Model) else Model.open(each) for each in models]
    jobs = list_jobs(source, output, names_file(output, outputs), outputs.pick)
    config = config or SegmentConfig()
    # an engine's workers compute, and this machine may lack their device; it checks what was requested
    here = replace(config, device="cpu") if outputs.engine else config
    segmenter = open_segmenter(opened, organs, packs, here)
    regressor = BodyPartRegressor.read(outputs.body_parts) if outputs.body_parts else None
    request = request_of(segmenter, outputs.for_manifest(), regressor)
    jobs = still_to_do(jobs, request, outputs)
    if outputs.engine:
        batch = Batch.of([each.folder for each in opened], organs, packs, config, outputs, request)
        return segment_on_engine(jobs, batch, outputs.engine) if jobs else {}

    def compute(case: Case) -> Result:
        announce(case)
        return segment_case(case, segmenter, regressor, outputs)

    if all(job.alone for job in jobs):
        return segment_one(jobs[0], compute, outputs, request) if jobs else {}
    return segment_batch(jobs, compute, outputs, request)


def segment_one(job: Job, compute: Compute, outputs: OutputConfig, request: dict[str, Any]) -> dict[str, str]:
    """One scan, in this process; a bug of ours keeps its traceback."""
    try:
        result = compute(read_case(job, outputs.series, outputs.force))
        write_result(result, outputs, request)
    except (ContinualSegmentError, OSError, MemoryError) as error:
        return {job.title: sentence_of(error)}
    log.info("%s", result.summary.table())
    return {}


def names_file(output: Path, outputs: OutputConfig) -> bool:
    """Whether the output is a file, which must then have the one format requested."""
    by_name = format_of_file(output)
    if output.is_dir() or not (by_name or is_scan_file(output)):
        return False
    if by_name is None:
        raise ConfigError(
            f"{output}: label maps are written as .nii.gz, .seg.nrrd or .dcm. Name one of these."
        )
    is_dicom = len(outputs.formats) == 1 and FORMATS[outputs.formats[0]].on_slices
    if outputs.formats != (by_name,) and not (output.suffix == ".dcm" and is_dicom):
        raise ConfigError(
            f"{output}: the name is that of a {by_name} file, but {', '.join(outputs.formats)} was "
            f"requested. Name a folder, or use -ot {by_name}."
        )
    return True


def still_to_do(jobs: list[Job], request: dict[str, Any], outputs: OutputConfig) -> list[Job]:
    """This shard's jobs, of a batch without those whose results are there."""
    index, shards = outputs.shard
    own = jobs[index - 1 :: shards]
    left = [job for job in own if job.alone or outputs.overwrite or not is_done(job, request)]
    if not own:
        log.info("Nothing to do: %d cases in %d shards leave shard %d empty.", len(jobs), shards, index)
    elif len(left) < len(own):
        nothing = "" if left else "Nothing to do: "
        done = len(own) - len(left)
        log.info("%s%d of %d cases are done; --overwrite segments them again.", nothing, done, len(own))
    return left


def segment_batch(
    jobs: list[Job], compute: Compute, outputs: OutputConfig, request: dict[str, Any]
) -> dict[str, str]:
    """Read ahead, compute, write behind: one case each at a time."""
    failures: dict[str, str] = {}

    def attempt(job: Job, step: Callable[[], Value]) -> Value | None:
        """One bad scan, or our own bug on it, must not stop a night's batch."""
        try:
            return step()
        except Exception as error:
            failures[job.title] = sentence_of(error)
            log.error("%s: failed, %s", job.case, sentence_of(error))
            log.debug("how it came about", exc_info=error)
            return None

    def finish(number: int, job: Job, summary: Summary) -> None:
        attempt(job, writer.finish)
        if job.title not in failures:
            log.info("[%d/%d] %s", number, len(jobs), summary.line())

    def read(job: Job) -> None:
        attempt(job, partial(reader.start, job, outputs.series, outputs.force))

    with closing(WorkerProcess(read_case)) as reader, closing(WorkerProcess(write_result)) as writer:
        written: tuple[int, Job, Summary] | None = None
        for number, job in enumerate(jobs, start=1):
            if number == 1:
                read(job)
            case = attempt(job, reader.finish) if job.title not in failures else None
            if number < len(jobs):
                read(jobs[number])
            found = case and attempt(job, partial(_summarised, compute, case))
            if found:
                if written:
                    finish(*written)
                attempt(job, partial(writer.start, found[0], outputs, request))
                written = None if job.title in failures else (number, job, found[1])
        if written:
            finish(*written)
    return failures


def _summarised(compute: Compute, case: Case) -> tuple[Result, Summary]:
    result = compute(case)
    return result, result.summary
