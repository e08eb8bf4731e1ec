"""MultiSegmenter: several models with encoders of their own on one scan, merged into one label map.

TotalSegmentator's organs, for example, are five networks, and each becomes a model of its own. Every model
labels the scan; where labels are, the merge rule then decides between models as it does between the packs of
one. A model takes part with its label and score: its second choice is not kept, so that memory does not grow
with the organs.

In:  a scan, one Segmenter per model
Out: Segmentation; the packs of its explanation are the models
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import ceil
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from continual_segment.errors import ModelError
from continual_segment.model import Model
from continual_segment.names import did_you_mean, printable
from continual_segment.organs import Organ, canonical_name, owned_wholes, with_distinct_ids
from continual_segment.packed import PackedVoxels
from continual_segment.segmentation.clean_up import IslandRemover
from continual_segment.segmentation.context import ScanContext
from continual_segment.segmentation.explanation import ExplanationBuilder, disagreement
from continual_segment.segmentation.merge import RULES, MergeRule
from continual_segment.segmentation.nested import Nesting, merge_predictions
from continual_segment.segmentation.padded_scan import WHOLE
from continual_segment.segmentation.predictions import Decision, PackPrediction, PackProfile
from continual_segment.segmentation.sampling import on_grid
from continual_segment.segmentation.segment_config import SegmentConfig
from continual_segment.segmentation.segmenter import Segmentation, Segmenter
from continual_segment.segmentation.slab import PROBABILITIES_AT_ONCE
from continual_segment.volume import Grid, LabelMap, Volume

if TYPE_CHECKING:
    from continual_segment.volume import Scan

SLICES_AT_ONCE = 8


class LabelledScan:
    """The labels and scores of one model, compressed."""

    def __init__(
        self, name: str, organs: Sequence[Organ], merged: Mapping[str, Organ], found: Segmentation
    ) -> None:
        """`organs` are the model's, sorted by their ids in it; `merged` has their ids among all models."""
        assert found.scores is not None
        self.profile = PackProfile(name, name)
        self.own_ids = torch.tensor([0, *(organ.id for organ in organs)])
        self.organ_ids = torch.tensor([0, *(merged[organ.name].id for organ in organs)], dtype=torch.int32)
        self.labels = PackedVoxels.of(found.labels.voxels)
        self.scores = PackedVoxels.of(found.scores.voxels.astype(np.float16))

    def predict(self, labels: np.ndarray, scores: np.ndarray) -> PackPrediction:
        """The prediction at some voxels (voxel,): a label has its score, and won against background."""
        organ = torch.from_numpy(labels.astype(np.int64))
        channel = torch.searchsorted(self.own_ids, organ)
        score = torch.from_numpy(scores.astype(np.float32))
        probabilities = torch.zeros(len(self.organ_ids), len(organ))
        probabilities.scatter_(0, channel[None], score[None])
        probabilities[0] = torch.where(organ > 0, torch.minimum(1 - score, score / 2), 1.0)
        return PackPrediction(self.profile, self.organ_ids, probabilities[..., None, None])


