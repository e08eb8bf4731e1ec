"""Where label maps to compare come from: a raw dataset, or a plain folder of label files.

A label map is comparable only when its numbers have names, because every dataset numbers its organs in its
own way. A plain folder has them in each file's header, as `conseg segment` writes them, or in a
`dataset.json` beside the files or one folder up.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from continual_segment.data.label_list import read_label_list
from continual_segment.data.raw import RawDataset
from continual_segment.data.splits import Split
from continual_segment.errors import DatasetError
from continual_segment.files import is_scan_file, name_of_scan, read_labels
from continual_segment.volume import LabelMap


class LabelSource(Protocol):
    """Label maps by the name of their case."""

    @property
    def case_names(self) -> Collection[str]: ...

    @property
    def splits(self) -> Mapping[str, Split]:
        """By case, as `conseg prepare` splits them; empty where not all cases of a dataset are at hand."""

    def read(self, case_name: str) -> LabelMap: ...


def open_labels(folder: Path) -> LabelSource:
    """A folder with label files in it, or else a raw dataset in any layout that `conseg prepare` reads."""
    if not folder.is_dir():
        raise DatasetError(f"{folder}: there is no such folder. Check the path.")
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and is_scan_file(path)]
    return LabelFolder(files, _names_beside(folder)) if files else RawLabels(folder)


class LabelFolder:
    """Files `<case>.nii.gz`."""

    def __init__(self, files: Collection[Path], names: dict[int, str]) -> None:
        self.paths = {name_of_scan(path): path for path in files}
        self.names = names

    @property
    def case_names(self) -> Collection[str]:
        return self.paths.keys()

    @property
    def splits(self) -> Mapping[str, Split]:
        return {}

    def read(self, case_name: str) -> LabelMap:
        labels = read_labels(self.paths[case_name])
        if labels.names:
            return labels
        if not self.names:
            raise DatasetError(
                f"{self.paths[case_name]}: neither the header nor a dataset.json beside it names the labels. "
                'Add a dataset.json with {"labels": {"background": 0, "liver": 1, ...}}.'
            )
        return replace(labels, names=self.names)


class RawLabels:
    """The labels of a raw dataset."""

    def __init__(self, folder: Path) -> None:
        self.dataset = RawDataset.open(folder, check=False, progress=False)
        self.cases = {case.name: case for case in self.dataset.cases}

    @property
    def case_names(self) -> Collection[str]:
        return self.cases.keys()

    @property
    def splits(self) -> Mapping[str, Split]:
        return self.dataset.splits

    def read(self, case_name: str) -> LabelMap:
        return self.dataset.read_labels(self.cases[case_name])


@dataclass(frozen=True)
class Pair:
    """One case: its name in the truth and in the predictions."""

    name: str
    predicted_as: str


def pair_cases(predictions: LabelSource, truth: LabelSource) -> list[Pair]:
    """Cases with both. A prediction may still bear the channel number of the scan, `<case>_0000`."""
    names = {name.removesuffix("_0000"): name for name in predictions.case_names}
    names |= {name: name for name in predictions.case_names}  # the very same name comes first
    return [Pair(name, names[name]) for name in sorted(truth.case_names) if name in names]


def _names_beside(folder: Path) -> dict[int, str]:
    path = next((p / "dataset.json" for p in (folder, folder.parent) if (p / "dataset.json").is_file()), None)
    if path is None:
        return {}
    try:
        labels = json.loads(path.read_text(encoding="utf-8"))["labels"]
        numbers_first = all(key.isdecimal() for key in labels)  # older files: {"1": "liver"}
        names, problems = read_label_list((v, k) if numbers_first else (k, v) for k, v in labels.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetError(
            f"{path}: its labels cannot be read ({error!r}). "
            'Expected {"labels": {"background": 0, "liver": 1, ...}}.'
        ) from error
    if problems:
        raise DatasetError("\n".join(f"{path}: {problem}" for problem in problems))
    return names
