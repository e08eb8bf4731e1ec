"""The fields of `dataset.json` and `case.json` of a prepared dataset, checked on reading.

`prepare` and `PreparedDataset.save` write them. Fields that are not listed here are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from continual_segment.data.intensity import FittedIntensity
from continual_segment.data.network_frame import NetworkFrame
from continual_segment.data.prepare_config import PrepareConfig
from continual_segment.data.splits import Split
from continual_segment.errors import DatasetError
from continual_segment.files.records import read_json
from continual_segment.names import check_file_name
from continual_segment.organs import Organ, check_organs, check_table
from continual_segment.volume import Grid

ADVICE = "Run `conseg prepare` again."

Stamp = tuple[str, int, int]
"""Path, size and time of change of a file."""
Checksum = tuple[str, str]
"""Name and sha256 of a file."""
Positive = Annotated[int, msgspec.Meta(ge=1)]
AffineRow = tuple[float, float, float, float]


@dataclass(frozen=True)
class DatasetHeader:
    """The fields of `dataset.json` that every format has."""

    format: int
    name: str

    def __post_init__(self) -> None:
        check_file_name(self.name, "The dataset", ValueError)


@dataclass(frozen=True)
class DatasetRecord(DatasetHeader):
    """`dataset.json`."""

    organs: tuple[Organ, ...]
    config: PrepareConfig
    cases: dict[str, Split]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_organs(self.organs, ValueError)
        check_table(self.organs, ValueError)
        for name in self.cases:
            check_file_name(name, "The case", ValueError)


@dataclass(frozen=True)
class GridRecord:
    """A Grid with its affine as rows of numbers."""

    shape: tuple[Positive, Positive, Positive]
    affine: tuple[AffineRow, AffineRow, AffineRow, AffineRow]
    orientation: str

    def __post_init__(self) -> None:
        _ = self.grid  # raises for an affine that no Grid can have

    @cached_property
    def grid(self) -> Grid:
        return Grid(self.shape, np.array(self.affine), self.orientation)


@dataclass(frozen=True)
class Origin:
    """What a case was made from."""

    files: tuple[Checksum, ...]
    """The scan, then its labels."""


@dataclass(frozen=True)
class CaseRecord:
    """`case.json`."""

    name: str
    grid: GridRecord
    foreground: dict[Positive, tuple[int, int]]
    """Per label present, its rows in the foreground table."""
    origin: Origin
    seen: tuple[Stamp, ...]
    """Stamps of the files of `origin` when they were last compared."""
    intensity: FittedIntensity | None = None
    """None: the dataset's intensity is the same for every scan."""
    frame: NetworkFrame | None = None
    """Axes of the arrays, where the scan is stored as network input."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.seen) == len(self.origin.files):
            raise ValueError(
                f"seen lists {len(self.seen)} files and origin.files {len(self.origin.files)}; the scan and "
                "its labels were expected in both"
            )

    @property
    def checksums(self) -> dict[Stamp, Checksum]:
        """Stamp of a file -> what reading it found."""
        return dict(zip(self.seen, self.origin.files, strict=True))


def read_fields(file: Path) -> dict[str, Any]:
    """All fields of `dataset.json` or `case.json` in their order, with those that no record lists."""
    return read_json(file, dict[str, Any], DatasetError, ADVICE)
