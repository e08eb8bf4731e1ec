"""Which cases a page shows: scans with their label maps, those that need attention first.

In:  the paths of a command: scans, label maps, folders of either, the results of `conseg segment`
Out: ViewCase: a scan, its label maps under a title each, and what is known of how they were made
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from continual_segment.clinic.jobs import Job, list_jobs
from continual_segment.clinic.manifest import FOLDER as MANIFESTS
from continual_segment.errors import ContinualSegmentError, DatasetError, ScanError
from continual_segment.evaluation.label_source import LabelSource, open_labels
from continual_segment.files import read_labels
from continual_segment.files.records import read_json
from continual_segment.names import check_file_name, printable
from continual_segment.segmentation.clean_up import RemovedIslands
from continual_segment.volume import LabelMap

SCANS = "scans"
"""Folder of a comparison: scans in it, and a folder of label maps beside it for each source of labels."""
TRUTH = "truth"
"""Of these, the one to compare with."""
ENDINGS = (".nii.gz", ".nii", ".seg.nrrd", ".nrrd")
"""Of label maps among results, the first that exists."""

NO_MANIFEST = "There is no manifest: these files are not known to be of one run. Segment the scan again."

Status = Literal["failed", "warning", "good"]
ORDER: tuple[Status, ...] = ("failed", "warning", "good")


@dataclass(frozen=True)
class ViewLabels:
    """One label map of a case, read when it is shown."""

    title: str
    read: Callable[[], LabelMap]
    results: Path | None = None
    """The folder that `conseg segment` wrote, where the label map is from it."""
    removed: tuple[RemovedIslands, ...] = ()
    """What clean-up removed from it."""
    files: frozenset[Path] = frozenset()
    """What was written with it, by paths in the folder of results."""

    def beside(self, case: str, kind: str, ending: str = ".nii.gz") -> Path | None:
        """A file that `conseg segment` wrote with the label map of a case, where it did."""
        if self.results is None:
            return None
        path = Job(case, self.results, self.results).beside(Path(), kind, ending)
        return self.results / path if path in self.files and (self.results / path).is_file() else None


@dataclass(frozen=True)
class ViewCase:
    """One scan, or label maps whose scan was not given."""

    name: str
    scan: Path | None
    labels: tuple[ViewLabels, ...]
    status: Status = "good"
    notes: tuple[str, ...] = ()
    """Sentences on what needs attention."""


@dataclass(frozen=True)
class ManifestInput:
    """What a manifest records of the scan."""

    changed: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """The part of a manifest that is shown."""

    input: ManifestInput = ManifestInput()
    removed_islands: tuple[RemovedIslands, ...] = ()
    files: tuple[str, ...] | None = None
    """Of the result; other files beside them are of another run. None: not known."""

    @property
    def is_warning(self) -> bool:
        return bool(self.input.problems or self.input.warnings)

    @property
    def notes(self) -> tuple[str, ...]:
        found = self.input
        return tuple(map(printable, (*found.problems, *found.warnings, *found.changed)))


def find_cases(paths: Sequence[Path]) -> list[ViewCase]:
    """The cases of `SCAN_OR_FOLDER [LABELS ...]`, or of a folder of results, in the order of their status."""
    first, *others = paths
    if not first.exists():
        raise ScanError(f"{first}: no such file or folder. Check the path.")
    if not others and is_results(first):
        cases = [_without_scan(first, name) for name in _names(first)]
    elif not others and (first / SCANS).is_dir():
        cases = _with_scans(first / SCANS, _beside_scans(first))
    else:
        cases = _with_scans(first, others)
    return sorted(cases, key=lambda case: (ORDER.index(case.status), case.name))


def _beside_scans(folder: Path) -> list[Path]:
    """The folders of label maps, the truth first: it is what others are compared with."""
    folders = [path for path in folder.iterdir() if path.is_dir() and path.name != SCANS]
    return sorted(folders, key=lambda path: (path.name != TRUTH, path.name))


def is_results(folder: Path) -> bool:
    """Whether `conseg segment` wrote this folder."""
    return any((folder / MANIFESTS).glob("*.json"))


def _names(results: Path) -> list[str]:
    names = sorted(path.stem for path in (results / MANIFESTS).glob("*.json"))
    return [check_file_name(name, f"{results}: the case", ScanError) for name in names]


def _without_scan(results: Path, name: str) -> ViewCase:
    labels = _of_results(results)(name)
    hint = "The scan was not given, so labels alone are shown: conseg view SCAN_OR_FOLDER RESULTS shows both."
    if labels is None:
        return ViewCase(name, None, (), "failed", (_no_labels(name, results),))
    status, notes = _from_manifests([labels], name)
    return ViewCase(name, None, (labels,), status, (*notes, hint))


def _with_scans(scans: Path, labels: Sequence[Path]) -> list[ViewCase]:
    jobs = list_jobs(scans, labels[0] if labels else scans.parent / "no_results")
    find = [_labels_at(path, alone=len(jobs) == 1) for path in labels]
    return [_case_of(job, labels, find) for job in jobs]


def _case_of(job: Job, paths: Sequence[Path], find: Sequence[FindLabels]) -> ViewCase:
    found = [each(job.case) for each in find]
    missing = [_no_labels(job.case, path) for path, labels in zip(paths, found, strict=True) if not labels]
    there = tuple(labels for labels in found if labels)
    status, notes = _from_manifests(there, job.case)
    if missing:
        status = "warning" if there else "failed"
    return ViewCase(job.case, job.source, there, status, (*missing, *notes))


FindLabels = Callable[[str], ViewLabels | None]
"""Name of a case -> its label map from one source; None where that source has none."""


def _labels_at(path: Path, alone: bool) -> FindLabels:
    """The label maps that a path of the command means."""
    if path.is_dir():
        return _of_results(path) if is_results(path) else _of_source(path.name, open_labels(path))
    if not path.is_file():
        raise DatasetError(f"{path}: no such file or folder. Check the path.")
    if not alone:
        raise DatasetError(f"{path} is one label map, but several scans were given. Name a folder of them.")
    return lambda case: ViewLabels(path.name, partial(read_labels, path))


def _of_results(folder: Path) -> FindLabels:
    def find(case: str) -> ViewLabels | None:
        check_file_name(case, f"{folder}: the case", ScanError)
        manifest = _read_manifest(folder, case)
        names = [f"{case}{ending}" for ending in ENDINGS if _is_of_result(f"{case}{ending}", manifest)]
        path = next((folder / name for name in names if (folder / name).is_file()), None)
        if path is None:
            return None
        files = frozenset(map(Path, manifest.files or ()))
        read = partial(read_labels, path)
        return ViewLabels(folder.resolve().name, read, folder, manifest.removed_islands, files)

    return find


def _is_of_result(name: str, manifest: Manifest) -> bool:
    """Without a list of files, a label map is shown, but nothing as the reasons for it."""
    return manifest.files is None or name in manifest.files


def _of_source(title: str, source: LabelSource) -> FindLabels:
    """As `conseg evaluate` reads them: a label map may bear the channel number of its scan."""

    def find(case: str) -> ViewLabels | None:
        name = next((each for each in (case, f"{case}_0000") if each in source.case_names), None)
        return ViewLabels(title, partial(source.read, name)) if name else None

    return find


def _no_labels(case: str, path: Path) -> str:
    return f"{printable(case)} has no label map in {path}: segmenting it failed, or wrote other formats."


def _read_manifest(results: Path, case: str) -> Manifest:
    """What the manifest of a case records; one that cannot be read is a warning."""
    path = results / MANIFESTS / f"{check_file_name(case, f'{results}: the case', ScanError)}.json"
    if not path.is_file():
        return Manifest(ManifestInput(warnings=(NO_MANIFEST,)))
    try:
        return read_json(path, Manifest, ScanError, "Segment the scan again.")
    except ContinualSegmentError as error:
        return Manifest(ManifestInput(problems=(str(error),)))


def _from_manifests(labels: Sequence[ViewLabels], case: str) -> tuple[Status, tuple[str, ...]]:
    """Status and notes of a case by all manifests of it."""
    found = [_read_manifest(each.results, case) for each in labels if each.results]
    notes = dict.fromkeys(note for manifest in found for note in manifest.notes)
    return ("warning" if any(each.is_warning for each in found) else "good"), tuple(notes)
