"""segment: scans in, results in every format out; one bad scan does not stop a night's batch."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from continual_segment.body_parts import BodyPartRegressor
from continual_segment.clinic.jobs import Job, list_jobs
from continual_segment.clinic.outputs import OutputConfig, Result, write_result
from continual_segment.clinic.sanity import check_scan
from continual_segment.errors import ContinualSegmentError
from continual_segment.files import read_source
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
    jobs = list_jobs(source, output)
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
        return Result(source, sanity, explained.labels, explained.scores, explained)
    if outputs.scores:
        return Result(source, sanity, *segmenter(source.volume, job.case, known))
    return Result(source, sanity, segmenter.labels(source.volume, job.case, known), None)
