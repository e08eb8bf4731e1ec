"""The queue: every series with its state, in one SQLite file that survives kill -9 and power loss.

    receiving -> ready -> working -> sending -> done | failed | skipped

A slice that arrives late reopens its series from any later state and raises its generation; what was computed
for the generation before is then discarded. `expired` series wait for their files to be deleted.

In:  what happened to a series, an instance or a delivery
Out: what to do next
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from continual_segment.errors import ConfigError

State = Literal["receiving", "ready", "working", "sending", "done", "failed", "skipped", "expired"]
FINISHED = ("done", "failed", "skipped")
TABLES = """
CREATE TABLE IF NOT EXISTS series (
    id TEXT PRIMARY KEY, calling_ae TEXT NOT NULL, state TEXT NOT NULL, generation INTEGER NOT NULL,
    changed REAL NOT NULL, due REAL NOT NULL DEFAULT 0, attempts INTEGER NOT NULL DEFAULT 0,
    reason TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS instance (
    series TEXT NOT NULL, id TEXT NOT NULL, frames INTEGER NOT NULL, PRIMARY KEY (series, id));
CREATE TABLE IF NOT EXISTS delivery (
    series TEXT NOT NULL, file TEXT NOT NULL, destination TEXT NOT NULL, state TEXT NOT NULL,
    due REAL NOT NULL DEFAULT 0, attempts INTEGER NOT NULL DEFAULT 0, reason TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (series, file, destination));
"""
BUSY_SECONDS = 30.0  # `conseg listen --retry` may write at the same time
SERIES = "id, calling_ae, state, generation, attempts, changed, reason"


@dataclass(frozen=True)
class QueuedSeries:
    """One series in the queue."""

    id: str
    """Made of its UID, which stays out of logs and paths."""
    calling_ae: str
    state: State
    generation: int
    attempts: int
    changed: float
    """Seconds since 1970."""
    reason: str


@dataclass(frozen=True)
class Delivery:
    """One result on its way to one destination."""

    series: str
    file: str
    """Below the folder of results."""
    destination: str
    attempts: int


def id_of(uid: str) -> str:
    """A name for logs, paths and rows: the same for the same UID, and no way back to it."""
    return hashlib.sha256(uid.encode()).hexdigest()[:32]


class Queue:
    """All changes go through here, one at a time; each is on the disk when its function returns."""

    def __init__(self, path: Path, read_only: bool = False) -> None:
        mode = "?mode=ro" if read_only else ""
        self._database = sqlite3.connect(
            f"{path.absolute().as_uri()}{mode}",
            uri=True,
            check_same_thread=False,
            isolation_level=None,
            timeout=BUSY_SECONDS,
        )
        self._lock = threading.RLock()
        try:
            if not read_only:
                self._database.execute("PRAGMA journal_mode = WAL")
                self._database.execute("PRAGMA synchronous = FULL")  # a commit survives power loss
                self._database.executescript(TABLES)
            self.counts()
        except sqlite3.DatabaseError as error:
            raise ConfigError(
                f"{path}: the queue cannot be read ({error}). Restore it, or move the node's folder away and "
                "send the series again."
            ) from error

    def close(self) -> None:
        with self._lock:
            self._database.close()

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is stored, or nothing."""
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock, closing(self._database.execute(query, values)) as cursor:
            return cursor.fetchall()

    # Receiving

    def has(self, series: str, instance: str) -> bool:
        return bool(self._rows("SELECT 1 FROM instance WHERE series = ? AND id = ?", (series, instance)))

    def count_instances(self, series: str) -> int:
        return int(self._rows("SELECT COUNT(*) FROM instance WHERE series = ?", (series,))[0][0])

    def count_frames(self, series: str) -> int:
        return int(self._rows("SELECT TOTAL(frames) FROM instance WHERE series = ?", (series,))[0][0])

    def add(self, series: str, instance: str, frames: int, calling_ae: str) -> bool:
        """Record an instance whose file is on the disk; False where its series is just being deleted."""
        with self._change() as change:
            found = change.execute("SELECT state FROM series WHERE id = ?", (series,)).fetchone()
            if found == ("expired",):
                return False
            new = change.execute(
                "INSERT OR IGNORE INTO instance VALUES (?, ?, ?)", (series, instance, frames)
            )
            if found is None:
                insert = (
                    "INSERT INTO series (id, calling_ae, state, generation, changed) VALUES (?, ?, ?, 1, ?)"
                )
                change.execute(insert, (series, calling_ae, "receiving", time.time()))
            elif new.rowcount:
                self._reopen(change, series, calling_ae)
            return True

    def _reopen(self, change: sqlite3.Connection, series: str, calling_ae: str) -> None:
        change.execute("DELETE FROM delivery WHERE series = ?", (series,))
        change.execute(
            "UPDATE series SET generation = generation + (state != 'receiving'), state = 'receiving', "
            "changed = ?, due = 0, attempts = 0, reason = '', calling_ae = ? WHERE id = ?",
            (time.time(), calling_ae, series),
        )

    def settle(self, silence_seconds: float) -> int:
        """Make series ready that have been silent for long enough; return how many."""
        with self._change() as change:
            query = "UPDATE series SET state = 'ready' WHERE state = 'receiving' AND changed <= ?"
            return change.execute(query, (time.time() - silence_seconds,)).rowcount

    # Segmenting

    def claim(self) -> QueuedSeries | None:
        """The next series to segment; the attempt counts from now on, even if the machine fails in it."""
        with self._change() as change:
            query = "SELECT id FROM series WHERE state = 'ready' AND due <= ? ORDER BY changed LIMIT 1"
            found = change.execute(query, (time.time(),)).fetchone()
            if found is None:
                return None
            change.execute("UPDATE series SET state = 'working', attempts = attempts + 1 WHERE id = ?", found)
        return self.get(found[0])

    def get(self, series: str) -> QueuedSeries:
        (row,) = self._rows(f"SELECT {SERIES} FROM series WHERE id = ?", (series,))
        return QueuedSeries(*row)

    def finish(self, series: QueuedSeries, deliveries: Sequence[tuple[str, str]], reason: str = "") -> bool:
        """Queue results, as files and destinations; False where late slices have made them obsolete."""
        state: State = "sending" if deliveries else "done"
        with self._change() as change:
            if not self._leave_work(change, series, state, reason):
                return False
            rows = [(series.id, file, destination) for file, destination in deliveries]
            insert = "INSERT INTO delivery (series, file, destination, state) VALUES (?, ?, ?, 'waiting')"
            change.executemany(insert, rows)
        return True

    def end(self, series: QueuedSeries, state: Literal["failed", "skipped"], reason: str) -> bool:
        """Set a series aside."""
        with self._change() as change:
            return self._leave_work(change, series, state, reason)

    def retry(self, series: QueuedSeries, reason: str, wait_seconds: float) -> bool:
        with self._change() as change:
            return self._leave_work(change, series, "ready", reason, time.time() + wait_seconds)

    def release(self, series: QueuedSeries) -> None:
        """Give a series back untried, because the node stops."""
        with self._change() as change:
            if self._leave_work(change, series, "ready", series.reason):
                change.execute("UPDATE series SET attempts = attempts - 1 WHERE id = ?", (series.id,))

    def _leave_work(
        self, change: sqlite3.Connection, series: QueuedSeries, state: State, reason: str, due: float = 0.0
    ) -> bool:
        """Whether the series is still in the generation that was worked on."""
        done = change.execute(
            "UPDATE series SET state = ?, reason = ?, due = ?, changed = ? "
            "WHERE id = ? AND state = 'working' AND generation = ?",
            (state, reason, due, time.time(), series.id, series.generation),
        )
        return bool(done.rowcount)

    # Sending

    def next_delivery(self) -> Delivery | None:
        query = (
            "SELECT series, file, destination, attempts FROM delivery WHERE state = 'waiting' AND due <= ? "
            "ORDER BY due, rowid LIMIT 1"
        )
        found = self._rows(query, (time.time(),))
        return Delivery(*found[0]) if found else None

    def delivered(self, delivery: Delivery) -> None:
        self._end_delivery(delivery, "sent", "", 0.0)

    def retry_delivery(self, delivery: Delivery, reason: str, wait_seconds: float) -> None:
        self._end_delivery(delivery, "waiting", reason, time.time() + wait_seconds)

    def fail_delivery(self, delivery: Delivery, reason: str) -> None:
        self._end_delivery(delivery, "failed", reason, 0.0)

    def _end_delivery(self, delivery: Delivery, state: str, reason: str, due: float) -> None:
        key = (delivery.series, delivery.file, delivery.destination)
        with self._change() as change:
            change.execute(
                "UPDATE delivery SET state = ?, reason = ?, due = ?, attempts = attempts + 1 "
                "WHERE series = ? AND file = ? AND destination = ?",
                (state, reason, due, *key),
            )
            self._end_series(change, delivery.series)

    def _end_series(self, change: sqlite3.Connection, series: str) -> None:
        """Done when all is sent; failed when all was tried and something is not."""
        query = "SELECT state, destination, reason FROM delivery WHERE series = ?"
        rows = change.execute(query, (series,)).fetchall()
        failed = [f"not sent to {name}: {reason}" for state, name, reason in rows if state == "failed"]
        if not rows or any(state == "waiting" for state, _, _ in rows):
            return
        change.execute(
            "UPDATE series SET state = ?, reason = ?, changed = ? WHERE id = ? AND state = 'sending'",
            ("failed" if failed else "done", "; ".join(sorted(set(failed))), time.time(), series),
        )

    # Starting, cleaning up, looking

    def recover(self, most_attempts: int) -> None:
        """After a start: work that a kill interrupted is ready again, senders have time to send again."""
        with self._change() as change:
            reason = "The node ended every time it segmented this series."
            change.execute(
                "UPDATE series SET state = 'failed', reason = ? WHERE state = 'working' AND attempts >= ?",
                (reason, most_attempts),
            )
            change.execute("UPDATE series SET state = 'ready' WHERE state = 'working'")
            change.execute("UPDATE series SET changed = ? WHERE state = 'receiving'", (time.time(),))

    def retry_failed(self) -> int:
        """Queue series that were set aside once more, for sending alone where only that failed."""
        with self._change() as change:
            (count,) = change.execute("SELECT COUNT(*) FROM series WHERE state = 'failed'").fetchone()
            unsent = "SELECT series FROM delivery WHERE state = 'failed'"
            change.execute(f"UPDATE series SET state = 'sending' WHERE state = 'failed' AND id IN ({unsent})")
            change.execute("UPDATE delivery SET state = 'waiting', attempts = 0 WHERE state = 'failed'")
            change.execute("UPDATE series SET state = 'ready', attempts = 0, due = 0 WHERE state = 'failed'")
            return int(count)

    def expire(self, keep_hours: float) -> list[str]:
        """Finished series whose files may be deleted now; `forget` each after that."""
        with self._change() as change:
            query = f"UPDATE series SET state = 'expired' WHERE state IN {FINISHED} AND changed < ?"
            change.execute(query, (time.time() - 3600 * keep_hours,))
        return [name for (name,) in self._rows("SELECT id FROM series WHERE state = 'expired'")]

    def forget(self, series: str) -> None:
        with self._change() as change:
            for table, key in (("delivery", "series"), ("instance", "series"), ("series", "id")):
                change.execute(f"DELETE FROM {table} WHERE {key} = ?", (series,))

    def all_series(self) -> list[QueuedSeries]:
        return [QueuedSeries(*row) for row in self._rows(f"SELECT {SERIES} FROM series ORDER BY changed")]

    def counts(self) -> dict[str, int]:
        """Number of series by state."""
        return dict(self._rows("SELECT state, COUNT(*) FROM series GROUP BY state ORDER BY state"))
