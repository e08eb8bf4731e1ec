"""PreparedDataset: scans on one spacing, in a store from which a patch is read without the rest.

A folder with `dataset.json` (name, organs, settings, split) and, per case, `cases/<name>/`:
`scan.b2nd` (int16 Hounsfield units), `labels.b2nd` (organ numbers, 1 for the first organ of the dataset),
`foreground.npy` (rows: label, z, y, x of some of its voxels) and `case.json` (grid and where it came
from). The arrays are blosc2: chunked, compressed and mapped into memory, so that many processes share them.

Everything here is plain data and pickles; arrays are opened on first use in each process.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import blosc2
import numpy as np

from continual_segment.data.splits import SPLITS, Split
from continual_segment.errors import DatasetError
from continual_segment.files.atomic import write_json
from continual_segment.organs import Organ
from continual_segment.volume import Grid

FORMAT = 2
"""Raised when a prepared dataset of before can no longer be read."""


@dataclass(frozen=True)
class PrepareConfig:
    """What every scan is brought to before a network sees it."""

    spacing_mm: tuple[float, float, float]
    """Voxel size (z, y, x)."""
    window_hu: tuple[float, float] = (-1024.0, 1024.0)
    """Values outside are clipped; the window becomes [-1, 1]."""

    def __post_init__(self) -> None:
        spacing, window = tuple(map(float, self.spacing_mm)), tuple(map(float, self.window_hu))
        if len(spacing) != 3 or not all(0 < size < 100 for size in spacing):
            raise ValueError(
                f"spacing_mm is three voxel sizes (z, y, x) in millimetres, not {self.spacing_mm}."
            )
        if len(window) != 2 or not -32768 <= window[0] < window[1] <= 32767:
            raise ValueError(f"window_hu is (least, greatest) in Hounsfield units, not {self.window_hu}.")
        object.__setattr__(self, "spacing_mm", spacing)
        object.__setattr__(self, "window_hu", window)


def normalise(hu: np.ndarray, window_hu: tuple[float, float]) -> np.ndarray:
    """Clip to the window and map it linearly to [-1, 1]; float32."""
    low, high = window_hu
    clipped = np.clip(hu, low, high).astype(np.float32, copy=False)
    return (clipped - np.float32((low + high) / 2)) / np.float32((high - low) / 2)


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

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.grid.shape

    @property
    def spacing_mm(self) -> tuple[float, float, float]:
        return self.grid.spacing_mm

    @property
    def scan(self) -> blosc2.NDArray:
        """int16 Hounsfield units (z, y, x), clipped to the window; slice it to read."""
        return _opened(self.folder / "scan.b2nd")

    @property
    def labels(self) -> blosc2.NDArray:
        """Organ numbers (z, y, x): 0 background, i the i-th organ of the dataset; slice it to read."""
        return _opened(self.folder / "labels.b2nd")

    @property
    def foreground(self) -> dict[int, np.ndarray]:
        """Per label present, positions (n, 3) of some of its voxels, drawn at random."""
        table = _opened(self.folder / "foreground.npy")
        return {label: table[start:stop, 1:] for label, (start, stop) in self.foreground_rows.items()}

    @classmethod
    def open(cls, folder: Path) -> PreparedCase:
        described = _read_json(folder / "case.json")
        grid, (scan, *labels) = described["grid"], [Path(file[0]) for file in described["seen"]]
        return cls(
            name=described["name"],
            folder=folder,
            grid=Grid(tuple(grid["shape"]), np.array(grid["affine"]), grid["orientation"]),
            raw_scan=scan,
            raw_labels=tuple(labels),
            foreground_rows={
                int(label): (start, stop) for label, (start, stop) in described["foreground"].items()
            },
        )


class PreparedDataset:
    """What `prepare` wrote; see the module's text for the folder."""

    def __init__(
        self,
        folder: Path,
        name: str,
        organs: tuple[Organ, ...],
        config: PrepareConfig,
        splits: dict[str, Split],
    ) -> None:
        self.folder = folder
        self.name = name
        self.organs = organs
        self.config = config
        self.splits = splits
        """Case name -> split, in the order of the raw dataset."""

    @classmethod
    def open(cls, folder: str | Path) -> PreparedDataset:
        """Read the description; arrays are opened when a case is asked for them."""
        folder = Path(folder)
        described = _description(folder)
        dataset = cls(
            folder=folder,
            name=described["name"],
            organs=tuple(Organ(**organ) for organ in described["organs"]),
            config=PrepareConfig(**described["config"]),
            splits=described["cases"],
        )
        missing = [name for name in dataset.splits if not (dataset.case_folder(name) / "case.json").is_file()]
        if missing:
            raise DatasetError(
                f"{folder}: {len(missing)} of {len(dataset.splits)} cases are missing "
                f"({', '.join(missing[:5])}{', …' if len(missing) > 5 else ''}). "
                "Run `conseg prepare` again; it only makes what is missing."
            )
        return dataset

    def save(self) -> None:
        described = {
            "format": FORMAT,
            "name": self.name,
            "organs": [asdict(organ) for organ in self.organs],
            "config": asdict(self.config),
            "cases": self.splits,
        }
        write_json(self.folder / "dataset.json", described)

    def case_folder(self, name: str) -> Path:
        return self.folder / "cases" / name

    def case_names(self, split: Split) -> tuple[str, ...]:
        if split not in SPLITS:
            raise ValueError(f"A split is one of {', '.join(SPLITS)}, not {split!r}.")
        return tuple(name for name, its_split in self.splits.items() if its_split == split)

    def case(self, name: str) -> PreparedCase:
        if name not in self.splits:
            raise DatasetError(
                f"{self.folder}: there is no case {name!r}; the dataset lists {len(self.splits)} others."
            )
        return self._cases[name]

    @cached_property
    def fingerprint(self) -> str:
        """Changes with organs, settings, split and any case; a stopped run goes on only with the same.

        `case.json` stands for the case: it has checksums of the files it was made from. Where these lie
        and how old they are, which a copy changes, does not count.
        """
        cases = {name: _read_json(self.case_folder(name) / "case.json") for name in self.splits}
        for case in cases.values():
            case.pop("seen", None)
        described = [[organ.name for organ in self.organs], asdict(self.config), self.splits, cases]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()

    @cached_property
    def _cases(self) -> dict[str, PreparedCase]:
        return {name: PreparedCase.open(self.case_folder(name)) for name in self.splits}


