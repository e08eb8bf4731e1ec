"""Find the cases of a raw dataset and the names of its labels, without reading a voxel.

Three layouts are detected by the contents of the folder: nnU-Net raw and Decathlon by their `dataset.json`,
TotalSegmentator by its folder per case. What does not fit is collected as sentences, so that a user sees
all of it at once. A case's name becomes a folder's when the dataset is prepared, so it is checked here.

In:  a folder
Out: FoundDataset: layout, label numbers and names, cases, problems, splits that the dataset publishes
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from continual_segment.data.label_list import organ_name_problem, read_label_list, same_organ_problems
from continual_segment.data.meta_table import published_splits
from continual_segment.data.splits import Split
from continual_segment.errors import DatasetError
from continual_segment.files import FORMATS, is_scan_file, name_of_scan
from continual_segment.names import check_file_name, printable, some_of
from continual_segment.organs import find_organ

Layout = Literal["nnunet", "decathlon", "totalsegmentator"]

OTHER_MODALITIES = {"mr", "mri", "t1", "t1w", "t2", "t2w", "flair", "adc", "dwi", "pet", "pt", "us"}


@dataclass(frozen=True)
class RawCase:
    """One scan and its labels."""

    name: str
    scan: Path
    labels: tuple[Path, ...]
    """One file with every organ, or one mask per organ named after it."""


@dataclass(frozen=True)
class FoundDataset:
    """What a folder was found to hold."""

    layout: Layout
    names: dict[int, str]
    """Number in the label files -> organ name as the dataset spells it; 1, 2, ... for one mask per organ."""
    cases: tuple[RawCase, ...]
    problems: tuple[str, ...]
    splits: dict[str, Split] = field(default_factory=dict)
    """Of cases whose split the dataset publishes."""


def find_dataset(folder: Path) -> FoundDataset:
    """Detect the layout and list the cases; DatasetError when the folder is no dataset."""
    if not folder.is_dir():
        raise DatasetError(f"{folder}: there is no such folder. Give the folder that holds the dataset.")
    if any(folder.glob("cases/*/case.json")):
        raise DatasetError(
            f"{folder}: this is a prepared dataset, made by `conseg prepare` to learn from. The raw dataset "
            "was expected, with scans and labels as files: give the folder that it was prepared from."
        )
    if (folder / "dataset.json").is_file():
        return _with_sound_names(_find_described(folder, _read_description(folder / "dataset.json")))
    if _case_folders(folder):
        return _with_sound_names(_find_totalsegmentator(folder))
    raise DatasetError(_no_dataset(folder))


def _with_sound_names(found: FoundDataset) -> FoundDataset:
    """The dataset without the cases whose names cannot be those of folders; each of them is a problem."""
    problems = {case.name: _name_problem(case.name, "The case") for case in found.cases}
    sound = tuple(case for case in found.cases if not problems[case.name])
    return replace(found, cases=sound, problems=(*found.problems, *filter(None, problems.values())))


def _name_problem(name: str, what: str) -> str:
    try:
        check_file_name(name, what, DatasetError)
    except DatasetError as error:
        return str(error)
    return ""


def _no_dataset(folder: Path) -> str:
    inside = sorted(path.name + "/" * path.is_dir() for path in folder.iterdir())
    found = some_of(inside, 6) if inside else "an empty folder"
    nested = sorted(folder.glob("*/dataset.json"))
    hint = (
        f"Did you mean {nested[0].parent}?" if nested else "docs/dataset_format.md shows the three layouts."
    )
    return (
        f"{folder}: this is no dataset. Looked for dataset.json (nnU-Net, Decathlon) and for */ct.nii.gz "
        f"with */segmentations (TotalSegmentator); found {found}. {hint}"
    )


class _JsonObject(dict[str, Any]):
    """A JSON object that remembers repeated keys, each of which would silently lose an organ."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def _read_description(path: Path) -> _JsonObject:
    try:
        description = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_JsonObject)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: this is no valid JSON ({error}). Correct the file.") from error
    if not isinstance(description, _JsonObject) or not isinstance(description.get("labels"), _JsonObject):
        raise DatasetError(f'{path}: the entry "labels" with organ names and numbers is missing. Add it.')
    return description


def _find_described(folder: Path, description: _JsonObject) -> FoundDataset:
    pairs = description["labels"].pairs
    number_first = all(key.isdecimal() for key, _ in pairs)
    if number_first and isinstance(description.get("training"), list):
        layout: Layout = "decathlon"
        names, problems = read_label_list((str(name), number) for number, name in pairs)
        cases, unpaired = _decathlon_cases(folder, description["training"])
    else:
        layout = "nnunet"
        names, problems = read_label_list(pairs)
        cases, unpaired = _nnunet_cases(folder, str(description.get("file_ending", ".nii.gz")))
    channels = description.get("channel_names", description.get("modality", {}))
    problems = _channel_problems(channels) + problems + unpaired
    return FoundDataset(layout, names, tuple(cases), tuple(problems))


def _channel_problems(channels: Any) -> list[str]:
    names = [str(name) for name in channels.values()] if isinstance(channels, dict) else []
    if len(names) > 1:
        return [f"dataset.json lists {len(names)} channels, {', '.join(names)}; one CT channel was expected."]
    if names and set(re.split(r"\W+", names[0].lower())) & OTHER_MODALITIES:
        return [f"dataset.json calls the scans {names[0]!r}; CT was expected, nothing else can be learned."]
    return []


