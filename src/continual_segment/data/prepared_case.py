"""PreparedCase: one case of a prepared dataset, whose `case.json` is checked on reading.

Arrays are blosc2, opened on first use in each process and sliced to be read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import blosc2
import numpy as np

from continual_segment.data.intensity import FittedIntensity, Intensity
from continual_segment.data.prepared_records import ADVICE, CaseRecord
from continual_segment.errors import DatasetError
from continual_segment.files.records import read_json
from continual_segment.names import printable
from continual_segment.volume import Grid


@dataclass(frozen=True, eq=False)
class PreparedCase:
    """One scan and its labels on the dataset's spacing."""

    name: str
    folder: Path
    grid: Grid
    raw_scan: Path
    raw_labels: tuple[Path, ...]
    foreground_rows: dict[int, tuple[int, int]]
    """Per label present, its rows in the foreground table."""
    intensity: FittedIntensity
    """How its Hounsfield units become network input."""
    numbers: tuple[int, ...] | None = None
    """Stored label -> label, 0 for organs that are left out; None: labels are as they are stored."""

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.grid.shape

    @property
    def spacing_mm(self) -> tuple[float, float, float]:
        return self.grid.spacing_mm

    @property
    def scan(self) -> blosc2.NDArray:
        """int16 Hounsfield units (z, y, x), clipped as the intensity allows; slice it to read."""
        return _opened(self.folder / "scan.b2nd")

    @property
    def labels(self) -> blosc2.NDArray | RenumberedLabels:
        """Organ numbers (z, y, x): 0 background, i the i-th organ of the dataset; slice it to read."""
        stored = _opened(self.folder / "labels.b2nd")
        return stored if self.numbers is None else RenumberedLabels(stored, self.numbers)

    @property
    def foreground(self) -> dict[int, np.ndarray]:
        """Per label present, positions (n, 3) of some of its voxels, drawn at random."""
        table = _opened(self.folder / "foreground.npy")
        return {label: table[start:stop, 1:] for label, (start, stop) in self.foreground_rows.items()}

    @classmethod
    def open(cls, folder: Path, intensity: Intensity, organs: int) -> PreparedCase:
        """The case of a dataset with that intensity and number of organs."""
        file = folder / "case.json"
        record = read_json(file, CaseRecord, DatasetError, ADVICE)
        if record.name != folder.name:
            raise DatasetError(f"{file}: $.name is {printable(repr(record.name))}, another case. {ADVICE}")
        if intensity.per_scan and record.intensity is None:
            raise DatasetError(f"{file}: $.intensity is missing; {intensity.kind} needs it. {ADVICE}")
        if (label := max(record.foreground, default=0)) > organs:
            raise DatasetError(
                f"{file}: $.foreground has label {label}, the dataset {organs} organs. {ADVICE}"
            )
        scan, *labels = (Path(path) for path, _, _ in record.seen)
        return cls(
            name=folder.name,
            folder=folder,
            grid=record.grid.grid,
            raw_scan=scan,
            raw_labels=tuple(labels),
            foreground_rows=record.foreground,
            intensity=record.intensity or intensity.fitted(),
        )

    def renumbered(self, numbers: tuple[int, ...]) -> PreparedCase:
        """The same case with other label numbers; organs whose number is 0 become background."""
        rows = {numbers[label]: rows for label, rows in self.foreground_rows.items() if numbers[label]}
        return replace(self, foreground_rows=rows, numbers=numbers)


class RenumberedLabels:
    """Stored labels with other numbers; sliced as the array they are stored in."""

    def __init__(self, stored: blosc2.NDArray, numbers: tuple[int, ...]) -> None:
        self.stored, self.shape, self.dtype = stored, stored.shape, stored.dtype
        self.numbers = np.array(numbers, stored.dtype)

    def __getitem__(self, place: Any) -> np.ndarray:
        return self.numbers[self.stored[place]]


def _opened(file: Path) -> Any:
    try:
        stat = file.stat()
        return _open_array(file, stat.st_ino, stat.st_mtime_ns)
    except (OSError, RuntimeError, ValueError) as error:
        raise DatasetError(
            f"{file}: cannot be read ({error}). Delete its folder and run `conseg prepare` again."
        ) from error


@lru_cache(maxsize=300)  # every open array holds a file descriptor, and a process often has only 1024
def _open_array(file: Path, inode: int, changed: int) -> Any:
    """An array opened for reading; a file that was replaced since counts as another one."""
    if file.suffix == ".npy":
        return np.load(file, mmap_mode="r", allow_pickle=False)
    return blosc2.open(str(file), mode="r", mmap_mode="r", dparams=blosc2.DParams(nthreads=1))
