"""Commands as a user types them, with their seconds on the wall and the most memory they held.

nnU-Net starts processes that read and write scans, so the memory of a command is that of all its processes:
the sum of their proportional set sizes (shared pages count once), looked at ten times a second.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CONSEG = (sys.executable, "-m", "continual_segment.cli.main")
INTERVAL_S = 0.1
PARENT_FIELD = 1
"""Of /proc/PID/stat, counted after the name of the program."""


@dataclass(frozen=True)
class Measured:
    """What a command took."""

    seconds: float
    peak_bytes: int


def run_measured(command: Sequence[object], environment: Mapping[str, str] | None = None) -> Measured:
    """Run a command to its end, its output on stderr; one that fails raises CalledProcessError."""
    words = [str(word) for word in command]
    begun, peak = time.perf_counter(), 0
    process = subprocess.Popen(words, env=os.environ | dict(environment or {}), stdout=sys.stderr)
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        peak = max(peak, sum(map(held_bytes, process_tree(process.pid))))
        time.sleep(INTERVAL_S)
    process.returncode = os.waitstatus_to_exitcode(ended[1])
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, words)
    # not ru_maxrss: until it starts its program, a child has the memory of the process that started it
    return Measured(time.perf_counter() - begun, peak)


def process_tree(root: int) -> set[int]:
    """The process and all that it started, directly or not."""
    parents = dict(parents_of_all())
    found, added = set(), {root}
    while added:
        found |= added
        added = {process for process, parent in parents.items() if parent in added}
    return found


def parents_of_all() -> Iterator[tuple[int, int]]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended just now
            fields = stat.read_text().rpartition(")")[2].split()
            yield int(stat.parent.name), int(fields[PARENT_FIELD])


def held_bytes(process: int) -> int:
    """Proportional set size; 0 where the process has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