def _nnunet_cases(folder: Path, ending: str) -> tuple[list[RawCase], list[str]]:
    if ending not in FORMATS:
        expected = " or ".join(FORMATS)
        return [], [f"dataset.json has file_ending {ending!r}; {expected} was expected. Convert the files."]
    problems = [
        f"The folder {part} is missing." for part in ("imagesTr", "labelsTr") if not (folder / part).is_dir()
    ]
    scans: dict[str, Path] = {}
    for path in _scan_files(folder / "imagesTr", ending):
        case, channel = _case_and_channel(path.name.removesuffix(ending))
        if channel is None:
            problems.append(f"imagesTr/{path.name} has no channel number. Rename it {case}_0000{ending}.")
        elif channel:
            problems.append(f"imagesTr/{path.name} is a further channel; one channel per scan was expected.")
        else:
            scans[case] = path
    labels = {path.name.removesuffix(ending): path for path in _scan_files(folder / "labelsTr", ending)}
    cases = [RawCase(case, scans[case], (labels[case],)) for case in sorted(scans.keys() & labels.keys())]
    problems += [
        f"{case}: the scan has no label map labelsTr/{case}{ending}." for case in _without(scans, labels)
    ]
    problems += [
        f"{case}: the label map has no scan imagesTr/{case}_0000{ending}." for case in _without(labels, scans)
    ]
    return cases, problems


def _scan_files(folder: Path, ending: str) -> list[Path]:
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in files if path.name.endswith(ending) and not path.name.startswith(".")]


def _case_and_channel(stem: str) -> tuple[str, int | None]:
    match = re.fullmatch(r"(.+)_(\d{4})", stem, re.DOTALL)
    return (match[1], int(match[2])) if match else (stem, None)


def _without(these: dict[str, Path], those: dict[str, Path]) -> list[str]:
    return sorted(these.keys() - those.keys())


def _decathlon_cases(folder: Path, training: list[Any]) -> tuple[list[RawCase], list[str]]:
    cases: list[RawCase] = []
    problems: list[str] = []
    for position, entry in enumerate(training):
        if entry_problems := _entry_problems(entry):
            problems += [f'Entry {position} of "training" in dataset.json {each}' for each in entry_problems]
            continue
        case = RawCase(
            name_of_scan(entry["image"]), _decathlon_scan(folder / entry["image"]), (folder / entry["label"],)
        )
        missing = [path for path in (case.scan, *case.labels) if not path.is_file()]
        problems += [f"{case.name}: dataset.json names {path}, which is not there." for path in missing]
        if not missing:
            cases.append(case)
    repeated = [name for name, count in Counter(case.name for case in cases).items() if count > 1]
    problems += [
        f'{name}: the case is listed more than once under "training" in dataset.json.' for name in repeated
    ]
    return cases, problems


def _entry_problems(entry: Any) -> list[str]:
    """Why an entry cannot name a scan and its labels, each a file inside the dataset's folder."""
    if not isinstance(entry, dict) or not {"image", "label"} <= entry.keys():
        return [f'lacks "image" or "label": {printable(str(entry))}.']
    return [
        f"has the {key} {printable(repr(entry[key]))}; the path of a file below the dataset's folder was "
        "expected, as in ./imagesTr/case_01.nii.gz."
        for key in ("image", "label")
        if not _is_path_inside(entry[key])
    ]


def _is_path_inside(path: Any) -> bool:
    """Whether this is a relative path whose every part is an ordinary name, so that it leads nowhere else."""
    parts = Path(path).parts if isinstance(path, str) else ()
    return bool(parts) and not any(_name_problem(part, "") for part in parts)


def _decathlon_scan(path: Path) -> Path:
    """nnU-Net v1 lists `x.nii.gz` and stores `x_0000.nii.gz`."""
    name = name_of_scan(path)
    numbered = path.with_name(f"{name}_0000{path.name.removeprefix(name)}")
    return numbered if not path.is_file() and numbered.is_file() else path


def _case_folders(folder: Path) -> list[Path]:
    folders = (path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith("."))
    return [path for path in folders if _ct(path) or (path / "segmentations").is_dir()]


def _ct(folder: Path) -> Path | None:
    return next((path for suffix in FORMATS if (path := folder / f"ct{suffix}").is_file()), None)


def _find_totalsegmentator(folder: Path) -> FoundDataset:
    cases: list[RawCase] = []
    problems: list[str] = []
    organs: dict[int, str] = {}
    for case_folder in _case_folders(folder):
        name, scan = case_folder.name, _ct(case_folder)
        masks, mask_problems = _masks(case_folder)
        problems += [f"{name}: {problem}" for problem in mask_problems]
        organs |= {find_organ(name_of_scan(path)).id: find_organ(name_of_scan(path)).name for path in masks}
        if scan is None:
            problems.append(f"{name}: the folder has segmentations but no scan ct.nii.gz.")
        elif not masks:
            problems.append(f"{name}: the scan has no masks segmentations/<organ>.nii.gz.")
        else:
            cases.append(RawCase(name, scan, masks))
    names = {number: organs[organ_id] for number, organ_id in enumerate(sorted(organs), start=1)}
    splits, wrong = published_splits(folder / "meta.csv", {case.name for case in cases})
    return FoundDataset("totalsegmentator", names, tuple(cases), (*problems, *wrong), splits)


def _masks(case_folder: Path) -> tuple[tuple[Path, ...], list[str]]:
    """The masks of a case that are named after an organ, and what is wrong with their names."""
    files = [path for path in sorted(case_folder.glob("segmentations/*")) if is_scan_file(path)]
    wrong = {path: organ_name_problem(name_of_scan(path)) for path in files}
    masks = tuple(path for path in files if not wrong[path])
    problems = [f"segmentations/{path.name} {problem}" for path, problem in wrong.items() if problem]
    return masks, problems + same_organ_problems(map(name_of_scan, masks))
