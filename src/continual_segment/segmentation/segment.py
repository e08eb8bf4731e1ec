"""Segmenter: a scan in, its label map on the scan's own grid out.

The model is loaded once for any number of scans. The encoder runs once per window and every decoder
reads the same features; where packs meet, a merge rule decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from continual_segment.body_parts import BodyPartRegressor
from continual_segment.data.prepare import on_spacing
from continual_segment.data.resample import resample_scan
from continual_segment.errors import ModelError
from continual_segment.model import Model, OrganPack
from continual_segment.model.head import AnomalyHead, anomaly_heads
from continual_segment.organs import LAST_HASHED_ID, Organ, canonical_name, owned_wholes
from continual_segment.packed import PackedVolume
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
from continual_segment.segmentation.merge import RULES, Merge, MergeRule
from continual_segment.segmentation.nested import Nesting, merge
from continual_segment.segmentation.rows import Box, Rows, body_box
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
        names = sorted(model.pack_names if packs is None else packs)
        chosen = [model.pack(name) for name in names]
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
        self.nesting = Nesting(owned_wholes({organ for pack in chosen for organ in pack.organs}))

    @property
    def rule(self) -> Merge:
        """The merge rule of the config."""
        return self.rule_called(self.config.merge)

    def rule_called(self, name: MergeRule) -> Merge:
        """A merge rule by its name, nested organs as the config says."""
        return partial(merge, RULES[name], nesting=self.nesting if self.config.nested else None)

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
        (found,) = self._run(scan, [self.rule], title, known)
        return self._label_map(scan, found)

    def by_rules(
        self, scan: Volume, merges: Sequence[Merge], title: str = "segmenting", known: Known | None = None
    ) -> list[tuple[LabelMap, Volume]]:
        """Labels and scores by each merge rule, for one run of the networks."""
        results = self._run(scan, merges, title, known, scores=True)
        return [(self._label_map(scan, found), scores_of(scan, found)) for found in results]

    def explained(self, scan: Volume, title: str = "segmenting", known: Known | None = None) -> Explained:
        """Labels and scores, and why they are so."""
        _, height, width = scan.grid.with_spacing(self.prepare.spacing_mm).shape
        merged = MergedScan((height, width), len(self.packs))
        (found,) = self._run(scan, [self.rule], title, known, scores=True, merged=merged)
        labels = self._label_map(scan, found)
        names = {number: pack.voice.name for number, pack in enumerate(self.packs, start=1)}
        return Explained(
            labels,
            scores_of(scan, found),
            packs_on_grid(merged, labels, names),
            measure_quality(merged, labels, names),
            self.config.merge,
        )

    def _run(
        self,
        scan: Volume,
        merges: Sequence[Merge],
        title: str,
        known: Known | None,
        scores: bool = False,
        merged: MergedScan | None = None,
    ) -> list[LabelsOnScan]:
        """What each rule says, on the scan's grid; `merged` takes what the first says on the prepared one."""
        prepared, config = on_spacing(scan, self.prepare), self.config
        if prepared is not scan:
            prepared = PackedVolume.of(prepared)
        box = body_box(prepared, self.window)
        rows = Rows(prepared, self.window, self.prepare.intensity.fitted(prepared), box)
        known = (known_on(known, scan.grid, prepared.grid) if known else self._look(prepared)).inside(box)
        found = [
            LabelsOnScan(merge, prepared.grid.shape, scan.grid.shape, self._wanted, scores, box)
            for merge in merges
        ]
        networks = Networks(self.encode, self.packs, self.heads)
        cut = Cut(config.overlap, config.windows_at_once, config.skip_below)
        windows = count_windows(rows.shape, self.window, config.overlap)
        with (
            torch.no_grad(),
            tqdm(total=windows, desc=title, unit="window", disable=not config.progress, leave=False) as bar,
        ):
            for slab in run_slabs(rows, networks, cut, known, bar.update):
                self._take(slab, found, merged, box)
                del slab  # before the next row of windows needs memory
        return found

    def _take(self, slab: Slab, found: Sequence[LabelsOnScan], merged: MergedScan | None, box: Box) -> None:
        """Decide the next slices by the rule of each in `found`, which gets the labels."""
        doubt = partial(disagreement, nesting=self.nesting) if merged else None
        decided = slab.decide([each.merge for each in found], doubt)
        for each, (decision, _) in zip(found, decided, strict=True):
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

    def _label_map(self, scan: Volume, found: LabelsOnScan) -> LabelMap:
        return LabelMap(found.organ, scan.grid, {organ.id: organ.name for organ in self.organs})

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
    distribution = pack.card.get("body_parts", {}).get("distribution", {})
    voice = Voice(pack.name, pack.fingerprint, pack.coverage, bool(pack.anomalies), distribution)
    return PackDecoder(pack.decoder(), [organ.id for organ in pack.organs], device, voice, backend)


def scores_of(scan: Volume, found: LabelsOnScan) -> Volume:
    assert found.score is not None
    return Volume(found.score.astype(np.float32), scan.grid)


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
        near = {match for given in unknown for match in get_close_matches(canonical_name(given), known, 2)}
        hint = f"Did you mean {' or '.join(sorted(near))}? " if near else ""
        raise ModelError(
            f"{folder} does not know {', '.join(unknown)}. {hint}It knows {', '.join(sorted(known))}."
        )
    return sorted((known[name] for name in wanted), key=lambda organ: organ.id)
