"""segment: scans in, label maps on the scans' own grids out.

The model is loaded once for any number of scans. The encoder runs once per window and every decoder
reads the same features; where packs meet, `merge` decides.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from continual_segment.data.prepare import prepare_scan
from continual_segment.data.prepared import normalise
from continual_segment.data.resample import resample_labels, resample_scan
from continual_segment.errors import ContinualSegmentError, ModelError, ScanError
from continual_segment.files import FORMATS, is_scan_file, name_of_scan, read_scan, write_labels, write_scan
from continual_segment.model import Model, OrganPack
from continual_segment.organs import Organ, canonical_name
from continual_segment.segmentation.merge import Merge, highest_probability
from continual_segment.segmentation.slabs import PackDecoder, count_windows, segment_slabs
from continual_segment.volume import Grid, LabelMap, Volume

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SegmentConfig:
    """How scans are cut and where they are computed."""

    overlap: float = 0.5
    """Share of a window that its neighbour covers too."""
    windows_at_once: int = 2
    """Windows that pass the networks together. PyTorch sends small 3D convolutions of one sample to a slow
    kernel on CPUs: two at once take half the time of two in turn. More need more memory."""
    device: str = "cpu"
    """cpu, cuda, cuda:1, mps, ..."""
    compile: bool = False
    """Run the networks through torch.compile: slower to start, faster on many scans."""
    progress: bool = True
    """Show a bar per scan."""

    def __post_init__(self) -> None:
        if not 0 <= self.overlap < 1:
            raise ValueError(f"overlap is a share from 0 to below 1, not {self.overlap}.")
        if self.windows_at_once < 1:
            raise ValueError(f"windows_at_once is at least 1, not {self.windows_at_once}.")


class Segmenter:
    """A model in memory, ready for any number of scans."""

    def __init__(
        self,
        model: Model,
        organs: Sequence[str] | None = None,
        packs: Sequence[str] | None = None,
        config: SegmentConfig | None = None,
    ) -> None:
        """`organs` and `packs` restrict what is looked for; packs without any such organ are not run."""
        self.config = config or SegmentConfig()
        self.prepare, self.window = model.prepare, model.window
        chosen = [model.pack(name) for name in (model.pack_names if packs is None else packs)]
        self.organs = wanted_organs(model.folder, chosen, organs)
        ids = {organ.id for organ in self.organs}
        device = torch.device(self.config.device)
        self.encoder = model.load_encoder().to(device)
        self.packs = [
            PackDecoder(pack.decoder(), [organ.id for organ in pack.organs], device)
            for pack in chosen
            if ids & {organ.id for organ in pack.organs}
        ]
        if self.config.compile:
            self.encoder.compile()
            for pack in self.packs:
                pack.decoder.compile()

    def __call__(self, scan: Volume, title: str = "segmenting") -> tuple[LabelMap, Volume]:
        """Labels and scores (the winner's probability) on the scan's grid."""
        return self.by_rules(scan, [highest_probability], title)[0]

    def by_rules(
        self, scan: Volume, merges: Sequence[Merge], title: str = "segmenting"
    ) -> list[tuple[LabelMap, Volume]]:
        """Labels and scores by each merge rule, for one run of the networks."""
        prepared = prepare_scan(scan, self.prepare)
        voxels = normalise(prepared.voxels, self.prepare.window_hu)
        overlap = self.config.overlap
        windows = count_windows(voxels.shape, self.window, overlap)
        with tqdm(
            total=windows, desc=title, unit="window", disable=not self.config.progress, leave=False
        ) as bar:
            results = segment_slabs(
                voxels,
                self.encoder,
                self.packs,
                self.window,
                overlap,
                merges,
                self.config.windows_at_once,
                bar.update,
            )
        return [self._on_grid_of(scan, prepared.grid, *result) for result in results]

    def _on_grid_of(
        self, scan: Volume, grid: Grid, organs: np.ndarray, scores: np.ndarray
    ) -> tuple[LabelMap, Volume]:
        unwanted = ~np.isin(organs, [organ.id for organ in self.organs])
        organs[unwanted] = scores[unwanted] = 0  # a pack may know more organs than were asked for
        names = {organ.id: organ.name for organ in self.organs}
        labels = resample_labels(LabelMap(organs, grid, names), scan.grid)
        return labels, resample_scan(Volume(scores.astype(np.float32), grid), scan.grid)


def wanted_organs(folder: Path, packs: Sequence[OrganPack], names: Sequence[str] | None) -> list[Organ]:
    """The organs asked for, or all the packs know, by id."""
    known = {organ.name: organ for pack in packs for organ in pack.organs}
    if not known:
        raise ModelError(f"{folder} has no packs. Add one with `conseg pack add` or `conseg learn`.")
    if names is None:
        return sorted(known.values(), key=lambda organ: organ.id)
    wanted = {canonical_name(name): name for name in names}
    if not wanted:
        raise ModelError(f"No organ was asked for. {folder} knows {', '.join(sorted(known))}.")
    if unknown := [given for name, given in wanted.items() if name not in known]:
        raise ModelError(f"{folder} does not know {', '.join(unknown)}. It knows {', '.join(sorted(known))}.")
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
    refuse_shared_targets(jobs)
    segmenter = Segmenter(model, organs, config=config)
    failures = {}
    for scan, target in jobs.items():
        try:
            labels, score = segmenter(read_scan(scan), title=case_of(scan))
            target.parent.mkdir(parents=True, exist_ok=True)
            write_labels(target, labels)
            if scores:
                score_path(target).parent.mkdir(exist_ok=True)
                write_scan(score_path(target), score)
        except (
            ContinualSegmentError,
            OSError,
            MemoryError,
        ) as error:  # one bad scan must not stop a night's batch
            failures[str(scan)] = str(error)
            log.error("%s", error)
    return failures


def score_path(labels: Path) -> Path:
    """In a folder of its own, so that a folder of label maps holds nothing else."""
    return labels.parent / "scores" / f"{name_of_scan(labels)}.nii.gz"


def list_jobs(source: Path, output: Path) -> Iterator[tuple[Path, Path]]:
    """Each scan and the file its labels go to."""
    if not source.exists():
        raise ScanError(f"{source}: no such file or folder.")
    if source.is_file():
        yield source, output if is_scan_file(output) else output / f"{case_of(source)}.nii.gz"
        return
    scans = sorted(path for path in source.iterdir() if is_scan_file(path))
    if not scans:
        raise ScanError(f"{source}: no scan in this folder. Scans end in {' or '.join(FORMATS)}.")
    for scan in scans:
        yield scan, output / f"{case_of(scan)}.nii.gz"


def refuse_shared_targets(jobs: Mapping[Path, Path]) -> None:
    """Raise where the label maps of two scans would overwrite each other."""
    scan_of: dict[Path, Path] = {}
    for scan, target in jobs.items():
        if other := scan_of.get(target):
            raise ScanError(f"{other} and {scan} would both be written to {target}. Rename one of them.")
        scan_of[target] = scan


def case_of(path: Path) -> str:
    """The scan's name without nnU-Net's channel number."""
    return name_of_scan(path).removesuffix("_0000")
