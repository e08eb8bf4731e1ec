"""What is asked of a DICOMweb service: which CT series it has, one of them, and to store a result.

In:  WebService
Out: FoundSeries, files in a folder, or nothing where a result is stored; WebError or LocalError otherwise
"""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeVar

from continual_segment.errors import ScanError
from continual_segment.files.dicom.headers import file_at, text
from continual_segment.files.dicom.instance import CT_CLASSES, Instance, read_instance
from continual_segment.node.dicomweb.address import SeriesQuery, is_uid
from continual_segment.node.dicomweb.http import (
    Answer,
    LocalError,
    Request,
    StoppedError,
    WebError,
    WebService,
    local_errors,
)
from continual_segment.node.dicomweb.multipart import (
    DICOM,
    MultipartError,
    MultipartReader,
    boundary_of,
    upload_of,
)

JSON = "application/dicom+json"
JSON_TYPES = (JSON, "application/json")
MODALITY, STUDY, SERIES, COUNT = "00080060", "0020000D", "0020000E", "00201209"
FAILED, STORED, STORED_UID, REASON = "00081198", "00081199", "00081155", "00081197"
PAGE = 200
MOST_SERIES = 1_000_000
LARGEST_JSON_MB = 64.0
ANSWER_SECONDS = 600.0
ATTEMPTS = 3
FIRST_WAIT_SECONDS = 1.0
COUNT_TEXT = re.compile(r"[0-9]{1,9}")

Value = TypeVar("Value")


@dataclass(frozen=True)
class FoundSeries:
    """A CT series of an archive."""

    study: str
    uid: str
    instances: int | None
    """None where the archive does not state it."""


@dataclass(frozen=True)
class RetrieveLimits:
    """What one series may take."""

    series_mb: float = 8192.0
    instances: int = 20_000
    free_disk_mb: float = 2048.0
    """That must be left on the disk."""
    seconds: float = 7200.0


def search_series(service: WebService, query: SeriesQuery) -> list[FoundSeries]:
    """The CT series that match, sorted by UID; QIDO-RS, page by page."""
    found: dict[str, FoundSeries] = {}
    seen: set[str] = set()
    offset = 0
    while rows := retried(partial(_page, service, query, offset)):
        uids = {str(value_of(row, SERIES)) for row in rows}
        if uids <= seen:
            break  # the archive repeats itself
        seen |= uids
        found |= {each.uid: each for each in (_series(service, row) for row in rows) if each}
        offset += len(rows)
        if offset > MOST_SERIES:
            raise WebError(f"{service.address}: more than {MOST_SERIES} series match. Restrict the search.")
    return [found[uid] for uid in sorted(found)]


def retried(step: Callable[[], Value], stop: threading.Event | None = None) -> Value:
    """A step that may fail for a while: tried a few times, with waiting times that double.

    `stop` ends the waiting with a StoppedError.
    """
    stop = stop or threading.Event()
    for attempt in range(ATTEMPTS - 1):
        try:
            return step()
        except WebError as error:
            if not error.transient:
                raise
            if stop.wait(FIRST_WAIT_SECONDS * 2**attempt):
                raise StoppedError(f"Stopped, and not tried again: {error}") from error
    return step()


def _page(service: WebService, query: SeriesQuery, offset: int) -> list[Any]:
    target = query.target(f"{COUNT},{MODALITY}", PAGE, offset)
    with service.ask(Request("GET", target, JSON, LARGEST_JSON_MB, ANSWER_SECONDS)) as answer:
        if answer.status == 204:
            return []
        found = _json(answer)
    if not isinstance(found, list):
        raise WebError(f"{service.address}: the answer to a search is no list.")
    return found


def _json(answer: Answer) -> Any:
    kind = answer.content_type.get_content_type()
    if kind not in JSON_TYPES:
        raise WebError(f"{answer.service}: answered with {kind} in place of {JSON}. Check the address.")
    try:
        return json.loads(answer.read_all())
    except (ValueError, RecursionError) as error:
        raise WebError(
            f"{answer.service}: the answer is no JSON, or not all of it.", transient=True
        ) from error


def _series(service: WebService, row: Any) -> FoundSeries | None:
    """A row of an answer; None where it is no CT, since archives may ignore what they do not know."""
    if value_of(row, MODALITY) not in ("CT", None):
        return None
    study, series, count = (value_of(row, tag) for tag in (STUDY, SERIES, COUNT))
    if not (is_uid(study) and is_uid(series)):
        raise WebError(f"{service.address}: found a series without valid UIDs of study and series.")
    known = isinstance(count, (int, str)) and COUNT_TEXT.fullmatch(str(count))
    return FoundSeries(study, series, int(count) if known else None)


