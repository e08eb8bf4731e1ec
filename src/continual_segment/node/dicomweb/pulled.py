"""A series as it was retrieved, and what is remembered of it once its images are deleted.

    OUT/pulled/<id>.json     how many objects the archive had, how many CT images, why it is left out

The archive counts all objects of a series, also dose reports and others that are no CT image. Without the
record, such a series would seem to have changed whenever it is looked at. The id is a hash of the UID.

In:  the images of a series, what the archive states of it
Out: PulledRecord, which a later run compares with what the archive states then
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from continual_segment.errors import ConfigError
from continual_segment.files import write_json
from continual_segment.files.dicom.instance import Instance
from continual_segment.files.records import read_json
from continual_segment.node.dicomweb.services import FoundSeries
from continual_segment.node.queue import id_of

FEWEST_SLICES = 3
"""Localisers have fewer."""
RECORDS = "pulled"


@dataclass(frozen=True)
class Pulled:
    """A series on the disk."""

    folder: Path
    images: list[Instance]

    @property
    def left_out(self) -> str:
        """Why it is not segmented; empty where it is."""
        if any(each.is_own for each in self.images):
            return "was made by this package"
        slices = sum(each.frames for each in self.images)
        return f"has {slices} slices" if slices < FEWEST_SLICES else ""


@dataclass(frozen=True)
class PulledRecord:
    """What is known of a series that was retrieved."""

    instances: int | None
    """Objects that the archive stated; None where it did not."""
    images: int
    """CT images among those it sent, repeats counted once."""
    left_out: str
    """Why it is not segmented; empty where it is."""


def write_record(output: Path, series: FoundSeries, pulled: Pulled) -> None:
    """Remember a series whose results are there, or that is left out."""
    record = PulledRecord(series.instances, len(pulled.images), pulled.left_out)
    write_json(_path(output, series), vars(record))


def is_left_out(output: Path, series: FoundSeries) -> bool:
    """Whether it was left out, and the archive states that it has as many objects as then."""
    record = _read(output, series)
    if record is None or series.instances is None:
        return False
    return bool(record.left_out) and record.instances == series.instances


def has_images(output: Path, series: FoundSeries, images: int | None) -> bool:
    """Whether results of so many images are of all that the archive has; True where it does not state it."""
    if series.instances is None:
        return True
    record = _read(output, series)
    if record is None or record.images != images:  # not of these results
        return series.instances == images
    return record.instances == series.instances


def _read(output: Path, series: FoundSeries) -> PulledRecord | None:
    try:
        return read_json(_path(output, series), PulledRecord, ConfigError, "")
    except ConfigError:  # none, or a damaged one: the series is retrieved once more
        return None


def _path(output: Path, series: FoundSeries) -> Path:
    return output / RECORDS / f"{id_of(series.uid)}.json"
