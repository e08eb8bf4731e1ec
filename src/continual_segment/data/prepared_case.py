"""PreparedCase: one case of a prepared dataset, whose `case.json` is checked on reading.

Arrays are blosc2, opened on first use in each process and sliced to be read.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import blosc2
import numpy as np

from continual_segment.data.intensity import ON_INPUT, FittedIntensity
from continual_segment.data.network_frame import NetworkFrame
from continual_segment.data.prepare_config import PrepareConfig
from continual_segment.data.prepared_records import ADVICE, CaseRecord
from continual_segment.errors import DatasetError
from continual_segment.files.records import read_json
from continual_segment.names import printable
from continual_segment.volume import Grid, LabelMap, Volume


@dataclass(frozen=True, eq=False)
class PreparedCase:
    """One scan and its labels on the dataset's spacing."""

    name: str
    folder: Path
    grid: Grid
    """Place in the patient, with our axes; `frame` relates the arrays to it."""
    raw_scan: Path
    foreground_rows: dict[int, tuple[int, int]]
    """Per label present, its rows in the foreground table."""
    intensity: FittedIntensity
    """How its stored values become network input."""
    frame: NetworkFrame = field(default_factory=NetworkFrame)
    """Axes of the stored arrays."""
    applied: FittedIntensity | None = None
    """How Hounsfield units became the stored values; None: they are Hounsfield units."""
    numbers: tuple[int, ...] | None = None
    """Stored label -> label, 0 for organs that are left out; None: labels are as they are stored."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the stored arrays."""
        return self.frame.shape(self.grid)

    @property
    def spacing_mm(self) -> tuple[float, float, float]:
        """Of the stored arrays, in the order of their axes."""
        return self.frame.spacing_mm(self.grid)

    @property
    def volume(self) -> Volume:
        """The whole scan in Hounsfield units, as far as clipping left them."""
        voxels = np.asarray(self.scan[:])
        voxels = voxels if self.applied is None else self.applied.to_hu(voxels)
        return Volume(self.frame.from_network(voxels), self.grid)

    def label_map(self, names: dict[int, str]) -> LabelMap:
        """All labels with the names of organ numbers."""
        return LabelMap(self.frame.from_network(np.asarray(self.labels[:])), self.grid, names)

    @property
    def scan(self) -> blosc2.NDArray:
        """Stored values (z, y, x); slice it to read.

        int16 Hounsfield units, clipped as the intensity allows; or network input in the network's axes.
        """
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
    def open(cls, folder: Path, config: PrepareConfig, organs: int) -> PreparedCase:
        """The case of a dataset with that config and number of organs."""
        intensity = config.intensity
        file = folder / "case.json"
        record = read_json(file, CaseRecord, DatasetError, ADVICE)
        if record.name != folder.name:
            raise DatasetError(f"{file}: $.name is {printable(repr(record.name))}, another case. {ADVICE}")
        if (config.nnunet is None) != (record.frame is None):
            raise DatasetError(f"{file}: $.frame and the config of the dataset do not fit. {ADVICE}")
        if (intensity.per_scan or record.frame) and record.intensity is None:
            raise DatasetError(f"{file}: $.intensity is missing; {intensity.kind} needs it. {ADVICE}")
        if (label := max(record.foreground, default=0)) > organs:
            raise DatasetError(
                f"{file}: $.foreground has label {label}, the dataset {organs} organs. {ADVICE}"
            )
        scan, *_ = (path for path, _, _ in record.seen)  # then the label files
        return cls(
            name=folder.name,
            folder=folder,
            grid=record.grid.grid,
            raw_scan=Path(scan),
            foreground_rows=record.foreground,
            intensity=ON_INPUT if record.frame else record.intensity or intensity.fitted(),
            frame=record.frame or NetworkFrame(),
            applied=record.intensity if record.frame else None,
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
