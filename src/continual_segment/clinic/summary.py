"""What was found in a scan, in a few lines for the person who waits for it.

In:  a label map
Out: organs with volumes and the faces of the scan they touch; a table of one scan, a line of one in a batch
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from continual_segment.names import printable, some_of
from continual_segment.segmentation.clean_up import RemovedIslands
from continual_segment.segmentation.explanation import organs_at_faces
from continual_segment.segmentation.nested import Nesting, nesting_of
from continual_segment.volume import LabelMap

MOST_MISSING_SHOWN = 8


@dataclass(frozen=True)
class FoundOrgan:
    """One organ of one scan."""

    name: str
    volume_ml: float
    touches_edge: tuple[str, ...]
    """Faces of the scan that it reaches: it may be cut off there."""


@dataclass(frozen=True)
class Summary:
    """The requested organs in one scan."""

    case: str
    found: tuple[FoundOrgan, ...]
    missing: tuple[str, ...]
    """Names of organs without a voxel."""
    seconds: float
    """That segmenting took."""
    removed: tuple[RemovedIslands, ...] = ()
    """What clean-up removed."""

    def line(self) -> str:
        """For a batch."""
        cut = sum(bool(organ.touches_edge) for organ in self.found)
        at_edge = f", {cut} at the edge of the scan" if cut else ""
        total = len(self.found) + len(self.missing)
        cleaned = f", {self._removed_text()}" if self.removed else ""
        organs = f"{len(self.found)} of {total} organs{at_edge}{cleaned}"
        return f"{printable(self.case)}: {organs}, {self.seconds:.1f} s"

    def table(self) -> str:
        """For one scan: a row per organ, then what was not found and what was removed."""
        width = max([len("organ"), *(len(organ.name) for organ in self.found)])
        rows = [f"{'organ':<{width}} {'ml':>9}"] if self.found else []
        for organ in self.found:
            faces = ", ".join(organ.touches_edge)
            note = f"  touches the edge of the scan: {faces}" if faces else ""
            rows.append(f"{printable(organ.name):<{width}} {organ.volume_ml:>9.1f}{note}")
        return "\n".join([*rows, *self._missing_line(), *self._removed_line()])

    def _missing_line(self) -> list[str]:
        if not self.missing:
            return []
        return [f"Not found: {some_of(self.missing, MOST_MISSING_SHOWN)}."]

    def _removed_line(self) -> list[str]:
        """Names the command as well: `conseg view`, which prints this too, has no such option."""
        end = "`conseg segment --keep-islands` keeps them."
        return [f"Clean-up: {self._removed_text()}; {end}"] if self.removed else []

    def _removed_text(self) -> str:
        ml, pieces = sum(each.ml for each in self.removed), sum(each.pieces for each in self.removed)
        return f"{ml:.1f} ml of {len(self.removed)} organs removed in {pieces} islands"


def summarise(case: str, labels: LabelMap, nested: bool, seconds: float) -> Summary:
    """Count the voxels of every organ; where organs are nested, a whole has those of its parts too."""
    nesting = nesting_of(labels) if nested else Nesting({})
    counts = _with_parts(_count(labels), nesting)
    faces = {face: _with_wholes(found, nesting) for face, found in organs_at_faces(labels.voxels).items()}
    found = [
        FoundOrgan(
            name, counts[label] * labels.grid.voxel_ml, tuple(face for face in faces if label in faces[face])
        )
        for label, name in labels.names.items()
        if counts[label]
    ]
    missing = [name for label, name in labels.names.items() if not counts[label]]
    return Summary(case, tuple(found), tuple(missing), seconds)


def _count(labels: LabelMap) -> dict[int, int]:
    """Voxels by label, slice by slice: all at once would need eight bytes a voxel."""
    length = max([0, *labels.names]) + 1
    counts = np.zeros(length, np.int64)
    for plane in labels.voxels:
        counts += np.bincount(plane.ravel(), minlength=length)[:length]
    return {label: int(counts[label]) for label in labels.names}


def _with_parts(counts: dict[int, int], nesting: Nesting) -> dict[int, int]:
    total = dict.fromkeys(counts, 0)
    for label, count in counts.items():
        for whole in nesting.chain(label):
            total[whole] += count
    return total


def _with_wholes(labels: set[int], nesting: Nesting) -> set[int]:
    return {whole for label in labels for whole in nesting.chain(label)}
