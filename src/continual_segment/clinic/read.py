"""Read one case and look at it; light enough to run in a process of its own, without torch."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from continual_segment.clinic.jobs import Job
from continual_segment.clinic.sanity import Sanity, check_scan
from continual_segment.files import Source, read_source
from continual_segment.packed import PackedVolume


@dataclass(frozen=True, eq=False)
class Case:
    """A scan that may be segmented."""

    job: Job
    source: Source
    sanity: Sanity
    seconds: float
    """That reading took."""


def read_case(job: Job, series: str | None, force: bool) -> Case:
    """Read and check a scan; `series` chooses among several where the job does not."""
    started = time.perf_counter()
    source = read_source(job.source, job.series or series, force, job.pick)
    sanity = check_scan(str(job.source), source, force)
    original = source.original and PackedVolume.compress(source.original)
    packed = replace(source, volume=PackedVolume.compress(source.volume), original=original)
    return Case(job, packed, sanity, time.perf_counter() - started)  # packed until its results are written
