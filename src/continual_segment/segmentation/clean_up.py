"""Clean-up: islands that an organ cannot have are removed from a finished label map.

A network finds a little spinal cord in the humerus and a little parotid in the shoulder. The training labels
show in how many pieces an organ comes and how far it extends, and a pack stores that (model/pieces.py). An
organ in one piece keeps its largest component, and others only if they are large enough for a piece of a
prediction with a gap. An organ that may come in several pieces keeps every component that is not much smaller
than the smallest piece in training. Of all these, components that would make an organ longer than it is in
training are removed. An organ is judged together with its nested parts, which are removed with it. Voxels of
an island become background, or the whole if the island belongs to a part of one.

In:  a label map, changed in place; OrganPieces by organ
Out: what was removed
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from continual_segment.model.pieces import OrganPieces
from continual_segment.organs import Organ, owned_wholes
from continual_segment.segmentation.components import Components, Runs
from continual_segment.segmentation.nested import Nesting
from continual_segment.segmentation.segment_config import SegmentConfig
from continual_segment.volume import LabelMap, Volume

PackPieces = tuple[Sequence[Organ], Mapping[str, OrganPieces]]
"""The organs of a pack, and the pieces of those that it has measured, by name."""


@dataclass(frozen=True)
class CleanUpConfig:
    """Which components of an organ are islands; the largest never is."""

    one_piece: float = 0.95
    """An organ counts as one piece if at least this share of training scans shows it in one."""
    smallest: float = 0.5
    """Of other organs, components of at least this share of the smallest piece in training are kept."""
    broken: float = 0.2
    """Components of at least this share of the largest are kept: the prediction has a gap."""
    reach: float = 1.25
    """With the components that are kept, an organ is at most so many times as long as its largest extent in
    training, along axes where that is known."""

    def least_voxels(self, known: OrganPieces, largest: int, voxel_ml: float) -> float:
        """Smallest component that is kept."""
        in_one_piece = known.pieces[0] >= self.one_piece * known.scans
        real = math.inf if in_one_piece else self.smallest * known.smallest_piece_ml / voxel_ml
        return min(real, self.broken * largest)

    def longest_mm(self, known: OrganPieces) -> np.ndarray:
        """Along (z, y, x)."""
        extent = known.extent_mm or (None,) * 3
        return self.reach * np.array([math.inf if side is None else side for side in extent])


@dataclass(frozen=True)
class RemovedIslands:
    """The islands of one organ, with the nested parts in them."""

    organ: str
    ml: float
    pieces: int


@dataclass(frozen=True)
class CleanUp:
    """What was removed from one label map."""

    islands: tuple[RemovedIslands, ...] = ()
    """By label; organs without islands are left out."""
    changed: frozenset[int] = frozenset()
    """Labels that have lost or gained voxels."""

    def apply_to(self, scores: Volume | None, labels: LabelMap) -> None:
        """Set the scores of removed voxels to 0, in place; those that became a whole keep theirs."""
        if self.changed and scores is not None:
            scores.voxels[labels.voxels == 0] = 0


class IslandRemover:
    """Removes islands by what packs know of their organs."""

    def __init__(self, known: Mapping[int, OrganPieces], nesting: Nesting) -> None:
        """`known` is by organ id; organs that it lacks keep their islands."""
        self.known, self.nesting = known, nesting

    @classmethod
    def of(cls, packs: Sequence[PackPieces], organs: Sequence[Organ], config: SegmentConfig) -> IslandRemover:
        """For label maps of these organs by these packs.

        If organs are not nested, a whole competes with its parts and loses voxels to them: it is not judged.
        """
        if config.keep_islands:
            return cls({}, Nesting({}))
        known = known_pieces(packs)
        if config.nested:
            return cls(known, Nesting(owned_wholes(organs)))
        wholes = owned_wholes({organ for each, _ in packs for organ in each}).values()
        return cls({organ: known[organ] for organ in known.keys() - wholes}, Nesting({}))

    def __call__(self, labels: LabelMap, *others: LabelMap) -> CleanUp:
        """Remove islands in place; the result describes the first map, `others` are on other grids."""
        if not self.known:
            return CleanUp()
        found = remove_islands(labels, self.known, self.nesting)
        for each in others:
            remove_islands(each, self.known, self.nesting)
        return found


def known_pieces(packs: Iterable[PackPieces]) -> dict[int, OrganPieces]:
    """Organ id -> its pieces, of organs that every pack which knows them has measured."""
    found: dict[int, list[OrganPieces | None]] = defaultdict(list)
    for organs, pieces in packs:
        for organ in organs:
            found[organ.id].append(pieces.get(organ.name))
    return {
        organ: OrganPieces.pooled(each for each in measured if each)
        for organ, measured in found.items()
        if None not in measured
    }


def remove_islands(
    labels: LabelMap,
    known: Mapping[int, OrganPieces],
    nesting: Nesting,
    config: CleanUpConfig | None = None,
) -> CleanUp:
    """Remove the islands of all organs whose pieces are known, wholes first. Changes `labels` in place.

    Organs of one layer share no voxel, so their order has no effect.
    """
    config = config or CleanUpConfig()
    runs, families = Runs.of(labels), nesting.families(labels.names)
    shown = runs.present
    present = [label for label in labels.names if not shown.isdisjoint(families[label])]
    islands, changed = {}, set()
    for label in sorted(set(present) & known.keys(), key=lambda label: len(nesting.chain(label))):
        found = runs.components(families[label])
        least = config.least_voxels(known[label], int(found.sizes.max()), labels.grid.voxel_ml)
        kept = kept_components(found, least, config.longest_mm(known[label]))
        if kept[1:].all():
            continue
        parts = [part for part in families[label] if part != label and part in shown]
        kept = with_every_part(kept, found, runs, parts)
        if not kept[1:].all():
            islands[label] = described(labels, label, found, kept)
            value = nesting.wholes.get(label, 0)
            changed |= runs.fill(found.runs_of(~kept), value) | {value}
    return CleanUp(tuple(islands[label] for label in sorted(islands)), frozenset(changed - {0}))


def kept_components(found: Components, least: float, longest_mm: np.ndarray) -> np.ndarray:
    """bool by number: the largest component, and others of at least so many voxels within reach of it.

    Larger ones come first. Where the largest is longer than `longest_mm`, others may not make it longer.
    """
    largest, *others = np.argsort(-found.sizes, kind="stable")
    kept = found.sizes < 0
    kept[largest] = True
    for number in others:
        if found.sizes[number] < least or number == 0:
            break
        joined = kept.copy()
        joined[number] = True
        now, then = (found.boxes.union(each).extents_mm[0] for each in (kept, joined))
        kept[number] = (then <= np.maximum(longest_mm, now)).all()
    kept[0] = True  # is not a component
    return kept


def with_every_part(kept: np.ndarray, found: Components, runs: Runs, parts: list[int]) -> np.ndarray:
    """The same, and for a part that would disappear, the component with most of it."""
    label, length = runs.label[found.runs], runs.length[found.runs]
    inside = [np.bincount(found.number, length * (label == part), len(kept)) for part in parts]
    rescued = [counts.argmax() for counts in inside if counts.any() and not counts[kept].any()]
    kept = kept.copy()
    kept[rescued] = True
    return kept


def described(labels: LabelMap, label: int, found: Components, kept: np.ndarray) -> RemovedIslands:
    ml = float(found.sizes[~kept].sum()) * labels.grid.voxel_ml
    return RemovedIslands(labels.names[label], round(ml, 3), int((~kept).sum()))
