"""Segmenter: a scan in, its label map on the scan's own grid out.

The model is loaded once for any number of scans. The encoder runs once per window and every decoder
reads the same features; where packs meet, a merge rule decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch

from continual_segment.body_parts import BodyPartRegressor
from continual_segment.data.prepare import on_spacing
from continual_segment.data.resample import resample_scan
from continual_segment.errors import ModelError
from continual_segment.model import Model, OrganPack
from continual_segment.model.head import AnomalyHead, anomaly_heads
from continual_segment.names import did_you_mean, printable
from continual_segment.organs import LAST_HASHED_ID, Organ, canonical_name, owned_wholes
from continual_segment.packed import PackedVolume
from continual_segment.progress import progress_bar
from continual_segment.segmentation.answers import Voice
from continual_segment.segmentation.backends import BACKENDS, BackendName, start_encoder
from continual_segment.segmentation.explain import (
    Explained,
    MergedScan,
    disagreement,
    measure_quality,
    nearest,
    packs_on_grid,
)
from continual_segment.segmentation.merge import RULES, Merge, MergeRule, only
from continual_segment.segmentation.nested import Nesting, merge
from continual_segment.segmentation.rows import Box, Rows, body_box
from continual_segment.segmentation.sampling import Sampling
from continual_segment.segmentation.scan_grid import LabelsOnScan
from continual_segment.segmentation.slabs import (
    Cut,
    Known,
    Networks,
    PackDecoder,
    Slab,
    count_windows,
    run_slabs,
)
from continual_segment.volume import Grid, LabelMap, Volume


@dataclass(frozen=True)
class SegmentConfig:
    """How scans are cut, how packs are merged, and where all of it is computed."""

    merge: MergeRule = "consensus"
    """Who wins a voxel that several packs claim; segmentation/merge.py explains the rules."""
    nested: bool = True
    """Whether an organ and its parts, such as the aorta and its arch, share voxels instead of competing."""
    body_parts: bool = True
    """Whether merging asks the model's regressor for the body parts of a scan, if it has one."""
    anomalies: bool = True
    """Whether merging asks the model's anomaly heads for diseased tissue, if only some packs know disease."""
    skip_below: float = 0.0
    """A pack is not run on windows whose body parts it covers to at most this share of its best part."""
    overlap: float = 0.5
    """Share of a window that its neighbour covers too."""
    windows_at_once: int = 2
    """Windows that pass the networks together. PyTorch sends small 3D convolutions of one sample to a slow
    kernel on CPUs: two at once take half the time of two in turn. Large windows pass one by one."""
    device: str = "cpu"
    """cpu, cuda, cuda:1, mps, ..."""
    backend: BackendName = "eager"
    """What computes the networks; segmentation/backends.py lists the choices."""
    progress: bool = True
    """Show a bar per scan."""

    def __post_init__(self) -> None:
        if not 0 <= self.overlap < 1:
            raise ValueError(f"overlap is a share from 0 to below 1, not {self.overlap}.")
        if self.merge not in RULES:
            raise ValueError(f"merge is one of {', '.join(RULES)}, not {self.merge!r}.")
        if not 0 <= self.skip_below < 1:
            raise ValueError(f"skip_below is a share from 0 to below 1, not {self.skip_below}.")
        if self.backend not in BACKENDS:
            raise ValueError(f"backend is one of {', '.join(BACKENDS)}, not {self.backend!r}.")
        if self.backend == "openvino" and self.device != "cpu":
            raise ValueError(f"The backend openvino computes on the cpu, not on {self.device}.")
        if self.windows_at_once < 1:
            raise ValueError(f"windows_at_once is at least 1, not {self.windows_at_once}.")


@dataclass(frozen=True, eq=False)
class Request:
    """What is made of one run of the networks."""

    merges: Sequence[Merge]
    grids: Sequence[Grid]
    """Of label maps: the scan's own, or others with its slices (Grid.slice_shifts)."""
    scores: bool = False
    """Whether scores are made, on the first grid."""


