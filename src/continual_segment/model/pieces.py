"""OrganPieces: in how many connected pieces an organ comes, and how far it extends, by training labels.

Clean-up removes islands by it. A few numbers per organ are stored on the card of the pack, nothing of a
patient; a pack without them is not cleaned up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from continual_segment.errors import ModelError
from continual_segment.files.records import as_record
from continual_segment.organs import Organ

FIELD = "pieces"
"""Of the card."""
Extent = tuple[float | None, float | None, float | None]
MOST_PIECES = 20
"""That are counted; an organ in more pieces counts as one in this many."""


@dataclass(frozen=True)
class OrganPieces:
    """The pieces of one organ, its nested parts included; negligible ones do not count."""

    scans: int
    """Training scans that show the organ."""
    pieces: tuple[int, ...]
    """Number of scans that show it in one piece, in two, and so on."""
    volume_ml: tuple[float, float]
    """Smallest and largest volume in a scan."""
    largest_share: tuple[float, float]
    """Share of the volume in the largest piece: smallest and mean."""
    smallest_piece_ml: float
    """Of the scans that show several pieces; 0 if none does."""
    extent_mm: Extent | None = None
    """Largest extent (z, y, x) in a scan; None along axes where that scan ends with the organ in it. Cards
    written before it was measured have none."""

    def __post_init__(self) -> None:
        least, most = self.volume_ml
        rules = {
            "scans": self.scans >= 1,
            "pieces": 1 <= len(self.pieces) <= MOST_PIECES
            and all(count >= 0 for count in self.pieces)
            and sum(self.pieces) == self.scans,
            "volume_ml": 0 < least <= most and math.isfinite(most),
            "largest_share": 0 < self.largest_share[0] <= self.largest_share[1] <= 1,
            "smallest_piece_ml": 0 <= self.smallest_piece_ml <= most
            and (self.smallest_piece_ml > 0) == (self.in_several_pieces > 0),
            "extent_mm": all(0 < side < math.inf for side in self.extent_mm or () if side is not None),
        }
        for field, kept in rules.items():
            if not kept:
                raise ValueError(f"the pieces of an organ cannot have such {field}")

    @property
    def in_several_pieces(self) -> int:
        """Number of scans that show more than one piece."""
        return sum(self.pieces[1:])

    @classmethod
    def pooled(cls, measured: Iterable[OrganPieces]) -> OrganPieces:
        """One organ in the datasets of several packs, in whatever order."""
        every = list(measured)
        scans = sum(each.scans for each in every)
        several = [each.smallest_piece_ml for each in every if each.in_several_pieces]
        counts = zip_longest(*(each.pieces for each in every), fillvalue=0)
        return cls(
            scans,
            tuple(map(sum, counts)),
            (min(each.volume_ml[0] for each in every), max(each.volume_ml[1] for each in every)),
            (
                min(each.largest_share[0] for each in every),
                min(1.0, math.fsum(each.largest_share[1] * each.scans for each in every) / scans),
            ),
            min(several, default=0.0),
            pooled_extent([each.extent_mm for each in every]),
        )


def pooled_extent(extents: Sequence[Extent | None]) -> Extent | None:
    """The largest along each axis; None where one of them is not known."""
    if not (known := [extent for extent in extents if extent]) or len(known) < len(extents):
        return None
    z, y, x = (
        None if None in sides else max(side for side in sides if side is not None)
        for sides in zip(*known, strict=True)
    )
    return z, y, x


def pieces_on_card(card: Mapping[str, Any], organs: Iterable[Organ]) -> dict[str, OrganPieces]:
    """Organ name -> its pieces, of a card that may come from a stranger; empty where not measured."""
    found: dict[str, OrganPieces] = as_record(
        card.get(FIELD, {}), dict[str, OrganPieces], f"card, {FIELD}", ModelError
    )
    if found.keys() - {organ.name for organ in organs}:
        raise ModelError(f"The card has {FIELD} of organs that the pack does not have.")
    return found
