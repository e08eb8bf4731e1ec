"""segment: scans in, label maps on the scans' own grids out.

The model is loaded once for any number of scans. The encoder runs once per window and every decoder
reads the same features; where packs meet, `merge` decides.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from continual_segment.data.prepare import prepare_scan
from continual_segment.data.prepared import normalise
from continual_segment.data.resample import resample_labels, resample_scan
from continual_segment.errors import ContinualSegmentError, ModelError, ScanError
from continual_segment.files import read_scan, write_labels, write_scan
from continual_segment.model import Model
from continual_segment.organs import Organ, find_organ
from continual_segment.segmentation.merge import highest_probability
from continual_segment.segmentation.slabs import PackDecoder, count_windows, segment_slabs
from continual_segment.volume import LabelMap, Volume

log = logging.getLogger(__name__)

SUFFIXES = (".nii.gz", ".nii")


@dataclass(frozen=True)
class SegmentConfig:
    """How scans are cut and where they are computed."""

    overlap: float = 0.5
    """Share of a window that its neighbour covers too."""
    device: str = "cpu"
    """cpu, cuda, cuda:1, mps, ..."""
    compile: bool = False
    """Run the networks through torch.compile: slower to start, faster on many scans."""
    progress: bool = True
    """Show a bar per scan."""

    def __post_init__(self) -> None:
        if not 0 <= self.overlap < 1:
            raise ValueError(f"overlap is a share from 0 to below 1, not {self.overlap}.")


class Segmenter:
    """A model in memory, ready for any number of scans."""

    def __init__(
        self, model: Model, organs: Sequence[str] | None = None, config: SegmentConfig | None = None
    ) -> None:
        self.config = config or SegmentConfig()
        self.prepare, self.window = model.prepare, model.window
        self.organs = wanted_organs(model, organs)
        device = torch.device(self.config.device)
        self.encoder = model.load_encoder().to(device)
        packs = [model.pack(name) for name in model.pack_names]
        ids = {organ.id for organ in self.organs}
        self.packs = [
            PackDecoder(pack.decoder(), [organ.id for organ in pack.organs], device)
            for pack in packs
            if ids & {organ.id for organ in pack.organs}
        ]
        if self.config.compile:
            self.encoder.compile()
            for pack in self.packs:
                pack.decoder.compile()

    def __call__(self, scan: Volume, title: str = "segmenting") -> tuple[LabelMap, Volume]:
        """Labels and scores (the winner's probability) on the scan's grid."""
        prepared = prepare_scan(scan, self.prepare)
        voxels = normalise(prepared.voxels, self.prepare.window_hu)
        windows = count_windows(np.maximum(voxels.shape, self.window), self.window, self.config.overlap)
        with tqdm(
            total=windows, desc=title, unit="window", disable=not self.config.progress, leave=False
        ) as bar:
            organs, scores = segment_slabs(
                voxels, self.encoder, self.packs, self.window, self.config.overlap, highest_probability, bar.update
            )
        ids = np.array([organ.id for organ in self.organs])
        organs[~np.isin(organs, ids)] = 0  # a pack may know more organs than were asked for
        names = {organ.id: organ.name for organ in self.organs}
        labels = resample_labels(LabelMap(organs, prepared.grid, names), scan.grid)
        return labels, resample_scan(replace(prepared, voxels=scores.astype(np.float32)), scan.grid)


def wanted_organs(model: Model, names: Sequence[str] | None) -> list[Organ]:
    """The organs asked for, or all the model knows, by id."""
    known = model.organs
    if not known:
        raise ModelError(f"{model.folder} has no packs. Add one with `conseg pack add` or `conseg learn`.")
    if names is None:
        return sorted(known.values(), key=lambda organ: organ.id)
    wanted = {find_organ(name).name: name for name in names}
    if unknown := [given for name, given in wanted.items() if name not in known]:
        raise ModelError(
            f"{model.folder} does not know {', '.join(unknown)}. It knows {', '.join(sorted(known))}."
        )
    return sorted((known[name] for name in wanted), key=lambda organ: organ.id)


def segment(
    source: Path,
    model: Path | Model,
    output: Path,
    organs: Sequence[str] | None = None,
    config: SegmentConfig | None = None,
    scores: bool = False,
) -> dict[str, str]:
    """Segment a scan, or every scan of a folder, into `output`; return the failures, scan -> sentence.

    A scan becomes `output` itself where that names a NIfTI file, else `output`/<case>.nii.gz.
    """
    model = model if isinstance(model, Model) else Model.open(model)
    jobs = dict(list_jobs(source, output))
    segmenter = Segmenter(model, organs, config)
    failures = {}
    for scan, target in jobs.items():
        try:
            labels, score = segmenter(read_scan(scan), title=case_name(scan))
            target.parent.mkdir(parents=True, exist_ok=True)
            write_labels(target, labels)
            if scores:
                write_scan(target.with_name(f"{case_name(target)}_score.nii.gz"), score)
        except (ContinualSegmentError, OSError, MemoryError) as error:  # one bad scan must not stop a night's batch
            failures[str(scan)] = str(error)
            log.error("%s", error)
    return failures


def list_jobs(source: Path, output: Path) -> Iterator[tuple[Path, Path]]:
    """Each scan and the file its labels go to."""
    if not source.exists():
        raise ScanError(f"{source}: no such file or folder.")
    if source.is_file():
        into_file = output.name.endswith(SUFFIXES)
        yield source, output if into_file else output / f"{case_name(source)}.nii.gz"
        return
    scans = sorted(path for path in source.iterdir() if path.name.endswith(SUFFIXES))
    if not scans:
        raise ScanError(f"{source}: no scan in this folder. Scans end in {' or '.join(SUFFIXES)}.")
    for scan in scans:
        yield scan, output / f"{case_name(scan)}.nii.gz"


def case_name(path: Path) -> str:
    """The file's name without suffix and without nnU-Net's channel number."""
    name = path.name
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name.removesuffix("_0000")