@dataclass(frozen=True, eq=False)
class Segmented:
    """A scan's labels on one grid or several."""

    labels: tuple[LabelMap, ...]
    """On every grid asked for."""
    scores: Volume | None
    """On the first."""
    explained: Explained | None
    """On the first."""


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
        chosen = [model.pack(name) for name in wanted_packs(model, packs)]
        self.organs = wanted_organs(model.folder, chosen, organs)
        ids = {organ.id for organ in self.organs}
        chosen = [pack for pack in chosen if ids & {organ.id for organ in pack.organs}]
        device = torch.device(self.config.device)
        self.encode = start_encoder(model.load_encoder().to(device), self.config.backend)
        self.packs = [pack_decoder(pack, device, self.config.backend) for pack in chosen]
        self.regressor = BodyPartRegressor.of_model(model) if self.config.body_parts else None
        self.heads = (
            [head_runner(head, device) for head in anomaly_heads(model)] if self._told_of_disease else []
        )
        self.organs_of_pack = {pack.name: pack.organs for pack in chosen}
        self.nesting = self._nesting_of(*self.organs_of_pack)

    @property
    def rule(self) -> Merge:
        """The merge rule of the config."""
        return self.rule_called(self.config.merge)

    def rule_called(self, name: MergeRule) -> Merge:
        """A merge rule by its name, nested organs as the config says."""
        return partial(merge, RULES[name], nesting=self.nesting if self.config.nested else None)

    def alone(self, pack: str) -> Merge:
        """The rule that labels a scan as this pack does when it is the model's only one.

        Body-part coverage and nested organs count as they do in a model without the other packs.
        """
        nesting = self._nesting_of(pack) if self.config.nested else None
        return only(pack, partial(merge, RULES[self.config.merge], nesting=nesting))

    def _nesting_of(self, *packs: str) -> Nesting:
        """Which organs of these packs are parts of which."""
        return Nesting(owned_wholes({organ for pack in packs for organ in self.organs_of_pack[pack]}))

    def __call__(
        self, scan: Volume, title: str = "segmenting", known: Known | None = None
    ) -> tuple[LabelMap, Volume]:
        """Labels and scores (how sure the winner is) on the scan's grid.

        `known` tells body part and disease of the scan's own slices and voxels, as far as they are known;
        left out, the model's regressor tells the body parts.
        """
        return self.by_rules(scan, [self.rule], title, known)[0]

    def labels(self, scan: Volume, title: str = "segmenting", known: Known | None = None) -> LabelMap:
        """Labels alone, which need less memory."""
        return self.on_grids(scan, [scan.grid], title, known).labels[0]

    def by_rules(
        self, scan: Volume, merges: Sequence[Merge], title: str = "segmenting", known: Known | None = None
    ) -> list[tuple[LabelMap, Volume]]:
        """Labels and scores by each merge rule, for one run of the networks."""
        results = self._run(scan, Request(merges, [scan.grid], scores=True), title, known)
        return [(self._label_map(found, scan.grid), scores_of(found, scan.grid)) for (found,) in results]

    def explained(self, scan: Volume, title: str = "segmenting", known: Known | None = None) -> Explained:
        """Labels and scores, and why they are so."""
        explained = self.on_grids(scan, [scan.grid], title, known, reasons=True).explained
        assert explained is not None
        return explained

    def on_grids(
        self,
        scan: Volume,
        grids: Sequence[Grid],
        title: str = "segmenting",
        known: Known | None = None,
        scores: bool = False,
        reasons: bool = False,
    ) -> Segmented:
        """Labels on several grids that have the scan's slices; scores and reasons on the first of them.

        Voxels that were not scanned are background, whatever the networks make of the padding there.
        """
        merged = self._merged(scan) if reasons else None
        request = Request([self.rule], grids, scores or reasons)
        (found,) = self._run(scan, request, title, known, merged)
        labels = tuple(self._label_map(each, grid) for each, grid in zip(found, grids, strict=True))
        sure = scores_of(found[0], grids[0]) if request.scores else None
        if merged is None or sure is None:
            return Segmented(labels, sure, None)
        return Segmented(labels, sure, self._explained(labels[0], sure, merged, found[0].sampling))

    def _merged(self, scan: Volume) -> MergedScan:
        shape = scan.grid.with_spacing(self.prepare.spacing_mm).shape
        scanned = None if scan.scanned is None else nearest(scan.scanned, shape)
        return MergedScan(shape[1:], len(self.packs), scanned)

    def _explained(
        self, labels: LabelMap, scores: Volume, merged: MergedScan, sampling: Sampling
    ) -> Explained:
        names = {number: pack.voice.name for number, pack in enumerate(self.packs, start=1)}
        scanned = None if sampling.scan is None else sampling.scan.scanned
        return Explained(
            labels,
            scores,
            packs_on_grid(merged, labels, names, sampling),
            measure_quality(merged, labels, names, scanned),
            self.config.merge,
        )

    def _run(
        self,
        scan: Volume,
        request: Request,
        title: str,
        known: Known | None,
        merged: MergedScan | None = None,
    ) -> list[list[LabelsOnScan]]:
        """What each rule says, on each grid; `merged` takes what the first says on the prepared one."""
        prepared, config = on_spacing(scan, self.prepare), self.config
        if prepared is not scan:
            prepared = PackedVolume.compress(prepared)
        box = body_box(prepared, self.window)
        rows = Rows(prepared, self.window, self.prepare.intensity.fitted(prepared), box)
        known = (known_on(known, scan.grid, prepared.grid) if known else self._look(prepared)).inside(box)
        samplings = [Sampling.of(scan, prepared.grid.shape, grid) for grid in request.grids]
        found = [
            [
                LabelsOnScan(merge, sampling, self._wanted, request.scores and number == 0, box)
                for number, sampling in enumerate(samplings)
            ]
            for merge in request.merges
        ]
        networks = Networks(self.encode, self.packs, self.heads)
        cut = Cut(config.overlap, config.windows_at_once, config.skip_below)
        windows = count_windows(rows.shape, self.window, config.overlap)
        with (
            torch.no_grad(),
            progress_bar(
                total=windows, desc=title, unit="window", disable=not config.progress, leave=False
            ) as bar,
        ):
            for slab in run_slabs(rows, networks, cut, known, bar.update):
                self._take(slab, found, merged, box)
                del slab  # before the next row of windows needs memory
        return found

    def _take(
        self, slab: Slab, found: Sequence[Sequence[LabelsOnScan]], merged: MergedScan | None, box: Box
    ) -> None:
        """Decide the next slices by each rule; `found` gets the labels, per rule and grid."""
        doubt = partial(disagreement, nesting=self.nesting) if merged else None
        decided = slab.decide([on_grids[0].merge for on_grids in found], doubt)
        for on_grids, (decision, _) in zip(found, decided, strict=True):
            for each in on_grids:
                each.put(slab, decision)
        if merged:
            decision, contested = decided[0]
            organ = self._wanted[decision.organ.cpu().numpy()]
            merged.put(box, organ, decision, contested)

    @property
    def _told_of_disease(self) -> bool:
        """Whether it matters where tissue is diseased: some packs know disease, others do not."""
        aware = {pack.voice.anomaly_aware for pack in self.packs}
        return self.config.anomalies and len(aware) == 2

    def _look(self, prepared: Volume) -> Known:
        """What the model itself knows of a prepared scan."""
        worth = self.regressor is not None and any(pack.voice.coverage for pack in self.packs)
        return Known(self.regressor.regions(prepared).body_part if worth and self.regressor else None)

    def _label_map(self, found: LabelsOnScan, grid: Grid) -> LabelMap:
        return LabelMap(found.organ, grid, {organ.id: organ.name for organ in self.organs})

    @cached_property
    def _wanted(self) -> np.ndarray:
        """Organ id -> the organ asked for that it is, or 0; nested organs count as the whole they are in."""
        asked = {organ.id for organ in self.organs}
        table = np.zeros(LAST_HASHED_ID + 1, np.uint16)
        for organ in {int(organ) for pack in self.packs for organ in pack.organ_ids}:
            chain = self.nesting.chain(organ) if self.config.nested else [organ]
            table[organ] = next((each for each in reversed(chain) if each in asked), 0)
        return table


