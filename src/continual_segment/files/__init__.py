"""Reads and writes scans and label maps; no other package opens one.

Every format of one file is one module with `read_scan`, `read_labels` and, where it is written, `write_scan`
and `write_labels`; its line in FORMATS is all that the rest of the package knows of it. A DICOM series is a
folder or a zip and has a package of its own.

In:  a path
Out: Volume or LabelMap, voxels (z, y, x) near RAS, in whatever orientation the file stores them
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from types import ModuleType

from continual_segment.errors import ScanError
from continual_segment.files import metaimage, nifti, nrrd
from continual_segment.files.atomic import atomic_path, write_bytes, write_json, write_text
from continual_segment.files.dicom.find import folder_of_medium, is_dicom, is_dicomdir, study_of
from continual_segment.files.grids import oblique_deg
from continual_segment.files.nrrd import write_segments
from continual_segment.files.source import (
    Source,
    labels_on,
    source_of_series,
    source_of_volume,
)
from continual_segment.volume import LabelMap, Volume

FORMATS: dict[str, ModuleType] = {
    ".nii.gz": nifti,
    ".nii": nifti,
    ".nrrd": nrrd,
    ".nhdr": nrrd,
    ".mha": metaimage,
    ".mhd": metaimage,
}
"""File suffix -> the module that reads and writes it."""

__all__ = [
    "FORMATS",
    "Source",
    "atomic_path",
    "folder_of_medium",
    "is_dicom_source",
    "is_dicomdir",
    "is_scan_file",
    "labels_on",
    "name_of_scan",
    "oblique_deg",
    "read_labels",
    "read_scan",
    "read_source",
    "study_of",
    "write_bytes",
    "write_json",
    "write_labels",
    "write_scan",
    "write_segments",
    "write_text",
]


def read_scan(path: Path | str) -> Volume:
    """A CT scan as int16 or float32 Hounsfield units; ScanError where a file is none."""
    if is_dicom_source(path):
        return source_of_series(Path(path)).on_grid
    return _format_of(path).read_scan(Path(path))


def read_source(
    path: Path | str, series: str | None = None, force: bool = False, pick: str | None = None
) -> Source:
    """A scan with all that results need to know of where it came from.

    `series` chooses among several of a DICOM folder: a SeriesNumber, a UID, or `#2` for the second of the
    list that an error shows; `pick` is a rule that chooses, `thinnest` or `most-slices`. `force` reads what
    is no CT, leaves out slices that cannot be read and interpolates over gaps of any length.
    """
    path = Path(path)
    if is_dicom_source(path):
        return source_of_series(path, series, force, pick)
    return source_of_volume(path, _format_of(path).read_scan(path))


def is_dicom_source(path: Path | str) -> bool:
    """Whether to look for a DICOM series here: a folder, a zip or a DICOM file."""
    path = Path(path)
    return path.is_dir() or (path.is_file() and (zipfile.is_zipfile(path) or is_dicom(path)))


def read_labels(path: Path | str) -> LabelMap:
    """A label map as uint8 or uint16, with the organ names its header holds."""
    return _format_of(path).read_labels(Path(path))


def write_scan(path: Path | str, volume: Volume) -> None:
    """Write a scan in its grid's own orientation, whole or not at all."""
    _writer_of(path).write_scan(Path(path), volume)


def write_labels(path: Path | str, label_map: LabelMap) -> None:
    """Write a label map in its grid's own orientation with its organ names, whole or not at all."""
    _writer_of(path).write_labels(Path(path), label_map)


def is_scan_file(path: Path | str) -> bool:
    """Whether the name ends as a scan's does; hidden files are none."""
    return _suffix_of(path) is not None and not Path(path).name.startswith(".")


def name_of_scan(path: Path | str) -> str:
    """The file's name without its suffix: `liver_01.nii.gz` is `liver_01`."""
    return Path(path).name.removesuffix(_suffix_of(path) or "")


def _suffix_of(path: Path | str) -> str | None:
    return next((suffix for suffix in FORMATS if Path(path).name.endswith(suffix)), None)


def _format_of(path: Path | str) -> ModuleType:
    suffix = _suffix_of(path)
    if suffix is None:
        raise ScanError(
            f"{path}: this is no DICOM, and the name ends in none of {', '.join(FORMATS)}. "
            "Convert the file to NIfTI or rename it."
        )
    return FORMATS[suffix]


def _writer_of(path: Path | str) -> ModuleType:
    module = _format_of(path)
    if not hasattr(module, "write_labels"):
        raise ScanError(f"{path}: files of this kind are read, not written. Name a .nii.gz file instead.")
    return module
