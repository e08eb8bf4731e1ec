"""Which scans are meant by a path, and where their results go.

In:  a scan file, a DICOM folder or zip, a folder of any of these, or a text file that lists them
Out: Job: a case's name, its scan, and the folder of its results
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from continual_segment.clinic.layouts import (
    case_in_batch,
    is_result,
    left_out,
    listed,
    scan_files_in_study,
    scans_by_layout,
    warn_of_left_out,
)
from continual_segment.errors import ScanError
from continual_segment.files import (
    FORMATS,
    folder_of_medium,
    is_dicom_source,
    is_dicomdir,
    is_scan_file,
    name_of_scan,
    study_of,
)
from continual_segment.files.dicom.choose import series_of_each
from continual_segment.names import check_file_name, printable

LIST_SUFFIX = ".txt"


@dataclass(frozen=True)
class Job:
    """One scan to be segmented."""

    case: str
    source: Path
    folder: Path
    """Of the results."""
    file: str | None = None
    """Name of the one file that was given, where one was."""
    alone: bool = True
    """Whether the folder is for this case only."""
    series: str | None = None
    """Which DICOM series, where the job is for one of several."""
    pick: str | None = None
    """Rule that chooses among several DICOM series."""

    @property
    def title(self) -> str:
        """For reports: the scan, and the case where the scan has several."""
        return str(self.source) if self.series is None else f"{self.source} ({self.case})"

    def file_name(self, ending: str) -> str:
        """Of the case's labels; a format without ending makes a folder of files."""
        if self.file is not None:
            return self.file
        return f"{self.case}{ending}" if ending or not self.alone else ""

    def beside(self, folder: Path, kind: str, ending: str = ".nii.gz") -> Path:
        """In a folder of its own, so that a folder of label maps holds nothing else."""
        return folder / kind / f"{self.case}{ending}"


def list_jobs(source: Path, output: Path, as_file: bool = False, pick: str | None = None) -> list[Job]:
    """Every scan, by its name; `as_file`: the output names a file, not a folder.

    `pick` is the rule where a scan has several DICOM series; with `all` every series is a job.
    """
    if not source.exists():
        raise ScanError(f"{source}: no such file or folder.")
    found = _jobs_at(folder_of_medium(source), output, as_file)
    jobs = [job for each in found for job in _picked(each, pick)]
    if as_file and len(jobs) > 1:
        raise _too_many(output)
    return _checked(sorted(jobs, key=lambda job: job.case))


def _jobs_at(source: Path, output: Path, as_file: bool) -> list[Job]:
    if source.is_file() and source.suffix == LIST_SUFFIX:
        scans = _listed(source)
    elif source.is_dir() and not holds_one_scan(source, output):
        scans = _in_folder(source, output)
    else:
        return [_single(source, output, as_file)]
    if as_file:
        raise _too_many(output)
    return [Job(case_in_batch(scan, case_of(scan)), scan, output, alone=False) for scan in scans]


def _checked(jobs: list[Job]) -> list[Job]:
    """The jobs, if each can be written under its own name without touching a scan."""
    for job in jobs:
        check_file_name(job.case, f"{printable(str(job.source))}: the case", ScanError)
        target = job.folder / job.file_name(".nii.gz")
        if target.exists() and job.source.exists() and target.samefile(job.source):
            raise ScanError(f"{job.source}: the results would overwrite this scan. Choose another output.")
    _refuse_shared_names(jobs)
    return jobs


def _too_many(output: Path) -> ScanError:
    return ScanError(f"{output}: several scans cannot go into one file. Name a folder.")


def _picked(job: Job, pick: str | None) -> list[Job]:
    """The job with its rule, or a job for each series."""
    if pick != "all" or not is_dicom_source(job.source):
        return [replace(job, pick=pick)]
    try:
        found = series_of_each(job.source)
    except ScanError:  # reading the case raises it again, and it is a failure of this case alone
        return [replace(job, pick=pick)]
    names = _unique([f"{job.case}_{'x' if series.number is None else series.number}" for _, series in found])
    if job.file is not None:
        return [replace(job, series=wanted) for wanted, _ in found]
    return [
        replace(job, case=name, series=wanted, alone=False)
        for name, (wanted, _) in zip(names, found, strict=True)
    ]


