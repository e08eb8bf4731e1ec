"""PreparedDataset: scans on one spacing, in a store from which a patch is read without the rest.

A folder with `dataset.json` (name, organs, settings, split) and, per case, `cases/<name>/`:
`scan.b2nd` (int16 Hounsfield units), `labels.b2nd` (organ numbers, 1 for the first organ of the dataset),
`foreground.npy` (rows: label, z, y, x of some of its voxels) and `case.json` (grid, where it came from and,
for kinds of intensity that depend on the scan, its statistics). The arrays are blosc2: chunked, compressed
and mapped into memory, so that many processes share them.

Everything here is plain data and pickles; arrays are opened on first use in each process.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

import blosc2
import numpy as np

from continual_segment.data.intensity import FittedIntensity, Intensity
from continual_segment.errors import DatasetError
from continual_segment.files.atomic import write_json
from continual_segment.files.records import Record, as_record
from continual_segment.organs import Organ
from continual_segment.volume import Grid

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
FORMATS = (2, 3)
"""Of prepared datasets that can be read; 3 has another intensity than a window, which 2 cannot express."""


@dataclass(frozen=True)
class PrepareConfig:
    """What every scan is brought to before a network sees it."""

    spacing_mm: tuple[float, float, float]
    """Voxel size (z, y, x)."""
    intensity: Intensity = field(default_factory=Intensity)
    """How Hounsfield units become network input."""
    window_hu: tuple[float, float] | None = None
    """Short for Intensity.window(least, greatest), and wins over another window; once constructed, None."""

    def __post_init__(self) -> None:
        spacing = tuple(map(float, self.spacing_mm))
        if len(spacing) != 3 or not all(0 < size < 100 for size in spacing):
            raise ValueError(
                f"spacing_mm is three voxel sizes (z, y, x) in millimetres, not {self.spacing_mm}."
            )
        object.__setattr__(self, "spacing_mm", spacing)
        if self.window_hu is not None:
            object.__setattr__(self, "intensity", self._window_intensity(self.window_hu))
            object.__setattr__(self, "window_hu", None)

    def _window_intensity(self, window_hu: tuple[float, float]) -> Intensity:
        if self.intensity.kind != "window":
            raise ValueError(f"window_hu is given beside an intensity of kind {self.intensity.kind}.")
        return replace(self.intensity, clip_hu=window_hu)

    @property
    def is_window(self) -> bool:
        """Whether the form of version 0.1, spacing and window, expresses this config."""
        return self.intensity == Intensity("window", self.intensity.clip_hu)

    def described(self) -> dict[str, Any]:
        """The config as dataset.json, model.json and fingerprints have it.

        What version 0.1 could express keeps its form, and so every model its fingerprint.
        """
        if self.is_window:
            return {"spacing_mm": self.spacing_mm, "window_hu": self.intensity.clip_hu}
        return {"spacing_mm": self.spacing_mm, "intensity": self.intensity.described()}

    @property
    def format(self) -> int:
        """Of a dataset that is prepared with this config."""
        return FORMATS[0] if self.is_window else FORMATS[1]


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
    def labels(self) -> blosc2.NDArray:
        """Organ numbers (z, y, x): 0 background, i the i-th organ of the dataset; slice it to read."""
        return _opened(self.folder / "labels.b2nd")

    @property
    def foreground(self) -> dict[int, np.ndarray]:
        """Per label present, positions (n, 3) of some of its voxels, drawn at random."""
        table = _opened(self.folder / "foreground.npy")
        return {label: table[start:stop, 1:] for label, (start, stop) in self.foreground_rows.items()}

    @classmethod
    def open(cls, folder: Path, intensity: Intensity) -> PreparedCase:
        described = _read_json(folder / "case.json")
        if intensity.per_scan:
            fitted = _record(folder / "case.json", described.get("intensity"), FittedIntensity)
        else:
            fitted = intensity.fitted()
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
            intensity=fitted,
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
            config=_record(folder / "dataset.json", described["config"], PrepareConfig),
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
            "format": self.config.format,
            "name": self.name,
            "organs": [asdict(organ) for organ in self.organs],
            "config": self.config.described(),
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
        described = [[organ.name for organ in self.organs], self.config.described(), self.splits, cases]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()

    @cached_property
    def _cases(self) -> dict[str, PreparedCase]:
        intensity = self.config.intensity
        return {name: PreparedCase.open(self.case_folder(name), intensity) for name in self.splits}


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
    if described.get("format") not in FORMATS:
        raise DatasetError(
            f"{file}: format {described.get('format')!r}, this version reads {FORMATS[0]} and {FORMATS[1]}. "
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


def _record(file: Path, data: Any, kind: type[Record]) -> Record:
    return as_record(data, kind, str(file), DatasetError, "Run `conseg prepare` again.")


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