def value_of(row: Any, tag: str) -> Any:
    """The first value of an attribute in the JSON model of DICOM; None where there is none."""
    attribute = row.get(tag) if isinstance(row, dict) else None
    values = attribute.get("Value") if isinstance(attribute, dict) else None
    return values[0] if isinstance(values, list) and values else None


def items_of(row: Any, tag: str) -> list[Any]:
    """The items of a sequence."""
    attribute = row.get(tag) if isinstance(row, dict) else None
    values = attribute.get("Value") if isinstance(attribute, dict) else None
    return values if isinstance(values, list) else []


def retrieve_series(
    service: WebService,
    series: FoundSeries,
    folder: Path,
    limits: RetrieveLimits,
    stop: threading.Event | None = None,
) -> list[Instance]:
    """The CT images of a series as files in a new folder, by WADO-RS; their headers are checked.

    `stop`, set by another thread, ends it with a StoppedError.
    """
    target = f"/studies/{series.study}/series/{series.uid}"
    accept = f'multipart/related; type="{DICOM}"; transfer-syntax=*'
    wanted = Request("GET", target, accept, limits.series_mb, limits.seconds, stop=stop or threading.Event())
    folder.mkdir()
    try:
        with service.ask(wanted) as answer:
            found = list(_images(answer, series, folder, limits))
    except MultipartError as error:
        raise WebError(f"{service.address}: {error}.", transient=error.cut_short) from error
    if len(found) < (series.instances or 1):
        counts = f"{len(found)} of {series.instances or 'all'} objects"
        raise WebError(f"{service.address}: sent {counts} of a series.", transient=True)
    return [each for each in found if each.sop_class in CT_CLASSES]


def _images(answer: Answer, series: FoundSeries, folder: Path, limits: RetrieveLimits) -> Iterator[Instance]:
    reader, seen = MultipartReader(answer.read, boundary_of(answer.content_type)), set[str]()
    while (headers := reader.next_part()) is not None:
        if headers.get_content_type() != DICOM:
            raise MultipartError("a part of the answer is no DICOM file")
        if len(seen) >= limits.instances:
            raise WebError(f"{answer.service}: a series has more than {limits.instances} objects.")
        path = folder / f"{len(seen):06}.dcm"
        with local_errors(path, "written"), path.open("xb") as file:
            reader.copy(partial(_write, file, folder, limits.free_disk_mb))
        instance = _checked(answer, path, series)
        is_new = instance.uid not in seen
        if instance.sop_class not in CT_CLASSES or not is_new:
            path.unlink()  # such as a dose report; an image that comes twice counts once
        if is_new:
            seen.add(instance.uid)
            yield instance


def _write(file: IO[bytes], folder: Path, free_disk_mb: float, piece: bytes) -> None:
    if shutil.disk_usage(folder).free < free_disk_mb * 2**20:
        raise LocalError(f"{folder.parent}: less than {free_disk_mb:g} MB of disk are free, which are kept.")
    file.write(piece)


def _checked(answer: Answer, path: Path, series: FoundSeries) -> Instance:
    try:
        instance = read_instance(path)
    except ScanError as error:
        raise WebError(f"{answer.service}: sent an object that is not readable as DICOM.") from error
    if instance.series_uid != series.uid:
        raise WebError(f"{answer.service}: sent an object of another series than the one requested.")
    return instance


def store_file(service: WebService, path: Path) -> None:
    """Store a DICOM file by STOW-RS; WebError where the service does not confirm it."""
    uid = text(file_at(path).read(pixels=False), "SOPInstanceUID")
    request = Request("POST", "/studies", JSON, LARGEST_JSON_MB, ANSWER_SECONDS, upload_of(path))
    with service.ask(request) as answer:
        found = _json(answer)
    failed = [item for item in items_of(found, FAILED) if value_of(item, STORED_UID) == uid]
    if failed:
        reason = value_of(failed[0], REASON)
        code = f"reason 0x{reason:04X}" if isinstance(reason, int) else "without a reason"
        raise WebError(f"{service.address}: did not store a result, {code}.")
    if uid not in [value_of(item, STORED_UID) for item in items_of(found, STORED)]:
        raise WebError(f"{service.address}: did not confirm that a result is stored ({answer.status}).")
