"""Scans in folders of a known layout, and what a batch does not read.

TotalSegmentator's dataset   CASE/ct.nii.gz
BIDS                         sub-X/ct/NAME_ct.nii.gz, also with ses-Y after sub-X

Other formats than NIfTI are found by the same names. What is neither read nor known to be something else is
listed, so that no case is missing in the results without a word.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from continual_segment.files import is_scan_file, name_of_scan
from continual_segment.names import printable, some_of

log = logging.getLogger(__name__)

CT = "ct"
PATTERNS = ("*/ct.*", "sub-*/ct/*_ct.*", "sub-*/ses-*/ct/*_ct.*", "ct/*_ct.*", "ses-*/ct/*_ct.*")
"""Below a dataset, or in the last two below one subject."""
LABELS = "segmentations"
"""Folder beside a ct.nii.gz."""
NO_SCANS = (".txt", ".json", ".csv", ".tsv", ".md", ".html", ".pdf", ".log", ".raw", ".zraw", ".raw.gz")
"""Suffixes of files that are not listed: notes, tables, and voxels that belong to a header file."""


def scans_by_layout(folder: Path, output: Path) -> list[Path]:
    """The scans that a layout names; neither hidden folders nor the results are part of it."""
    found = {path for pattern in PATTERNS for path in folder.glob(pattern) if _is_ct(path)}
    return sorted(
        path
        for path in found
        if not _is_hidden(path.relative_to(folder)) and not is_result(path, folder, output)
    )


def case_in_batch(path: Path, name: str) -> str:
    """The case of a scan in a batch: `name`, but its folder's where the file is just called ct."""
    is_ct = name == CT and is_scan_file(path)
    return path.resolve().parent.name if is_ct else name


def warn_of_left_out(folder: Path, left_out: Collection[str]) -> None:
    if left_out:
        log.warning("%s: left out, because not read as scans: %s", printable(str(folder)), listed(left_out))


def listed(names: Collection[str]) -> str:
    """The number of names and the first of them, such as `2 (a, b)`."""
    return f"{len(names)} ({some_of(sorted(names))})"


def left_out(folder: Path, taken: Collection[Path], output: Path) -> list[str]:
    """What a batch of the scans in `taken` does not read of a folder."""
    places = list(_with_scan_files(folder, output))
    with_scan = {path.relative_to(folder).parts[0] for path in (*taken, *places)}
    entries = [
        path for path in folder.iterdir() if path.name not in with_scan and not _is_known(path, output)
    ]
    empty = [f"{path.name}/" if path.is_dir() else path.name for path in entries]
    return [*empty, *_unread(folder, places, taken)]


def scan_files_in_study(folder: Path, output: Path) -> list[str]:
    """What is not read of a folder that is one DICOM study."""
    return _unread(folder, list(_with_scan_files(folder, output)), [])


def _unread(folder: Path, places: Collection[Path], taken: Collection[Path]) -> list[str]:
    """The folders with files that look like scans and are not read, with their number."""
    found = []
    for path in places:
        files = [each for each in path.iterdir() if is_scan_file(each) and each not in taken]
        are_labels = path.name == LABELS and any(map(_is_ct, path.parent.glob("ct.*")))
        if files and not are_labels:
            found.append(f"{path.relative_to(folder)}/: {len(files)} file{'s' * (len(files) > 1)}")
    return found


def _with_scan_files(folder: Path, output: Path) -> Iterator[Path]:
    """Every folder below that holds files which look like scans, without hidden ones and the results'."""
    for top in (path for path in sorted(folder.iterdir()) if path.is_dir()):
        for place, folders, files in os.walk(top):
            here = Path(place)
            if _is_hidden(here.relative_to(folder)) or _is_same(here, output):
                folders.clear()
            elif any(map(is_scan_file, files)):
                yield here


def _is_known(path: Path, output: Path) -> bool:
    return path.name.startswith(".") or path.name.endswith(NO_SCANS) or _is_same(path, output)


def _is_ct(path: Path) -> bool:
    stem = name_of_scan(path)
    return is_scan_file(path) and (stem == CT or stem.endswith(f"_{CT}")) and path.is_file()


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def is_result(path: Path, folder: Path, output: Path) -> bool:
    """Whether a path is the folder of the results or in it, where that is within the folder that is read."""
    results = output.resolve()
    return folder.resolve() in results.parents and path.resolve().is_relative_to(results)


def _is_same(path: Path, output: Path) -> bool:
    return path.resolve() == output.resolve()
