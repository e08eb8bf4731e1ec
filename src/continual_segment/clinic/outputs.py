"""What is written for every case, and that all of it or nothing is there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from continual_segment.clinic.jobs import Job
from continual_segment.clinic.sanity import Sanity
from continual_segment.files import Source, labels_on, voxels_on, write_json, write_labels, write_scan
from continual_segment.files.atomic import staged
from continual_segment.segmentation.explain import Explained
from continual_segment.segmentation.nested import layers
from continual_segment.volume import LabelMap, Volume


@dataclass(frozen=True)
class OutputConfig:
    """What to write, and how strict to be with what is read."""

    scores: bool = False
    """Also each voxel's winning probability, to scores/."""
    explain: bool = False
    """Also the reasons: scores/, packs/, quality/ and, of nested organs, layers/."""
    series: str | None = None
    """Which DICOM series, by UID or by its number in the list, where several could be meant."""
    force: bool = False
    """Segment what does not look like a CT, and interpolate over gaps of any length."""


@dataclass(frozen=True, eq=False)
class Result:
    """A case, segmented."""

    source: Source
    sanity: Sanity
    labels: LabelMap
    scores: Volume | None
    explained: Explained | None = None


def write_result(job: Job, result: Result, config: OutputConfig) -> None:
    """Everything that was asked for; nothing where something goes wrong."""
    grid = result.source.grid
    with staged(job.folder) as stage:

        def beside(kind: str, ending: str = job.ending) -> Path:
            """In a folder of its own, so that a folder of label maps holds nothing else."""
            return stage / kind / f"{job.case}{ending}"

        labels = labels_on(result.labels, grid)
        write_labels(stage / job.labels.name, labels)
        if result.scores is not None:
            voxels = voxels_on(result.scores.voxels, result.scores.grid, grid)
            write_scan(beside("scores"), Volume(voxels, grid))
        if config.explain and result.explained is not None:
            write_labels(beside("packs"), labels_on(result.explained.packs, grid))
            write_json(beside("quality", ".json"), result.explained.as_data())
            divided = layers(labels)
            for number, layer in enumerate(divided if len(divided) > 1 else []):
                write_labels(beside("layers", f"_{number}{job.ending}"), layer)