class MultiSegmenter:
    """Several models in memory, ready for any number of scans."""

    def __init__(
        self,
        models: Sequence[Model],
        organs: Sequence[str] | None = None,
        packs: Sequence[str] | None = None,
        config: SegmentConfig | None = None,
    ) -> None:
        """`organs` and `packs` restrict what is segmented; a model without any of them does not run."""
        self.config = config or SegmentConfig()
        self._known = with_distinct_ids(organ for model in models for organ in model.organs.values())
        check_known("pack", packs, {name for model in models for name in model.pack_names})
        asked = [[name for name in model.pack_names if packs is None or name in packs] for model in models]
        known = [
            {organ.name for name in names for organ in model.organs_of(model.pack(name))}
            for model, names in zip(models, asked, strict=True)
        ]
        owners = "models" if packs is None else "requested packs"
        check_known(
            "organ", organs and [canonical_name(name) for name in organs], set().union(*known), owners
        )
        each_config = replace(self.config, keep_islands=True)  # an island is judged where all models agreed
        self.segmenters: dict[str, Segmenter] = {}
        for number, (model, own_packs, there) in enumerate(zip(models, asked, known, strict=True), start=1):
            own_organs = organs and [name for name in organs if canonical_name(name) in there]
            if own_organs == [] or (packs is not None and not own_packs):
                continue
            name = f"{number} {model.folder.name}"  # models in different folders may have one name
            self.segmenters[name] = Segmenter(model, own_organs, packs and own_packs, each_config)

    @cached_property
    def organs(self) -> list[Organ]:
        """All organs that are segmented, by id."""
        names = {organ.name for segmenter in self.segmenters.values() for organ in segmenter.organs}
        return sorted((self._known[name] for name in names), key=lambda organ: organ.id)

    @cached_property
    def remove_islands(self) -> IslandRemover:
        """Clean-up of the merged labels, from the pieces that the packs of all models have measured."""
        packs = [
            ([self._known[organ.name] for organ in organs], pieces)
            for each in self.segmenters.values()
            for organs, pieces in each.measured_pieces
        ]
        return IslandRemover.of(packs, self.organs, self.config)

    @cached_property
    def nesting(self) -> Nesting:
        """Which organs of all models are parts of which."""
        return Nesting(owned_wholes(self.organs))

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
        """Segment a scan; arguments and result are those of a Segmenter."""
        scan = Volume.of(scan)
        labelled = [
            LabelledScan(name, each.organs, self._known, found)
            for name, each in self.segmenters.items()
            for found in [each(scan, scores=True, context=context, title=f"{title} {name}")]
        ]
        merged = self._merge(scan, labelled, explain)
        grids = (grid or scan.grid, *extra_grids)
        names = {organ.id: organ.name for organ in self.organs}
        labels, *labels_on = (LabelMap(on_grid(scan, merged.labels, each), each, names) for each in grids)
        cleaned = self.remove_islands(labels, *labels_on)
        kept = Volume(on_grid(scan, merged.scores, grids[0]), grids[0]) if scores or explain else None
        cleaned.apply_to(kept, labels)
        explanation = None
        if merged.builder:
            nearest = partial(on_grid, scan, grid=labels.grid)
            rule, changed = self.config.merge, cleaned.changed
            explanation = merged.builder.explain(nearest, rule, scan, labels, kept, changed)
        return Segmentation(labels, kept, explanation, tuple(labels_on), cleaned.islands)

    def _merge(self, scan: Volume, labelled: Sequence[LabelledScan], explain: bool) -> _Merged:
        merged = _Merged(scan, list(self.segmenters) if explain else None)
        nesting = self.nesting if self.config.nested else None
        rule = partial(merge_predictions, RULES[self.config.merge], nesting=nesting)
        for first in range(0, scan.grid.shape[0], SLICES_AT_ONCE):
            part = slice(first, min(first + SLICES_AT_ONCE, scan.grid.shape[0]))
            merged.add(part, *merge_slices(labelled, part, rule, self.nesting))
        return merged


class _Merged:
    """What is merged so far, on the scan's grid."""

    def __init__(self, scan: Volume, models: Sequence[str] | None) -> None:
        self.labels = np.zeros(scan.grid.shape, np.uint16)
        self.scores = np.zeros(scan.grid.shape, np.float32)
        plane = scan.grid.shape[1:]
        self.builder = ExplanationBuilder(plane, models, scan.scanned) if models is not None else None

    def add(self, part: slice, decision: Decision, contested: Tensor) -> None:
        self.labels[part] = decision.organ.numpy()
        self.scores[part] = decision.score.numpy()
        if self.builder:
            self.builder.add(WHOLE, self.labels[part], decision, contested)


def merge_slices(
    labelled: Sequence[LabelledScan], part: slice, rule: MergeRule, nesting: Nesting
) -> tuple[Decision, Tensor]:
    """The rule's decision on some slices, and where a model disagrees; only labelled voxels are decided."""
    labels = [each.labels[part] for each in labelled]
    scores = [each.scores[part] for each in labelled]
    merged = Decision.background(labels[0].shape, torch.device("cpu"))
    contested = torch.zeros(labels[0].shape, dtype=torch.bool)
    for voxels in _some_at_once(np.flatnonzero(np.logical_or.reduce(labels)), labelled):
        predictions = [
            each.predict(own.flat[voxels], score.flat[voxels])
            for each, own, score in zip(labelled, labels, scores, strict=True)
        ]
        decision = rule(predictions, ScanContext())
        index = torch.from_numpy(voxels)
        for target, found in zip(merged, decision, strict=True):
            target.flatten()[index] = found.flatten()
        contested.flatten()[index] = disagreement(predictions, decision, nesting).flatten()
    return merged, contested


def _some_at_once(voxels: np.ndarray, labelled: Sequence[LabelledScan]) -> Iterator[np.ndarray]:
    channels = sum(len(each.organ_ids) for each in labelled)
    count = ceil(len(voxels) * channels / PROBABILITIES_AT_ONCE)
    yield from np.array_split(voxels, count) if count else ()


def check_known(what: str, requested: Sequence[str] | None, known: set[str], owners: str = "models") -> None:
    """Raise for names that none of the owners has, or for an empty list of them."""
    there = ", ".join(sorted(known)) or "none"
    if requested is not None and not requested:
        raise ModelError(f"No {what} was requested. The {owners} have {there}.")
    for name in requested or ():
        if name not in known:
            raise ModelError(
                f"None of the {owners} has the {what} {printable(name)}. {did_you_mean(name, sorted(known))}"
                f"They have {there}."
            )


def open_segmenter(
    models: Sequence[Model],
    organs: Sequence[str] | None = None,
    packs: Sequence[str] | None = None,
    config: SegmentConfig | None = None,
) -> Segmenter | MultiSegmenter:
    """A Segmenter of one model, or a MultiSegmenter of several."""
    if len(models) == 1:
        return Segmenter(models[0], organs, packs, config)
    return MultiSegmenter(models, organs, packs, config)
