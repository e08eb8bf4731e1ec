"""One case, from its voxels to a Result: the same steps here, on a cluster and in a DICOM node."""

from __future__ import annotations

import logging
import time

from continual_segment.body_parts import BodyPartRegressor
from continual_segment.clinic.manifest import how_computed
from continual_segment.clinic.outputs import OutputConfig, Result
from continual_segment.clinic.read import Case
from continual_segment.files.dicom.listing import title as title_of
from continual_segment.segmentation import MultiSegmenter, ScanContext, Segmenter

log = logging.getLogger(__name__)


def announce(case: Case) -> None:
    """Log which series is segmented and what is odd about it."""
    if case.source.series:
        log.info("%s: segmenting %s", case.job.case, title_of(case.source.series))
    for sentence in (*case.source.notes, *case.sanity.problems, *case.sanity.warnings):
        log.warning("%s: %s", case.job.case, sentence)


def segment_case(
    case: Case,
    segmenter: Segmenter | MultiSegmenter,
    regressor: BodyPartRegressor | None,
    outputs: OutputConfig,
) -> Result:
    """The labels of a case, and what else the outputs need."""
    started = time.perf_counter()
    volume, title = case.source.volume, case.job.case
    grid, *extra_grids = outputs.grids(case.source)
    found = segmenter(
        volume,
        scores=outputs.scores,
        explain=outputs.explain or outputs.statistics,
        context=ScanContext.of(regressor.regions(volume).body_part) if regressor else None,
        grid=grid,
        extra_grids=extra_grids,
        title=title,
    )
    seconds = time.perf_counter() - started
    return Result(
        case,
        found.labels,
        found.scores,
        found.explanation,
        segmenter.config.nested,
        seconds,
        how_computed(segmenter),
        next(iter(found.labels_on), None),
        found.removed,
    )
