"""Label maps in every format that is written, and the files each one makes.

A new format is one function and one line in FORMATS.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from continual_segment import __version__
from continual_segment.clinic.jobs import Job
from continual_segment.errors import ConfigError, ModelError
from continual_segment.files import Source, write_labels, write_segments
from continual_segment.files.dicom.derive import derived_series, write_series
from continual_segment.files.dicom.missing_uids import with_frame_of_reference
from continual_segment.files.dicom.planes import missing_uids
from continual_segment.files.dicom.series import Series
from continual_segment.names import check_file_name
from continual_segment.segmentation.nested import layers
from continual_segment.volume import LabelMap

log = logging.getLogger(__name__)

ALIASES = {
    "dicom_rtstruct": "rtstruct",
    "dicom": "rtstruct",
    "nii": "nifti",
    "seg_nrrd": "seg.nrrd",
    "nifti_ml": "nifti",
}


@dataclass(frozen=True, eq=False)
class Labelled:
    """A case with its labels, as the formats need it."""

    job: Job
    source: Source
    labels: LabelMap
    """On the scan's own grid, one number per voxel."""
    nested: bool
    on_slices: LabelMap | None = None
    """The same on the scan's slices as they were scanned, where these had to be moved."""

    def layers(self, labels: LabelMap) -> list[LabelMap]:
        """Organs and their parts apart, where they share voxels; only names of organs that can be there."""
        return layers(labels) if self.nested else [labels]

    @cached_property
    def own_series(self) -> Series | None:
        """The DICOM slices of the scan, where it has some that can be referred to."""
        series = self.source.series
        if series is None:
            return None
        if missing := missing_uids(series):
            log.warning(
                "%s: the slices have no %s, so DICOM results refer to a copy of them in %s_ct.",
                self.job.case,
                ", ".join(missing),
                self.job.case,
            )
            return None
        complete = with_frame_of_reference(series)
        if complete is not series:
            log.warning(
                "%s: slices have no FrameOfReferenceUID; one was made for the DICOM results.", self.job.case
            )
        return complete

    @cached_property
    def series(self) -> Series:
        """The DICOM slices that results refer to."""
        header = self.source.series.header if self.source.series else None
        return self.own_series or derived_series(self.job.case, self.source.on_grid, header)

    @property
    def series_layers(self) -> list[LabelMap]:
        """Layers on the slices that results refer to, as near to them as there are labels."""
        return self.layers((self.own_series and self.on_slices) or self.labels)


def write_format(name: str, stage: Path, labelled: Labelled) -> None:
    """Write one format into a folder."""
    format_ = FORMATS[name]
    if format_.on_slices and labelled.own_series is None:
        ct = stage / f"{labelled.job.case}_ct"
        if not ct.exists():
            write_series(ct, labelled.series, labelled.source.on_grid)
    format_.write(stage / labelled.job.file_name(format_.ending), labelled)


def canonical_format(name: str) -> str:
    """Our name of a format; ConfigError lists those there are."""
    name = ALIASES.get(name, name)
    if name not in FORMATS:
        raise ConfigError(f"There is no output format {name!r}; there are {', '.join(FORMATS)}.")
    return name


def format_of_file(path: Path) -> str | None:
    """The format that a file's name implies; None for a folder."""
    endings = {each.ending: name for name, each in FORMATS.items() if each.ending}
    endings |= {".nii": "nifti", ".dcm": "dicom_seg"}  # last: longer endings come first
    return next((name for ending, name in endings.items() if path.name.endswith(ending)), None)


@dataclass(frozen=True)
class Format:
    """One way to write labels."""

    ending: str
    """Of its file; empty for a folder of files."""
    write: Callable[[Path, Labelled], None]
    on_slices: bool = False
    """Whether labels are written on DICOM slices."""


def _nifti(path: Path, labelled: Labelled) -> None:
    write_labels(path, labelled.labels)


def _organs(folder: Path, labelled: Labelled) -> None:
    """One mask per organ, as TotalSegmentator writes them: an organ that was not found is an empty one."""
    divided = labelled.layers(labelled.labels)
    for label, name in labelled.labels.names.items():
        check_file_name(name, "The organ", ModelError)  # a pack may come from a stranger
        mask = np.any([layer.voxels == label for layer in divided], axis=0).astype(np.uint8)
        write_labels(folder / f"{name}.nii.gz", LabelMap(mask, labelled.labels.grid, {1: name}))


def _seg_nrrd(path: Path, labelled: Labelled) -> None:
    write_segments(path, [_found_only(layer) for layer in labelled.layers(labelled.labels)])


def _found_only(labels: LabelMap) -> LabelMap:
    present = set(np.unique(labels.voxels).tolist())
    return LabelMap(labels.voxels, labels.grid, {k: v for k, v in labels.names.items() if k in present})


def _dicom_seg(path: Path, labelled: Labelled, label_map: bool = False) -> None:
    from continual_segment.files.dicom.seg import write_segmentation  # highdicom: half a second

    if not write_segmentation(path, labelled.series_layers, labelled.series, __version__, label_map):
        log.warning("%s: no organ was found; no DICOM SEG was written.", labelled.job.case)


def _rtstruct(path: Path, labelled: Labelled) -> None:
    from continual_segment.files.dicom.rtstruct import write_contours  # scipy.spatial

    if not write_contours(path, labelled.series_layers, labelled.series, __version__):
        log.warning("%s: no organ was found; no RTSTRUCT was written.", labelled.job.case)


FORMATS = {
    "nifti": Format(".nii.gz", _nifti),
    "organs": Format("", _organs),
    "seg.nrrd": Format(".seg.nrrd", _seg_nrrd),
    "dicom_seg": Format(".seg.dcm", _dicom_seg, True),
    "dicom_labelmap": Format(".labelmap.dcm", partial(_dicom_seg, label_map=True), True),
    "rtstruct": Format(".rtstruct.dcm", _rtstruct, True),
}