def _unique(names: list[str]) -> list[str]:
    """Phases may share the number of their series: the second of that name ends in -2."""
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return unique


def _single(source: Path, output: Path, as_file: bool) -> Job:
    if source.is_dir():
        warn_of_left_out(source, scan_files_in_study(source, output))
    if not as_file:
        return Job(case_of(source), source, output)
    case = name_of_scan(output) if is_scan_file(output) else output.stem
    return Job(case.removesuffix(".seg"), source, output.parent, output.name)


def holds_one_scan(folder: Path, output: Path) -> bool:
    """Whether all DICOM files at and below a folder are of one study, and no other scan is there.

    Another scan is a file directly in the folder, or one that a layout names; results are none.
    """
    studies = {study_of(below) for below in (folder, *_folders(folder, output))} - {None}
    others = [path for path in folder.iterdir() if is_scan_file(path)] or scans_by_layout(folder, output)
    return len(studies) == 1 and not others


def _folders(folder: Path, output: Path) -> list[Path]:
    """All folders below but those of results."""
    below = (path for path in sorted(folder.rglob("*")) if path.is_dir())
    return [path for path in below if not is_result(path, folder, output)]


def _in_folder(folder: Path, output: Path) -> list[Path]:
    if study_of(folder) is not None:
        raise ScanError(
            f"{folder}: DICOM files of several studies, or DICOM and other scans, are side by side. "
            "Put every study into a folder of its own."
        )
    scans, beside = _find(folder, output)
    unread = [*beside, *left_out(folder, scans, output)]
    if not scans:
        below = f" Not read: {listed(unread)}." if unread else ""
        raise ScanError(
            f"{folder}: no scan in this folder, or none that may be read. Scans are DICOM, or end in "
            f"{' or '.join(FORMATS)}.{below}"
        )
    warn_of_left_out(folder, unread)
    return scans


def _find(folder: Path, output: Path) -> tuple[list[Path], list[str]]:
    """The scans, and folders of DICOM files that are not read because a layout names another scan there."""
    there = (path for path in folder.iterdir() if not path.name.startswith("."))
    seen = [path for path in there if path.is_file() or not is_result(path, folder, output)]
    files = [path for path in seen if path.is_file() and (is_scan_file(path) or is_dicom_source(path))]
    files = [path for path in files if not is_dicomdir(path)]
    by_layout = scans_by_layout(folder, output)
    named = {folder / path.relative_to(folder).parts[0] for path in by_layout}
    studies = [path for path in seen if path.is_dir() and _has_study(path, output)]
    scans = [*files, *by_layout, *(path for path in studies if path not in named)]
    return scans, [f"{path.name}/: DICOM" for path in studies if path in named]


def _has_study(folder: Path, output: Path) -> bool:
    return any(study_of(below) is not None for below in (folder, *_folders(folder, output)))


def _listed(path: Path) -> list[Path]:
    """The paths of a list, one a line; they may start at the list's own folder."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (UnicodeDecodeError, OSError) as error:
        raise ScanError(f"{path}: the list of scans cannot be read ({error}).") from error
    lines = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    scans = [folder_of_medium(path.parent / line) for line in lines]
    if not scans:
        raise ScanError(f"{path}: the list of scans is empty. Write one path a line.")
    return scans


def _refuse_shared_names(jobs: list[Job]) -> None:
    """Raise where the results of two scans would overwrite each other."""
    scan_of: dict[str, Path] = {}
    for job in jobs:
        if other := scan_of.get(job.case.lower()):  # lower: some file systems ignore case
            target = job.folder / job.case
            raise ScanError(
                f"{other} and {job.source} would both be written to {target}. Rename one of them."
            )
        scan_of[job.case.lower()] = job.source


def case_of(path: Path) -> str:
    """The scan's name without nnU-Net's channel number."""
    if path.is_dir():
        return path.resolve().name
    name = name_of_scan(path) if is_scan_file(path) else path.stem
    return name.removesuffix("_0000")
