"""Work: segment one series after the other, in a process of its own that may die without harm.

In:  series that are ready
Out: results on the disk and their deliveries in the queue; failures with a reason
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from continual_segment.clinic.formats import FORMATS
from continual_segment.clinic.jobs import Job
from continual_segment.clinic.manifest import request_of
from continual_segment.clinic.outputs import OutputConfig, write_result
from continual_segment.clinic.read import read_case
from continual_segment.clinic.segment_case import segment_case
from continual_segment.errors import ScanError, WorkerError
from continual_segment.files.dicom.instance import read_instance
from continual_segment.model import Model
from continual_segment.node.config import NodeConfig, Rule
from continual_segment.node.queue import Queue, QueuedSeries
from continual_segment.node.reason import reason_of
from continual_segment.node.rules import rule_for
from continual_segment.node.store import Store
from continual_segment.processes import WorkerProcess
from continual_segment.segmentation import MultiSegmenter, Segmenter, open_segmenter

log = logging.getLogger(__name__)

KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has one for both
NO_ORGAN = "No organ was found, so there was nothing to send."
TOO_LATE = (
    "Segmenting took longer than {:g} s and was stopped. Raise seconds_per_series in [limits], or let the "
    "rule do less: fewer organs, less overlap, a GPU."
)


def ignore_signals() -> None:
    """Ctrl-C and systemd signal all processes of a node; the node alone decides when its worker ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def segment_series(job: Job, rule: Rule, formats: Sequence[str]) -> None:
    """Segment the slices of a job into its folder; runs in the worker process."""
    outputs = OutputConfig(formats=tuple(formats))
    segmenter = _segmenter(rule)
    case = read_case(job, None, force=False)
    result = segment_case(case, segmenter, None, outputs)
    write_result(result, outputs, request_of(segmenter, outputs.for_manifest()))


@lru_cache(maxsize=2)
def _segmenter(rule: Rule) -> Segmenter | MultiSegmenter:
    """Models are loaded once, and two at a time at most."""
    models = [Model.open(folder) for folder in rule.model]
    config = replace(rule.segment, progress=False)
    return open_segmenter(models, rule.organs or None, rule.packs or None, config)


class Worker:
    """Takes series from the queue, one at a time."""

    def __init__(
        self,
        config: NodeConfig,
        queue: Queue,
        store: Store,
        process: WorkerProcess[None] | None = None,
    ) -> None:
        self.config, self.queue, self.store = config, queue, store
        self._process = process or WorkerProcess(segment_series, ignore_signals)
        self._started: float | None = None
        self._is_late = False
        """Whether the series is stopped, or about to be, because it takes too long."""
        self._stopping = False
        self._unrecorded: tuple[QueuedSeries, Exception] | None = None
        """A failure that the queue could not store, on a full disk for instance."""

    def step(self) -> bool:
        """Segment the next series; False where none is ready."""
        self._record()
        series = self.queue.claim()
        if series is None:
            return False
        try:
            self._attempt(series)
        except Exception as error:  # a bad scan, a process that dies or a bug of ours costs this series alone
            log.debug("how it came about", exc_info=error)
            self._unrecorded = series, error
            self._record()
        return True

    def _record(self) -> None:
        if self._unrecorded:
            self._failed(*self._unrecorded)
            self._unrecorded = None

    def _attempt(self, series: QueuedSeries) -> None:
        if rule := self._rule(series):
            self._finished(series, self._segment(series, rule))
        else:
            self._end(series, "skipped", "No rule matches this series.")

    def _rule(self, series: QueuedSeries) -> Rule | None:
        first = min(self.store.slices_of(series.id).glob("*.dcm"))
        slices = self.queue.count_frames(series.id)
        return rule_for(self.config.rules, read_instance(first), series.calling_ae, slices)

    def _segment(self, series: QueuedSeries, rule: Rule) -> list[tuple[str, str]]:
        """Files of results, by their path in the folder of results, and where each of them is sent."""
        self.store.delete_results(series)
        destinations = self.config.destinations_of(rule)
        formats = list(dict.fromkeys(name for each in destinations for name in each.formats))
        folder = self.store.results_of(series)
        job = Job(series.id, self.store.slices_of(series.id), folder, pick=rule.pick)
        log.info("series %s: segmenting, attempt %d.", series.id, series.attempts)
        self._run(job, rule, formats)
        written = {name: folder / job.file_name(FORMATS[name].ending) for name in formats}
        return [
            (str(written[name].relative_to(self.store.results)), each.name)
            for each in destinations
            for name in each.formats
            if written[name].exists()
        ]

    def _run(self, job: Job, rule: Rule, formats: list[str]) -> None:
        """Let the process do a job, unless `stop_if_late` ends it."""
        self._is_late = False
        self._started = time.monotonic()
        try:
            self._process.start(job, rule, formats)
            self._process.finish()
        except (WorkerError, OSError) as error:  # the latter where it was killed before it had the job
            if self._is_late:
                raise WorkerError(TOO_LATE.format(self.config.limits.seconds_per_series)) from error
            raise
        finally:
            self._started = None

    def _finished(self, series: QueuedSeries, deliveries: list[tuple[str, str]]) -> None:
        if self.queue.finish(series, deliveries, "" if deliveries else NO_ORGAN):
            self.store.delete_results(series, of_others=True)
            log.info("series %s: segmented; %d results to send.", series.id, len(deliveries))
        else:
            self.store.delete_results(series)
            log.info("series %s: more slices came while it was segmented; it starts again.", series.id)

    def _failed(self, series: QueuedSeries, error: Exception) -> None:
        if self._stopping:
            self.queue.release(series)
            return
        reason, attempts = reason_of(error), series.attempts
        if isinstance(error, ScanError) or attempts >= self.config.retries.segment:
            self._end(series, "failed", reason)
            return
        wait = self.config.retries.wait_seconds(attempts)
        log.warning("series %s: attempt %d failed, next in %g s: %s", series.id, attempts, wait, reason)
        self.queue.retry(series, reason, wait)

    def _end(self, series: QueuedSeries, state: Literal["failed", "skipped"], reason: str) -> None:
        self.queue.end(series, state, reason)
        level = logging.ERROR if state == "failed" else logging.INFO
        log.log(level, "series %s: %s: %s", series.id, state, reason)

    def stop_if_late(self) -> None:
        """End a segmentation that takes too long."""
        started = self._started
        if started is not None and time.monotonic() - started > self.config.limits.seconds_per_series:
            self._is_late = True  # before the process dies: the reason is taken from it
            self._kill()

    def stop(self) -> None:
        """End what runs; the series is ready again, and its attempt does not count."""
        self._stopping = True
        self._kill()

    def close(self) -> None:
        self._process.close()

    def _kill(self) -> None:
        process_id = self._process.process_id
        if self._started is not None and process_id is not None:
            with suppress(ProcessLookupError):
                os.kill(process_id, KILL)
