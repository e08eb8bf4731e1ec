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
import logging
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from continual_segment.data.prepare_config import FORMATS, PrepareConfig
from continual_segment.data.prepared_case import PreparedCase
from continual_segment.data.prepared_records import ADVICE, DatasetHeader, DatasetRecord, read_fields
from continual_segment.data.splits import SPLITS, Split
from continual_segment.errors import DatasetError
from continual_segment.files.atomic import write_json
from continual_segment.files.records import as_record
from continual_segment.names import check_file_name, some_of
from continual_segment.organs import Organ

log = logging.getLogger(__name__)


class PreparedDataset:
    """What `prepare` wrote; see the module's text for the folder."""

    def __init__(
        self,
        folder: Path,
        name: str,
        organs: tuple[Organ, ...],
        config: PrepareConfig,
        splits: dict[str, Split],
        stored_organs: tuple[Organ, ...] | None = None,
    ) -> None:
        """`stored_organs` are those of the stored labels, where `organs` are only some of them."""
        self.folder = folder
        self.name = name
        self.organs = organs
        self.config = config
        self.splits = splits
        """Case name -> split, in the order of the raw dataset."""
        self.stored_organs = stored_organs

    @classmethod
    def open(cls, folder: str | Path) -> PreparedDataset:
        """Read the description; arrays are opened on first use."""
        folder = Path(folder)
        record = _description(folder)
        dataset = cls(folder, record.name, record.organs, record.config, record.cases)
        missing = [name for name in dataset.splits if not (dataset.case_folder(name) / "case.json").is_file()]
        if missing:
            raise DatasetError(
                f"{folder}: {len(missing)} of {len(dataset.splits)} cases are missing "
                f"({some_of(missing)}). "
                "Run `conseg prepare` again; it only makes what is missing."
            )
        return dataset

    def save(self) -> None:
        """Write dataset.json, which lists organs, settings and splits."""
        assert self.stored_organs is None  # the labels on disk count all organs
        described = {
            "format": self.config.format,
            "name": self.name,
            "organs": [asdict(organ) for organ in self.organs],
            "config": self.config.described(),
            "cases": self.splits,
        }
        write_json(self.folder / "dataset.json", described)

    def case_folder(self, name: str) -> Path:
        """Where a case is stored."""
        return case_folder(self.folder, name)

    def case_names(self, split: Split) -> tuple[str, ...]:
        """Cases of a split: train, validation or test."""
        if split not in SPLITS:
            raise ValueError(f"A split is one of {', '.join(SPLITS)}, not {split!r}.")
        return tuple(name for name, its_split in self.splits.items() if its_split == split)

    def case(self, name: str) -> PreparedCase:
        """A case by name; DatasetError if the dataset has none of this name."""
        if name not in self.splits:
            raise DatasetError(
                f"{self.folder}: there is no case {name!r}; the dataset lists {len(self.splits)} others."
            )
        return self._cases[name]

    @property
    def absent_organs(self) -> tuple[Organ, ...]:
        """Organs without a single voxel in the training cases, of which nothing can be learned."""
        present = {label for name in self.case_names("train") for label in self.case(name).foreground_rows}
        return tuple(organ for label, organ in enumerate(self.organs, start=1) if label not in present)

    @property
    def left_out(self) -> tuple[Organ, ...]:
        """Organs that the stored labels have and this dataset does not."""
        return tuple(organ for organ in self.stored_organs or () if organ not in self.organs)

    def learnable(self) -> PreparedDataset:
        """The dataset without its absent organs, which count as background; DatasetError if none is left.

        A network that learned an organ from no voxel would still name it in every scan.
        """
        absent = self.absent_organs
        if not absent:
            return self
        names = ", ".join(organ.name for organ in absent)
        kept = tuple(organ for organ in self.organs if organ not in absent)
        if not kept:
            raise DatasetError(
                f"{self.folder}: no training case has a voxel of {names}; there is nothing to learn. Add "
                "cases that show an organ to the raw dataset and prepare it again."
            )
        log.warning("%s: %s is left out, because no training case has a voxel of it.", self.name, names)
        return PreparedDataset(self.folder, self.name, kept, self.config, self.splits, self.organs)

    @cached_property
    def fingerprint(self) -> str:
        """Changes with organs, settings, split and any case; a run resumes only with the same one.

        `case.json` represents the case: it has checksums of the files it was made from. Their paths and
        times, which a copy changes, do not count.
        """
        cases = {name: read_fields(self.case_folder(name) / "case.json") for name in self.splits}
        for case in cases.values():
            case.pop("seen", None)
        described = [[organ.name for organ in self.organs], self.config.described(), self.splits, cases]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()

    @cached_property
    def _cases(self) -> dict[str, PreparedCase]:
        organs = len(self.stored_organs or self.organs)
        cases = {name: PreparedCase.open(self.case_folder(name), self.config, organs) for name in self.splits}
        if self.stored_organs is None:
            return cases
        label = {organ: number for number, organ in enumerate(self.organs, start=1)}
        numbers = (0, *(label.get(organ, 0) for organ in self.stored_organs))
        return {name: case.renumbered(numbers) for name, case in cases.items()}


def case_folder(dataset: Path, name: str) -> Path:
    """Where a case of a prepared dataset is stored; DatasetError for a name that leads anywhere else."""
    return dataset / "cases" / check_file_name(name, "The case", DatasetError)


def default_folder(raw: Path) -> Path:
    """Where `conseg prepare` writes a raw dataset unless -o is given."""
    return Path(f"{raw.resolve().name}_prepared")


def _description(folder: Path) -> DatasetRecord:
    """dataset.json of a prepared dataset; DatasetError names what the folder is instead."""
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
    described = read_fields(file)
    found = as_record(described, DatasetHeader, str(file), DatasetError, ADVICE).format
    if found not in FORMATS:
        raise DatasetError(
            f"{file}: format {found}; this version reads {FORMATS[0]} and {FORMATS[1]}. {ADVICE}"
        )
    return as_record(described, DatasetRecord, str(file), DatasetError, ADVICE)
