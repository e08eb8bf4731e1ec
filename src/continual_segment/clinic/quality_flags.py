"""Quality flags: which organs of a segmentation a person should look at first, and why.

Two limits come from the training labels of the packs, where these have measured them: an organ that is much
smaller or larger than in any training scan is flagged. The other limits are choices: on held-out scans,
`benchmarks/quality_flags.py` counts how many wrong organs they find and how many right ones they flag.

In:  the statistics of an organ, its volumes in training, the islands that clean-up removed
Out: QualityFlag: a word for a list, and a sentence with the number and its limit
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from continual_segment.model.pieces import OrganPieces
from continual_segment.segmentation.clean_up import RemovedIslands


@dataclass(frozen=True)
class FlagLimits:
    """Beyond which an organ is flagged."""

    least_score: float = 0.7
    """Mean probability of its voxels."""
    most_contested: float = 0.2
    """Share of its voxels in which another pack disagrees with the winner."""
    volume_factor: float = 1.25
    """How many times larger than in any training scan, or smaller, a volume may be."""
    most_removed: float = 0.1
    """Volume of the islands that clean-up removed, as a share of what is left."""

    def meanings(self) -> dict[str, str]:
        """Every flag -> what it means, for the page that shows flags."""
        return {
            "edge": "Touches the edge of the scan and may be cut off; its volume is then too small.",
            "small": f"Less than 1/{self.volume_factor:g} of the smallest volume in the training scans.",
            "large": f"More than {self.volume_factor:g} times the largest volume in the training scans.",
            "unsure": f"Mean probability below {self.least_score:g}.",
            "contested": f"Packs disagree in more than {self.most_contested:.0%} of its voxels.",
            "islands": f"Clean-up removed islands of more than {self.most_removed:.0%} of its volume.",
        }


@dataclass(frozen=True)
class QualityFlag:
    """One reason to look at an organ."""

    name: str
    """A key of `FlagLimits.meanings`."""
    sentence: str


def quality_flags(
    row: Mapping[str, Any],
    known: OrganPieces | None = None,
    removed: RemovedIslands | None = None,
    limits: FlagLimits | None = None,
) -> list[QualityFlag]:
    """The flags of one organ that was found; `row` is one of `organ_statistics`."""
    limits = limits or FlagLimits()
    checks = (
        _edge(row["touches_edge"]),
        _volume(row["volume_ml"], bool(row["touches_edge"]), known, limits.volume_factor),
        _unsure(row["mean_score"], limits.least_score),
        _contested(row["contested_share"], limits.most_contested),
        _islands(row["volume_ml"], removed, limits.most_removed),
    )
    return [flag for check in checks for flag in check]


def _edge(faces: Iterable[str]) -> Iterator[QualityFlag]:
    if where := ", ".join(faces):
        yield QualityFlag("edge", f"Touches the edge of the scan ({where}): it may be cut off.")


def _volume(ml: float, cut: bool, known: OrganPieces | None, factor: float) -> Iterator[QualityFlag]:
    """An organ that may be cut off is not called small."""
    if known is None:
        return
    least, most = known.volume_ml
    trained = f"{least:.1f} to {most:.1f} ml in {known.scans} training scans"
    if ml * factor < least and not cut:
        yield QualityFlag("small", f"{ml:.1f} ml; it had {trained}.")
    if ml > most * factor:
        yield QualityFlag("large", f"{ml:.1f} ml; it had {trained}.")


def _unsure(score: float | None, least: float) -> Iterator[QualityFlag]:
    if score is not None and score < least:
        yield QualityFlag("unsure", f"Mean probability {score:.2f}, below {least:g}.")


def _contested(share: float | None, most: float) -> Iterator[QualityFlag]:
    if share is not None and share > most:
        yield QualityFlag("contested", f"Packs disagree in {share:.0%} of its voxels, more than {most:.0%}.")


def _islands(ml: float, removed: RemovedIslands | None, most: float) -> Iterator[QualityFlag]:
    if removed and removed.ml > most * ml:
        pieces = "one island" if removed.pieces == 1 else f"{removed.pieces} islands"
        yield QualityFlag("islands", f"Clean-up removed {pieces} of {removed.ml:.1f} ml.")
