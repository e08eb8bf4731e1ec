"""PreparedCase: one case of a prepared dataset, whose `case.json` is checked on reading.

Arrays are blosc2, opened on first use in each process and sliced to be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import blosc2
import numpy as np

from continual_segment.data.intensity import FittedIntensity, Intensity
from continual_segment.errors import DatasetError
from continual_segment.files.records import as_record
from continual_segment.names import printable
from continual_segment.volume import Grid

PREPARE = "Run `conseg prepare` again."


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
    def open(cls, folder: Path, intensity: Intensity) -> PreparedCase:
        described = read_json(folder / "case.json")
        with damage_named(folder / "case.json"):
            if described["name"] != folder.name:
                raise ValueError(f"it describes the case {printable(repr(described['name']))}")
            fitted = (
                as_record(described.get("intensity"), FittedIntensity, "intensity", DatasetError, PREPARE)
                if intensity.per_scan
                else intensity.fitted()
            )
            grid, (scan, *labels) = described["grid"], [Path(file[0]) for file in described["seen"]]
            return cls(
                name=folder.name,
                folder=folder,
                grid=Grid(tuple(grid["shape"]), np.array(grid["affine"]), grid["orientation"]),
                raw_scan=scan,
                raw_labels=tuple(labels),
                foreground_rows={
                    int(label): (start, stop) for label, (start, stop) in described["foreground"].items()
                },
                intensity=fitted,
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


@contextmanager
def damage_named(file: Path) -> Iterator[None]:
    """Whatever is wrong with the entries of a file becomes a DatasetError that names it."""
    try:
        yield
    except DatasetError as error:
        raise DatasetError(f"{file}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DatasetError(
            f"{file}: cannot be read ({printable(repr(error))}). Run `conseg prepare` again."
        ) from error


def read_json(file: Path) -> dict[str, Any]:
    try:
        described = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DatasetError(f"{file}: cannot be read ({error}). {PREPARE}") from error
    if not isinstance(described, dict):
        raise DatasetError(f"{file}: a JSON object was expected. {PREPARE}")
    return described


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
