"""What is written for every case, and that all of it or nothing is there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from continual_segment.clinic.formats import Labelled, canonical_format, write_format
from continual_segment.clinic.jobs import Job
from continual_segment.clinic.manifest import FOLDER, manifest_of
from continual_segment.clinic.preview import preview
from continual_segment.clinic.read import Case
from continual_segment.clinic.statistics import as_csv, organ_statistics
from continual_segment.clinic.summary import Summary, summarise
from continual_segment.errors import ConfigError
from continual_segment.files import (
    labels_on,
    voxels_on,
    write_bytes,
    write_json,
    write_labels,
    write_scan,
    write_text,
)
from continual_segment.files.atomic import staged
from continual_segment.segmentation.explain import Explained
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
    """Which DICOM series, by UID or by its number in the list, where several could be meant."""
    force: bool = False
    """Segment what does not look like a CT, and interpolate over gaps of any length."""
    shard: tuple[int, int] = (1, 1)
    """Which of how many equal shares of a batch: (2, 8) is the second of eight, for job arrays."""
    overwrite: bool = False
    """Also segment cases of a batch whose results are there and would become the same."""
    body_parts: Path | None = None
    """File with the regressor of body parts to use, in place of the model's own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "formats", tuple(map(canonical_format, self.formats)))
        if len(set(self.formats)) < max(1, len(self.formats)):
            raise ConfigError("Name at least one output format, and each of them once.")
        if not 1 <= self.shard[0] <= self.shard[1]:
            raise ConfigError(f"--shard is I/N with I from 1 to N, not {self.shard[0]}/{self.shard[1]}.")

    def for_manifest(self) -> dict[str, Any]:
        """What decides the files of a case."""
        others = ("shard", "overwrite", "body_parts")  # the regressor counts by its fingerprint
        return {name: value for name, value in asdict(self).items() if name not in others}


@dataclass(frozen=True, eq=False)
class Result:
    """A case, segmented."""

    case: Case
    labels: LabelMap
    scores: Volume | None
    explained: Explained | None
    nested: bool
    """Whether parts are drawn over wholes in the labels."""
    seconds: float
    """That segmenting took."""

    @property
    def summary(self) -> Summary:
        return summarise(self.case.job.case, self.labels, self.nested, self.seconds)


def write_result(result: Result, config: OutputConfig, request: Mapping[str, Any]) -> None:
    """Everything that was asked for; nothing where something goes wrong."""
    started = time.perf_counter()
    case = result.case
    job, volume = case.job, case.source.volume
    labelled = Labelled(job, case.source, result.labels, result.nested)
    with staged(job.folder, last=job.beside(Path(), FOLDER, ".json")) as stage:
        for name in config.formats:
            write_format(name, stage, labelled)
        if (config.scores or config.explain) and result.scores is not None:
            write_scores(job.beside(stage, "scores"), result.scores, case.source.grid)
        if config.explain and result.explained is not None:
            write_reasons(job, stage, labelled.drawn, result.explained)
        if config.statistics and result.explained is not None:
            rows = organ_statistics(volume, labelled.layers(result.labels), result.explained.quality)
            write_json(
                job.beside(stage, "statistics", ".json"), {row.pop("organ"): row for row in _copies(rows)}
            )
            write_text(job.beside(stage, "statistics", ".csv"), as_csv(rows))
        if config.preview:
            write_bytes(job.beside(stage, "preview", ".png"), preview(volume, result.labels))
        seconds = {
            "reading": case.seconds,
            "segmenting": result.seconds,
            "writing": time.perf_counter() - started,
        }
        manifest = manifest_of(dict(request), job, case.source, case.sanity, seconds)
        files = sorted(str(path.relative_to(stage)) for path in stage.rglob("*") if path.is_file())
        write_json(job.beside(stage, FOLDER, ".json"), manifest | {"files": files})


def _copies(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [dict(row) for row in rows]


def write_scores(path: Path, scores: Volume, grid: Grid) -> None:
    write_scan(path, Volume(voxels_on(scores.voxels, scores.grid, grid), grid))


def write_reasons(job: Job, stage: Path, drawn: LabelMap, explained: Explained) -> None:
    write_labels(job.beside(stage, "packs"), labels_on(explained.packs, drawn.grid))
    write_json(job.beside(stage, "quality", ".json"), explained.as_data())
    divided = layers(drawn)
    for number, layer in enumerate(divided if len(divided) > 1 else []):
        write_labels(job.beside(stage, "layers", f"_{number}.nii.gz"), layer)
