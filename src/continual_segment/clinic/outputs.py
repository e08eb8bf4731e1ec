"""What is written for every case, and that all of it or nothing is there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from continual_segment.clinic.formats import Labelled, canonical_format, write_format
from continual_segment.clinic.jobs import Job
from continual_segment.clinic.sanity import Sanity
from continual_segment.errors import ConfigError
from continual_segment.files import Source, labels_on, voxels_on, write_json, write_labels, write_scan
from continual_segment.files.atomic import staged
from continual_segment.segmentation.explain import Explained
from continual_segment.segmentation.nested import layers
from continual_segment.volume import Grid, LabelMap, Volume


@dataclass(frozen=True)
class OutputConfig:
    """What to write, and how strict to be with what is read."""

    formats: tuple[str, ...] = ("nifti",)
    """Of label maps: nifti, organs, seg.nrrd, dicom_seg, dicom_labelmap, rtstruct."""
    scores: bool = False
    """Also each voxel's winning probability, to scores/."""
    explain: bool = False
    """Also the reasons: scores/, packs/, quality/ and, of nested organs, layers/."""
    series: str | None = None
    """Which DICOM series, by UID or by its number in the list, where several could be meant."""
    force: bool = False
    """Segment what does not look like a CT, and interpolate over gaps of any length."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "formats", tuple(map(canonical_format, self.formats)))
        if len(set(self.formats)) < max(1, len(self.formats)):
            raise ConfigError("Name at least one output format, and each of them once.")


@dataclass(frozen=True, eq=False)
class Result:
    """A case, segmented."""

    source: Source
    sanity: Sanity
    labels: LabelMap
    scores: Volume | None
    nested: bool = False
    """Whether parts are drawn over wholes in the labels."""
    explained: Explained | None = None


def write_result(job: Job, result: Result, config: OutputConfig) -> None:
    """Everything that was asked for; nothing where something goes wrong."""
    labelled = Labelled(job, result.source, result.labels, result.nested)
    with staged(job.folder) as stage:
        for name in config.formats:
            write_format(name, stage, labelled)
        if result.scores is not None:
            write_scores(job.beside(stage, "scores"), result.scores, result.source.grid)
        if config.explain and result.explained is not None:
            write_reasons(job, stage, labelled.drawn, result.explained)


def write_scores(path: Path, scores: Volume, grid: Grid) -> None:
    write_scan(path, Volume(voxels_on(scores.voxels, scores.grid, grid), grid))


def write_reasons(job: Job, stage: Path, drawn: LabelMap, explained: Explained) -> None:
    write_labels(job.beside(stage, "packs"), labels_on(explained.packs, drawn.grid))
    write_json(job.beside(stage, "quality", ".json"), explained.as_data())
    divided = layers(drawn)
    for number, layer in enumerate(divided if len(divided) > 1 else []):
        write_labels(job.beside(stage, "layers", f"_{number}.nii.gz"), layer)