def default_folder(raw: Path) -> Path:
    """Where `conseg prepare` writes a raw dataset unless -o is given."""
    return Path(f"{raw.resolve().name}_prepared")


def _description(folder: Path) -> dict[str, Any]:
    """dataset.json of a prepared dataset, or the sentence that says what the folder is instead."""
    if not folder.is_dir():
        raise DatasetError(f"{folder}: there is no such folder. `conseg prepare RAW -o {folder}` makes it.")
    file = folder / "dataset.json"
    if not file.is_file() and (folder / "cases").is_dir():
        raise DatasetError(
            f"{folder}: the preparation was not finished. "
            "Run `conseg prepare` again; finished cases are kept."
        )
    if not file.is_file() or not (folder / "cases").is_dir():
        raise DatasetError(
            f"{folder}: this is no prepared dataset (dataset.json and cases/ expected). "
            f"If it is a raw dataset, prepare it first: conseg prepare {folder}"
        )
    described = _read_json(file)
    if described.get("format") != FORMAT:
        raise DatasetError(
            f"{file}: format {described.get('format')!r}, this version reads {FORMAT}. "
            "Run `conseg prepare` again."
        )
    return described


def _read_json(file: Path) -> dict[str, Any]:
    try:
        described = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DatasetError(f"{file}: cannot be read ({error}). Run `conseg prepare` again.") from error
    if not isinstance(described, dict):
        raise DatasetError(f"{file}: a JSON object was expected. Run `conseg prepare` again.")
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
