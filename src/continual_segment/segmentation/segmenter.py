"""Segmenter: a scan and a model in, a Segmentation on the scan's own grid out.

The model is loaded once for any number of scans. The encoder runs once per window, every decoder reads its
features, and a merge rule decides voxels where packs disagree. docs/segmentation.md shows the steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from continual_segment.body_parts import BodyPartRegressor
from continual_segment.errors import ModelError
from continual_segment.model import Model
from continual_segment.model.head import anomaly_heads
from continual_segment.names import did_you_mean, printable
from continual_segment.organs import LAST_HASHED_ID, Organ, canonical_name, owned_wholes
from continual_segment.progress import progress_bar
from continual_segment.segmentation.anomaly_decoder import AnomalyDecoder
from continual_segment.segmentation.backends import Engine, FloatEngine
from continual_segment.segmentation.clean_up import IslandRemover, PackPieces, RemovedIslands
from continual_segment.segmentation.context import ScanContext
from continual_segment.segmentation.domain import DomainComparison, describe_scan
from continual_segment.segmentation.explanation import Explanation, ExplanationBuilder, disagreement
from continual_segment.segmentation.int8 import int8_engine
from continual_segment.segmentation.label_upsampler import LabelUpsampler
from continual_segment.segmentation.merge import (
    READ_DISEASE,
    READ_FAMILIARITY,
    RULES,
    MergeRule,
    RuleName,
    only,
)
from continual_segment.segmentation.nearby_packs import NearbyPacks
from continual_segment.segmentation.nested import Nesting, merge_predictions
from continual_segment.segmentation.pack_decoder import PackDecoder
from continual_segment.segmentation.prepared_scan import PreparedScan, prepare_for_windows
from continual_segment.segmentation.sampling import Sampling
from continual_segment.segmentation.segment_config import SegmentConfig
from continual_segment.segmentation.slab import Slab
from continual_segment.segmentation.sliding_window import SlidingWindow, count_windows
from continual_segment.volume import Grid, LabelMap, Volume

if TYPE_CHECKING:
    from continual_segment.volume import Scan


@dataclass(frozen=True, eq=False)
class Segmentation:
    """The result for one scan."""

    labels: LabelMap
    """Organ ids with their names, on the scan's grid."""
    scores: Volume | None = None
    """Probability of the winning organ of each voxel, 0 on background; None unless requested."""
    explanation: Explanation | None = None
    """Winning packs and quality; None unless requested."""
    labels_on: tuple[LabelMap, ...] = ()
    """The labels on each of the extra grids."""
    removed: tuple[RemovedIslands, ...] = ()
    """What clean-up removed from the labels."""


@dataclass(frozen=True)
class LabelRule:
    """How predictions of the packs become labels."""

    merge: MergeRule
    remove_islands: IslandRemover