def pack_decoder(pack: OrganPack, device: torch.device, backend: BackendName = "eager") -> PackDecoder:
    """A pack ready to run."""
    voice = Voice(pack.name, pack.fingerprint, pack.coverage, bool(pack.anomalies), pack.distribution)
    return PackDecoder(pack.decoder(), [organ.id for organ in pack.organs], device, voice, backend)


def scores_of(found: LabelsOnScan, grid: Grid) -> Volume:
    assert found.score is not None
    return Volume(found.score.astype(np.float32), grid)


def head_runner(head: AnomalyHead, device: torch.device) -> PackDecoder:
    """An anomaly head ready to run, as a decoder of one organ."""
    return PackDecoder(head.head(), [1], device, Voice(head.name, head.fingerprint))


def known_on(known: Known, own: Grid, grid: Grid) -> Known:
    """What is known of a scan on its `own` grid, on the prepared one."""
    part, anomaly = known.body_part, known.anomaly
    if part is not None:
        part = nearest(np.asarray(part), (grid.shape[0],))
    if anomaly is not None:
        anomaly = resample_scan(Volume(anomaly, own), grid).voxels.clip(0, 1)
    return Known(part, anomaly)


def wanted_packs(model: Model, names: Sequence[str] | None) -> list[str]:
    """The packs asked for, or all, by name."""
    known = model.pack_names
    if names is None:
        return sorted(known)
    if not names:
        raise ModelError(f"No pack was asked for. {model.folder} has {', '.join(known) or 'none'}.")
    if unknown := [name for name in names if name not in known]:
        hint = "".join(did_you_mean(name, known) for name in unknown)
        raise ModelError(
            f"{model.folder} has no pack {', '.join(map(printable, unknown))}. {hint}"
            f"Its packs: {', '.join(known) or 'none'}."
        )
    return sorted(set(names))


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
        hint = "".join(did_you_mean(canonical_name(given), known) for given in unknown)
        raise ModelError(
            f"{folder} does not know {', '.join(unknown)}. {hint}It knows {', '.join(sorted(known))}."
        )
    return sorted((known[name] for name in wanted), key=lambda organ: organ.id)
