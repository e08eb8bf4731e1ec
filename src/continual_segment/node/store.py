"""The folder of a node: received slices, results and the queue.

    queue.sqlite
    series/<id>/<id of instance>.dcm
    results/<id>-<generation>/...

All names are made of hashes: no text from outside becomes part of a path.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from continual_segment.errors import ConfigError
from continual_segment.files.atomic import make_folder, write_bytes
from continual_segment.node.queue import Queue, QueuedSeries

log = logging.getLogger(__name__)

ENDING = ".dcm"
OWN_FOLDER = re.compile(r"(?P<series>[0-9a-f]{32})(-[0-9]+)?")
"""Names of folders of slices and of results."""


@dataclass(frozen=True)
class Store:
    """Where the files of a node are."""

    folder: Path

    @property
    def queue(self) -> Path:
        return self.folder / "queue.sqlite"

    @property
    def _lock(self) -> Path:
        return self.folder / "node.lock"

    def locked(self) -> FileLock:
        """The lock that a node holds while it runs; ConfigError where another node has it."""
        lock = FileLock(self._lock)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise ConfigError(
                f"{self.folder}: another node runs in this folder. Stop it, or choose another folder."
            ) from error
        return lock

    def in_use(self) -> bool:
        """Whether a node runs in this folder."""
        if not self._lock.exists():
            return False
        try:
            self.locked().release()
        except ConfigError:
            return True
        return False

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def slices_of(self, series: str) -> Path:
        return self.folder / "series" / series

    def results_of(self, series: QueuedSeries) -> Path:
        return self.results / f"{series.id}-{series.generation}"

    def make(self) -> None:
        for folder in (self.folder / "series", self.results):
            make_folder(folder)

    def write(self, series: str, instance: str, content: bytes) -> None:
        """The bytes are on the disk when this returns."""
        make_folder(self.slices_of(series))
        write_bytes(self.slices_of(series) / f"{instance}{ENDING}", content)

    def free_mb(self) -> float:
        return shutil.disk_usage(self.folder).free / 2**20

    def delete(self, series: str) -> None:
        """All files of a series; raises an OSError where one of them is still there."""
        results = [each for each in self.results.iterdir() if each.name.startswith(f"{series}-")]
        delete_folders([self.slices_of(series), *results])

    def delete_results(self, series: QueuedSeries, of_others: bool = False) -> None:
        """The results of this generation of a series, or those of all others.

        What cannot be deleted now is deleted with the series.
        """
        own = self.results_of(series)
        for folder in self.results.glob(f"{series.id}-*"):
            if (folder == own) != of_others:
                shutil.rmtree(folder, ignore_errors=True)

    def sweep(self, queue: Queue) -> None:
        """Delete what a kill left before it was recorded; its sender got no answer and sends it again.

        And what was left of a series that the queue does not have any more.
        """
        self._delete_unknown({each.id for each in queue.all_series()})
        for path in (self.folder / "series").glob("*/*"):
            if not queue.has(path.parent.name, path.stem):
                path.unlink()

    def _delete_unknown(self, known: set[str]) -> None:
        for folder in [*(self.folder / "series").iterdir(), *self.results.iterdir()]:
            name = OWN_FOLDER.fullmatch(folder.name)  # a disk may have folders of its own, such as lost+found
            if name is None or name["series"] in known:
                continue
            try:
                delete_folders([folder])
            except OSError as error:
                log.error("%s: of no series in the queue, and not deleted (%s). Delete it.", folder, error)


def delete_folders(folders: Sequence[Path]) -> None:
    """Delete as much as possible; raise why the rest is still there."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    for folder in folders:
        if folder.exists():
            shutil.rmtree(folder)