class Segmenter:
    """A model in memory, ready for any number of scans."""

    def __init__(
        self,
        model: Model,
        organs: Sequence[str] | None = None,
        packs: Sequence[str] | None = None,
        config: SegmentConfig | None = None,
    ) -> None:
        """`organs` and `packs` restrict what is segmented; packs without any of these organs do not run."""
        self.config = config or SegmentConfig()
        self.prepare, self.window = model.prepare, model.window
        self.encoder_fingerprint = model.encoder_fingerprint
        chosen = [model.pack(name) for name in requested_packs(model, packs)]
        known = {pack.name: model.organs_of(pack) for pack in chosen}
        self.organs = requested_organs(model.folder, known.values(), organs)
        ids = {organ.id for organ in self.organs}
        chosen = [pack for pack in chosen if ids & {organ.id for organ in known[pack.name]}]
        device = torch.device(self.config.device)
        self.engine = choose_engine(model, self.config)
        self.encode = self.engine.encoder(model.load_encoder().to(device))
        options = self.engine, self.config.mirror, model.prepare.nnunet is not None
        self.packs = [PackDecoder.of_pack(pack, known[pack.name], device, *options) for pack in chosen]
        self.regressor = BodyPartRegressor.of_model(model) if self.config.body_parts else None
        heads = anomaly_heads(model) if self._uses_anomalies else []
        self.heads = [AnomalyDecoder(head, device, model.prepare.spacing_mm[1:]) for head in heads]
        self.organs_of_pack = {pack.name: known[pack.name] for pack in chosen}
        self.pieces_of_pack = {pack.name: pack.pieces for pack in chosen}
        """What each pack knows of the pieces of its organs."""
        self.nesting = self._nesting_of(*self.organs_of_pack)

    def __call__(
        self,
        scan: Scan,
        *,
        scores: bool = False,
        explain: bool = False,
        context: ScanContext | None = None,
        grid: Grid | None = None,
        extra_grids: Sequence[Grid] = (),
        title: str = "segmenting",
    ) -> Segmentation:
        """Segment a scan: a path, a nibabel image, a SimpleITK image or a Volume.

        Labels alone need the least memory; `explain` includes the scores.
        `context` gives body parts and disease on the scan's grid, where they are known; by default the
        model's regressor finds the body parts. Labels, scores and explanation are on `grid`, by default the
        scan's; further label maps are on `extra_grids`. All of these have the scan's slices, possibly shifted
        within their planes (Grid.slice_shifts). Voxels that were not scanned are background.
        """
        scan = Volume.of(scan)
        prepared, grids = (
            prepare_for_windows(scan, self.prepare, self.window),
            (grid or scan.grid, *extra_grids),
        )
        first, *others = prepared.samplings(grids)
        rule, nearby = self.merge_rule(), self._nearby
        upsamplers = [self._upsampler(rule, first, scores or explain, nearby)]
        upsamplers += [self._upsampler(rule, sampling, nearby=nearby) for sampling in others]
        builder = self._builder(prepared) if explain else None
        self._run(prepared, self._context(prepared, context), [upsamplers], builder, title)
        labels, *labels_on = self._label_maps(prepared, upsamplers, grids)
        cleaned = rule.remove_islands(labels, *labels_on)
        kept = scores_of(upsamplers[0], prepared, grids[0])
        cleaned.apply_to(kept, labels)
        explanation = None
        if builder:
            nearest = partial(prepared.nearest, grid=labels.grid)
            explanation = builder.explain(nearest, self.rule, scan, labels, kept, cleaned.changed)
        return Segmentation(labels, kept, explanation, tuple(labels_on), cleaned.islands)

    def compare_rules(
        self,
        scan: Volume,
        rules: Mapping[str, LabelRule],
        *,
        scores: bool = False,
        context: ScanContext | None = None,
        title: str = "segmenting",
    ) -> dict[str, Segmentation]:
        """The segmentation by each rule, from one run of the networks.

        `merge_rule` and `single_pack_rule` make the rules: `{name: merge_rule(name) for name in RULES}`.
        """
        prepared, grid = prepare_for_windows(scan, self.prepare, self.window), scan.grid
        (sampling,) = prepared.samplings([grid])
        upsamplers = {name: self._upsampler(rule, sampling, scores) for name, rule in rules.items()}
        known = self._context(prepared, context, any_rule=True)
        self._run(prepared, known, [[each] for each in upsamplers.values()], None, title)
        found = {}
        for name, upsampler in upsamplers.items():
            (labels,) = self._label_maps(prepared, [upsampler], [grid])
            cleaned, kept = rules[name].remove_islands(labels), scores_of(upsampler, prepared, grid)
            cleaned.apply_to(kept, labels)
            found[name] = Segmentation(labels, kept, removed=cleaned.islands)
        return found

    @property
    def rule(self) -> RuleName:
        """The config's merge rule, or `consensus` in place of `weighted` if a pack knows nothing of itself.

        Beside packs that are weighed, one that is not would win too often.
        """
        unknown = any(pack.profile.domain is None for pack in self.packs)
        return "consensus" if self.config.merge == "weighted" and unknown else self.config.merge

    def merge_rule(self, name: RuleName | None = None) -> LabelRule:
        """All packs by a merge rule, by default the config's; nested organs and islands as in the config."""
        return self._label_rule(self.organs_of_pack, name)

    def single_pack_rule(self, pack: str) -> LabelRule:
        """The config's merge rule and clean-up as they label a scan in a model with this pack alone.

        Body-part coverage, nested organs and pieces count as in a model without the other packs.
        """
        rule = self._label_rule([pack])
        return replace(rule, merge=only(pack, rule.merge))

    def _label_rule(self, packs: Collection[str], name: RuleName | None = None) -> LabelRule:
        nesting = self._nesting_of(*packs) if self.config.nested else None
        merge = partial(merge_predictions, RULES[name or self.rule], nesting=nesting)
        pieces = [(self.organs_of_pack[pack], self.pieces_of_pack[pack]) for pack in packs]
        known = {organ for organs, _ in pieces for organ in organs}
        organs = [organ for organ in self.organs if organ in known]
        return LabelRule(merge, IslandRemover.of(pieces, organs, self.config))

    def _run(
        self,
        scan: PreparedScan,
        known: ScanContext,
        upsamplers: Sequence[Sequence[LabelUpsampler]],
        builder: ExplanationBuilder | None,
        title: str,
    ) -> None:
        """Run the networks on a scan and merge every slab; `upsamplers` holds one list of grids per rule."""
        config = self.config
        sliding = SlidingWindow(scan.padded, self.encode, self.packs, self.heads, known, config, scan.tiling)
        windows = count_windows(scan.padded.shape, self.window, config.overlap, scan.tiling)
        with (
            torch.no_grad(),
            progress_bar(
                total=windows, desc=title, unit="window", disable=not config.progress, leave=False
            ) as bar,
        ):
            for slab in sliding.slabs(bar.update):
                self.merge_slab(slab, upsamplers, builder)
                del slab  # before the next row of windows needs memory

    def _context(self, scan: PreparedScan, given: ScanContext | None, any_rule: bool = False) -> ScanContext:
        """What is known about a scan before it is segmented, as far as the merge rule asks for it."""
        needed = any(pack.profile.coverage for pack in self.packs)
        known = scan.context(given, self.regressor if needed else None)
        if known.familiar or not (any_rule or self.rule in READ_FAMILIARITY):
            return known
        return replace(known, familiar=self.familiarity(scan))

    def familiarity(self, scan: PreparedScan) -> dict[str, float]:
        """Fingerprint of each pack with a domain -> how much the scan looks like its training scans."""
        if self._domains is None:
            return {}
        return self._domains.familiarity(describe_scan(scan.padded, self.encode, self._device))

    @cached_property
    def _domains(self) -> DomainComparison | None:
        """None if there is nothing to compare."""
        known = {pack.profile.fingerprint: pack.profile.domain for pack in self.packs}
        domains = {pack: domain for pack, domain in known.items() if domain}
        return DomainComparison(domains) if len(domains) > 1 else None

    @property
    def _device(self) -> torch.device:
        return torch.device(self.config.device)

    def merge_slab(
        self,
        slab: Slab,
        upsamplers: Sequence[Sequence[LabelUpsampler]],
        builder: ExplanationBuilder | None,
    ) -> None:
        """Merge the next slices by each rule and write their labels; `builder` explains the first rule."""
        contested = partial(disagreement, nesting=self.nesting) if builder else None
        merged = slab.merge([of_rule[0].rule for of_rule in upsamplers], contested, upsamplers[0][0].nearby)
        for of_rule, (decision, _) in zip(upsamplers, merged, strict=True):
            for upsampler in of_rule:
                upsampler.add(slab, decision)
        if builder:
            decision, where = merged[0]
            builder.add(slab.box, self._label_of[decision.organ.cpu().numpy()], decision, where)

    def _upsampler(
        self,
        rule: LabelRule,
        sampling: Sampling,
        scores: bool = False,
        nearby: NearbyPacks | None = None,
    ) -> LabelUpsampler:
        return LabelUpsampler(rule.merge, sampling, self._label_of, scores, nearby)

    @cached_property
    def _nearby(self) -> NearbyPacks | None:
        """None where packs that see no organ nearby count all the same, or could not be found.

        Of overlapping regions only one is in a prediction, the others may be present as well.
        """
        if self.rule not in ("consensus", "weighted") or any(pack.regions for pack in self.packs):
            return None
        return NearbyPacks(self.packs, self.nesting if self.config.nested else Nesting({}))

    def _label_maps(
        self, scan: PreparedScan, found: Sequence[LabelUpsampler], grids: Sequence[Grid]
    ) -> list[LabelMap]:
        names = {organ.id: organ.name for organ in self.organs}
        voxels = scan.on_grids([each.organ for each in found], grids)
        return [LabelMap(each, grid, names) for each, grid in zip(voxels, grids, strict=True)]

    def _builder(self, scan: PreparedScan) -> ExplanationBuilder:
        return ExplanationBuilder(scan.shape[1:], [pack.profile.name for pack in self.packs], scan.scanned)

    @property
    def measured_pieces(self) -> list[PackPieces]:
        """The organs of each pack, and the pieces of those that it has measured."""
        return list(zip(self.organs_of_pack.values(), self.pieces_of_pack.values(), strict=True))

    def _nesting_of(self, *packs: str) -> Nesting:
        """Which organs of these packs are parts of which."""
        return Nesting(owned_wholes({organ for pack in packs for organ in self.organs_of_pack[pack]}))

    @property
    def _uses_anomalies(self) -> bool:
        """Whether the rule reads disease: most do so only if some packs know disease and others do not."""
        if not self.config.anomalies or self.rule not in READ_DISEASE:
            return False
        return self.rule == "literal" or len({pack.profile.anomaly_aware for pack in self.packs}) == 2

    @cached_property
    def _label_of(self) -> np.ndarray:
        """Organ id -> label: the requested organ, the requested whole that it is part of, or 0."""
        requested = {organ.id for organ in self.organs}
        table = np.zeros(LAST_HASHED_ID + 1, np.uint16)
        for organ in {int(organ) for pack in self.packs for organ in pack.organ_ids}:
            chain = self.nesting.chain(organ) if self.config.nested else [organ]
            table[organ] = next((each for each in reversed(chain) if each in requested), 0)
        return table


