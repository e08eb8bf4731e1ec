"""segment: scans in, results in every format out; one bad scan does not stop a night's batch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from continual_segment.body_parts import BodyPartRegressor
from continual_segment.clinic.formats import format_of_file
from continual_segment.clinic.jobs import Job, list_jobs
from continual_segment.clinic.outputs import OutputConfig, Result, write_result
from continual_segment.clinic.sanity import check_scan
from continual_segment.errors import ConfigError, ContinualSegmentError
from continual_segment.files import is_scan_file, read_source
from continual_segment.model import Model
from continual_segment.segmentation import SegmentConfig, Segmenter
from continual_segment.segmentation.slabs import Known

log = logging.getLogger(__name__)


def segment(
    source: Path,
    model: Path | Model,
    output: Path,
    organs: Sequence[str] | None = None,
    config: SegmentConfig | None = None,
    outputs: OutputConfig | None = None,
    body_parts: Path | None = None,
) -> dict[str, str]:
    """Segment a scan, or all of a folder or list, into `output`; return the failures, scan -> sentence.

    A scan is a NIfTI, NRRD or MetaImage file, or a DICOM series as folder or zip. One scan becomes `output`
    itself where that names a file, else `output`/<case>.nii.gz. `body_parts` is a file with a regressor that
    tells the body part of every slice.
    """
    outputs = outputs or OutputConfig()
    model = model if isinstance(model, Model) else Model.open(model)
    jobs = list_jobs(source, output, names_file(output, outputs))
    segmenter = Segmenter(model, organs, config=config)
    regressor = BodyPartRegressor.read(body_parts) if body_parts else None
    failures = {}
    for job in jobs:
        try:
            write_result(job, segment_one(job, segmenter, regressor, outputs), outputs)
        except (ContinualSegmentError, OSError, MemoryError) as error:
            failures[str(job.source)] = str(error) or type(error).__name__
            log.error("%s", error)
    return failures


def names_file(output: Path, outputs: OutputConfig) -> bool:
    """Whether the output is a file, which must then be of the one format asked for."""
    by_name = format_of_file(output)
    if output.is_dir() or not (by_name or is_scan_file(output)):
        return False
    if by_name is None:
        raise ConfigError(
            f"{output}: label maps are written as .nii.gz, .seg.nrrd or .dcm. Name one of these."
        )
    if outputs.formats != (by_name,) and not (output.suffix == ".dcm" and len(outputs.formats) == 1):
        raise ConfigError(
            f"{output}: the name is that of a {by_name} file, but {', '.join(outputs.formats)} was asked "
            "for. Name a folder, or choose the format with -ot."
        )
    return True


def segment_one(
    job: Job, segmenter: Segmenter, regressor: BodyPartRegressor | None, outputs: OutputConfig
) -> Result:
    source = read_source(job.source, outputs.series, outputs.force)
    sanity = check_scan(str(job.source), source, outputs.force)
    for sentence in (*source.notes, *sanity.problems, *sanity.warnings):
        log.warning("%s: %s", job.case, sentence)
    known = Known(regressor.regions(source.volume).body_part) if regressor else None
    if outputs.explain:
        explained = segmenter.explained(source.volume, job.case, known)
        return Result(source, sanity, explained.labels, explained.scores, segmenter.config.nested, explained)
    if outputs.scores:
        return Result(source, sanity, *segmenter(source.volume, job.case, known), segmenter.config.nested)
    labels = segmenter.labels(source.volume, job.case, known)
    return Result(source, sanity, labels, None, segmenter.config.nested)
