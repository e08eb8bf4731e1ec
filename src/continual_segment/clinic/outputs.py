"""What is written for every case, and that all of it or nothing is there."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from continual_segment.clinic.formats import FORMATS, Labelled, canonical_format, write_format
from continual_segment.clinic.jobs import Job
from continual_segment.clinic.manifest import FOLDER, manifest_of
from continual_segment.clinic.outdated import outdated_files
from continual_segment.clinic.preview import preview
from continual_segment.clinic.read import Case
from continual_segment.clinic.statistics import as_csv, organ_statistics
from continual_segment.clinic.summary import Summary, summarise
from continual_segment.engine import EngineConfig
from continual_segment.errors import ConfigError
from continual_segment.files import (
    Source,
    labels_on,
    write_bytes,
    write_json,
    write_labels,
    write_scan,
    write_text,
)
from continual_segment.files.atomic import staged
from continual_segment.files.dicom.choose import check_pick
from continual_segment.segmentation.clean_up import RemovedIslands
from continual_segment.segmentation.explanation import Explanation
from continual_segment.segmentation.nested import layers
from continual_segment.volume import Grid, LabelMap, Volume


@dataclass(frozen=True)
class OutputConfig:
    """What to read, how strict to be with it, and what to write."""

    formats: tuple[str, ...] = ("nifti",)
    """Of label maps: nifti, organs, seg.nrrd, dicom_seg, dicom_labelmap, rtstruct."""
    scores: bool = False
    """Also each voxel's winning probability, to scores/."""
    explain: bool = False
    """Also the reasons: scores/, packs/, quality/ and, of nested organs, layers/."""
    statistics: bool = False
    """Also volume, Hounsfield units and quality per organ, to statistics/ as JSON and CSV."""
    preview: bool = False
    """Also a picture, to preview/."""
    series: str | None = None
    """Which DICOM series, where several could be meant: SeriesNumber, UID, or #2, a position in the list."""
    pick: str | None = None
    """Rule that chooses instead: thinnest, most-slices, or all, which makes each series a case of its own."""
    force: bool = False
    """Segment what does not look like a CT, leave out files that cannot be read, interpolate over any gap."""
    shard: tuple[int, int] = (1, 1)
    """Which of how many equal shares of a batch: (2, 8) is the second of eight, for job arrays."""
    overwrite: bool = False
    """Also segment cases of a batch whose results are there and would become the same."""
    body_parts: Path | None = None
    """File with the regressor of body parts to use, in place of the model's own."""
    engine: EngineConfig | None = None
    """Cluster whose workers segment the scans; None: this machine."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "formats", tuple(map(canonical_format, self.formats)))
        if len(set(self.formats)) < max(1, len(self.formats)):
            raise ConfigError("Name at least one output format, and each of them once.")
        check_pick(self.pick, self.series)
        if not 1 <= self.shard[0] <= self.shard[1]:
            raise ConfigError(f"--shard is I/N with I from 1 to N, not {self.shard[0]}/{self.shard[1]}.")

    def grids(self, source: Source) -> list[Grid]:
        """Where labels are needed: the scan's own grid first, then its slices as they were scanned."""
        on_slices = source.slices is not None and any(FORMATS[name].on_slices for name in self.formats)
        return [source.grid, source.slices] if on_slices and source.slices else [source.grid]

    def for_manifest(self) -> dict[str, Any]:
        """What decides the files of a case."""
        # the regressor counts by its fingerprint
        others = ("shard", "overwrite", "body_parts", "engine")
        values = {name: value for name, value in asdict(self).items() if name not in others}
        if self.series is not None and "." in self.series:  # a UID, which leads to the patient
            values["series"] = f"sha256:{hashlib.sha256(self.series.encode()).hexdigest()}"
        return values


@dataclass(frozen=True, eq=False)
class Result:
    """A case, segmented."""

    case: Case
    labels: LabelMap
    scores: Volume | None
    explanation: Explanation | None
    nested: bool
    """Whether parts are drawn over wholes in the labels."""
    seconds: float
    """That segmenting took."""
    computed: Mapping[str, str] = field(default_factory=dict)
    """By which device and backend."""
    on_slices: LabelMap | None = None
    """The labels on the slices as they were scanned, where those were moved and are written to."""
    removed: tuple[RemovedIslands, ...] = ()
    """Islands that clean-up removed from the labels."""

    @property
    def summary(self) -> Summary:
        found = summarise(self.case.job.case, self.labels, self.nested, self.seconds)
        return replace(found, removed=self.removed)


def write_result(result: Result, config: OutputConfig, request: Mapping[str, Any]) -> None:
    """Everything that was requested, or nothing where something goes wrong."""
    started = time.perf_counter()
    case = result.case
    job, source, labels, explanation = case.job, case.source, result.labels, result.explanation
    labelled = Labelled(job, source, labels, result.nested, result.on_slices)
    outdated = outdated_files(job, config.formats)
    with staged(job.folder, job.beside(Path(), FOLDER, ".json"), outdated) as stage:
        for name in config.formats:
            write_format(name, stage, labelled)
        if (config.scores or config.explain) and result.scores is not None:
            write_scan(job.beside(stage, "scores"), result.scores)
        if config.explain and explanation is not None:
            write_explanation(job, stage, labels, explanation)
        if config.statistics and explanation is not None:
            rows = organ_statistics(source.on_grid, labelled.layers(labels), explanation.quality)
            write_json(
                job.beside(stage, "statistics", ".json"), {row.pop("organ"): row for row in _copies(rows)}
            )
            write_text(job.beside(stage, "statistics", ".csv"), as_csv(rows))
        if config.preview:
            upright = labels_on(labels, source.volume.grid)
            write_bytes(job.beside(stage, "preview", ".png"), preview(source.volume, upright))
        seconds = {
            "reading": case.seconds,
            "segmenting": result.seconds,
            "writing": time.perf_counter() - started,
        }
        manifest = manifest_of(dict(request), job, source, case.sanity, seconds)
        files = sorted(path.relative_to(stage).as_posix() for path in stage.rglob("*") if path.is_file())
        found = {
            "computed": dict(result.computed),
            "removed_islands": [asdict(each) for each in result.removed],
            "files": files,
        }
        write_json(job.beside(stage, FOLDER, ".json"), manifest | found)
    for own in (job.folder / job.case, job.folder / f"{job.case}_ct"):
        with suppress(OSError):  # not empty, or not there
            own.rmdir()


def _copies(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [dict(row) for row in rows]


def write_explanation(job: Job, stage: Path, labels: LabelMap, explanation: Explanation) -> None:
    write_labels(job.beside(stage, "packs"), explanation.packs)
    write_json(job.beside(stage, "quality", ".json"), explanation.as_data())
    divided = layers(labels)
    for number, layer in enumerate(divided if len(divided) > 1 else []):
        write_labels(job.beside(stage, "layers", f"_{number}.nii.gz"), layer)