def choose_engine(model: Model, config: SegmentConfig) -> Engine:
    return int8_engine(model) if config.backend == "int8" else FloatEngine(config.backend)


def scores_of(found: LabelUpsampler, scan: PreparedScan, grid: Grid) -> Volume | None:
    if found.score is None:
        return None
    (score,) = scan.on_grids([found.score], [grid])
    return Volume(score.astype(np.float32), grid)


def requested_packs(model: Model, names: Sequence[str] | None) -> list[str]:
    """The requested packs, or all, by name."""
    known = model.pack_names
    if names is None:
        return sorted(known)
    if not names:
        raise ModelError(f"No pack was requested. {model.folder} has {', '.join(known) or 'none'}.")
    if unknown := [name for name in names if name not in known]:
        hint = "".join(did_you_mean(name, known) for name in unknown)
        raise ModelError(
            f"{model.folder} has no pack {', '.join(map(printable, unknown))}. {hint}"
            f"Its packs: {', '.join(known) or 'none'}."
        )
    return sorted(set(names))


def requested_organs(
    folder: Path, packs: Iterable[Sequence[Organ]], names: Sequence[str] | None
) -> list[Organ]:
    """The requested organs, or all organs of the packs, sorted by id."""
    known = {organ.name: organ for organs in packs for organ in organs}
    if not known:
        raise ModelError(f"{folder} has no packs. Add one with `conseg pack add` or `conseg learn`.")
    if names is None:
        return sorted(known.values(), key=lambda organ: organ.id)
    requested = {canonical_name(name): name for name in names}
    if not requested:
        raise ModelError(f"No organ was requested. {folder} knows {', '.join(sorted(known))}.")
    if unknown := [given for name, given in requested.items() if name not in known]:
        hint = "".join(did_you_mean(canonical_name(given), known) for given in unknown)
        raise ModelError(
            f"{folder} does not know {', '.join(unknown)}. {hint}It knows {', '.join(sorted(known))}."
        )
    return sorted((known[name] for name in requested), key=lambda organ: organ.id)
