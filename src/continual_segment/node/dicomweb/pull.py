"""Segment the series of an archive: search, retrieve one after the other, segment, perhaps store the results.

    OUT/.pulled-*/      at most two series at a time: the one that is segmented and the next; then deleted
    OUT/...             results, as of a folder of scans; the case is named by the SeriesInstanceUID
    OUT/pulled/         how many objects each series had, and which were left out
    OUT/stored/         what has been stored in which archive

In:  the address of an archive, opened models
Out: results in a folder; failures by series
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from filelock import FileLock, Timeout

from continual_segment.body_parts import BodyPartRegressor
from continual_segment.clinic.formats import FORMATS, format_of_file
from continual_segment.clinic.jobs import Job
from continual_segment.clinic.manifest import FOLDER, request_of, up_to_date
from continual_segment.clinic.outputs import OutputConfig, write_result
from continual_segment.clinic.read import read_case
from continual_segment.clinic.segment_case import announce, segment_case
from continual_segment.clinic.summary import Summary
from continual_segment.errors import ConfigError, sentence_of
from continual_segment.files import write_json
from continual_segment.files.records import read_json
from continual_segment.node.config import DICOM_FORMATS
from continual_segment.node.dicomweb.address import SeriesQuery
from continual_segment.node.dicomweb.http import WebService
from continual_segment.node.dicomweb.pulled import Pulled, has_images, is_left_out, write_record
from continual_segment.node.dicomweb.services import (
    FoundSeries,
    RetrieveLimits,
    retried,
    retrieve_series,
    search_series,
    store_file,
)
from continual_segment.segmentation import MultiSegmenter, Segmenter

log = logging.getLogger(__name__)

PULLED, LOCK = ".pulled-", "lock"


@dataclass(frozen=True)
class PullConfig:
    """Where series come from and where their results go."""

    archive: WebService
    query: SeriesQuery
    store: WebService | None = None
    """That results in DICOM are stored in."""
    limits: RetrieveLimits = field(default_factory=RetrieveLimits)


def segment_archive(
    pull: PullConfig,
    segmenter: Segmenter | MultiSegmenter,
    output: Path,
    outputs: OutputConfig,
) -> dict[str, str]:
    """Segment every CT series that matches; return the failures, series -> sentence."""
    _check(pull, output, outputs)
    found = search_series(pull.archive, pull.query)
    index, shards = outputs.shard
    own = found[index - 1 :: shards]
    log.info("%s: %d CT series match; %d are in this shard.", pull.archive.address, len(found), len(own))
    run = ArchiveRun(pull, segmenter, output, outputs)
    left = [each for each in own if outputs.overwrite or not run.is_done(each)]
    if len(left) < len(own):
        done = len(own) - len(left)
        log.info("%d of %d are done or left out; --overwrite retrieves them again.", done, len(own))
    return run.segment(left)


def _check(pull: PullConfig, output: Path, outputs: OutputConfig) -> None:
    if format_of_file(output) or (output.exists() and not output.is_dir()):
        raise ConfigError(f"{output}: results of an archive are written to a folder. Name a folder.")
    if outputs.engine is not None:
        raise ConfigError("--engine is for scans on shared storage. For an archive, use --shard I/N.")
    if outputs.series is not None or outputs.pick == "all":
        raise ConfigError("Every series of an archive is a case: name the series in the address.")
    if pull.store and not set(DICOM_FORMATS) & set(outputs.formats):
        raise ConfigError(f"An archive stores {', '.join(DICOM_FORMATS)}. Choose one with -ot.")


class ArchiveRun:
    """One series after the other, the next being retrieved meanwhile."""

    def __init__(
        self,
        pull: PullConfig,
        segmenter: Segmenter | MultiSegmenter,
        output: Path,
        outputs: OutputConfig,
    ) -> None:
        self.pull, self.segmenter, self.output, self.outputs = pull, segmenter, output, outputs
        self.regressor = BodyPartRegressor.read(outputs.body_parts) if outputs.body_parts else None
        self.request = request_of(segmenter, outputs.for_manifest(), self.regressor)
        self._stop = threading.Event()

    def job(self, series: FoundSeries, source: Path) -> Job:
        return Job(series.uid, source, self.output, alone=False, pick=self.outputs.pick)

    def is_done(self, series: FoundSeries) -> bool:
        """Whether there is nothing to do for a series, as far as the archive's answer to the search shows."""
        return is_left_out(self.output, series) or (self.is_segmented(series) and self.is_stored(series))

    def is_segmented(self, series: FoundSeries) -> bool:
        """Whether the results are there, of all images that the archive has."""
        made_of = up_to_date(self.job(series, self.output), self.request)
        return made_of is not None and has_images(self.output, series, made_of.get("count"))

    def is_stored(self, series: FoundSeries) -> bool:
        """Whether these results are in the archive, if they shall be."""
        if self.pull.store is None:
            return True
        job = self.job(series, self.output)
        try:
            found = read_json(self._stored_path(job), dict, ConfigError, "")
            return found == self._record(job, self.pull.store)
        except (ConfigError, OSError):
            return False

    def segment(self, every: Sequence[FoundSeries]) -> dict[str, str]:
        """Segment these series, once; return the failures."""
        self.output.mkdir(parents=True, exist_ok=True)
        with pulled_folder(self.output) as folder, ThreadPoolExecutor(1) as pool:
            try:
                return self._segment_each(every, lambda series: pool.submit(self._retrieve, folder, series))
            finally:  # the pool waits for its thread, which after Ctrl-C retrieves what nobody wants
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)

    def _segment_each(
        self, every: Sequence[FoundSeries], retrieve: Callable[[FoundSeries], Future[Pulled | None]]
    ) -> dict[str, str]:
        failures: dict[str, str] = {}
        coming = [retrieve(each) for each in every[:1]]
        for number, series in enumerate(every, start=1):
            current = coming.pop()
            coming = [retrieve(each) for each in every[number : number + 1]]
            try:
                line = self._segment_one(series, current)
                log.info("[%d/%d] %s", number, len(every), line)
            except Exception as error:  # one bad series must not stop the others
                failures[series.uid] = sentence_of(error)
                log.error("%s: failed, %s", series.uid, sentence_of(error))
                log.debug("how it came about", exc_info=error)
        return failures

    def _retrieve(self, folder: Path, series: FoundSeries) -> Pulled | None:
        """None where there are results already, which only need to be stored."""
        if self.is_segmented(series) and not self.outputs.overwrite:
            return None

        def attempt() -> Pulled:
            place = Path(tempfile.mkdtemp(dir=folder)) / "series"
            try:
                images = retrieve_series(self.pull.archive, series, place, self.pull.limits, self._stop)
            except BaseException:
                shutil.rmtree(place.parent, ignore_errors=True)
                raise
            return Pulled(place, images)

        return retried(attempt, self._stop)

    def _segment_one(self, series: FoundSeries, coming: Future[Pulled | None]) -> str:
        """A line on what was found."""
        pulled = coming.result()
        if pulled is None:
            self._store(self.job(series, self.output))
            return f"{series.uid}: stored."
        try:
            if pulled.left_out:
                write_record(self.output, series, pulled)
                return f"{series.uid}: left out, because it {pulled.left_out}."
            job = self.job(series, pulled.folder)
            summary = self._results(job)
            write_record(self.output, series, pulled)
            self._store(job)
            return summary.line()
        finally:
            shutil.rmtree(pulled.folder.parent, ignore_errors=True)

    def _results(self, job: Job) -> Summary:
        case = read_case(job, None, self.outputs.force)
        announce(case)
        result = segment_case(case, self.segmenter, self.regressor, self.outputs)
        write_result(result, self.outputs, self.request)
        return result.summary

    def _store(self, job: Job) -> None:
        """Results have the same UIDs whenever they are made, so storing them again does no harm."""
        if self.pull.store is None:
            return
        for name in set(DICOM_FORMATS) & set(self.outputs.formats):
            path = job.folder / job.file_name(FORMATS[name].ending)
            if path.exists():  # not where no organ was found; then `write_result` has removed an earlier one
                retried(partial(store_file, self.pull.store, path))
        write_json(self._stored_path(job), self._record(job, self.pull.store))

    def _stored_path(self, job: Job) -> Path:
        return job.beside(self.output, "stored", ".json")

    def _record(self, job: Job, service: WebService) -> dict[str, str]:
        manifest = job.beside(self.output, FOLDER, ".json").read_bytes()
        return {"archive": str(service.address), "manifest": hashlib.sha256(manifest).hexdigest()}


@contextmanager
def pulled_folder(output: Path) -> Iterator[Path]:
    """A folder for series on their way; those of runs that were killed are deleted."""
    for old in output.glob(f"{PULLED}*"):
        try:
            with FileLock(old / LOCK, timeout=0):
                shutil.rmtree(old, ignore_errors=True)
        except Timeout:
            continue  # another shard's
    folder = Path(tempfile.mkdtemp(prefix=PULLED, dir=output))
    with FileLock(folder / LOCK):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
