"""A case read from its files: the scan, and its label maps on the scan's grid.

In:  ViewCase
Out: LoadedCase, which is as large as the scan and is given up when its small files are written
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from continual_segment.errors import ScanError
from continual_segment.files import labels_on, read_source
from continual_segment.viewer.cases import ViewCase
from continual_segment.viewer.organ_table import OrganTable, with_names
from continual_segment.volume import LabelMap, Volume

EMPTY_HU = -1024
"""Of what is shown behind labels whose scan was not given."""


@dataclass(frozen=True, eq=False)
class LoadedCase:
    """Scan and label maps in full resolution."""

    scan: Volume
    """On the grid of label maps."""
    upright: Volume
    """The same to look at: without the tilt of the gantry."""
    maps: tuple[LabelMap, ...]
    """On the scan's grid; every label has a name, in our spelling."""
    table: OrganTable
    notes: tuple[str, ...] = ()


def load_case(case: ViewCase) -> LoadedCase:
    """Read everything that is measured and shown of a case."""
    read = [labels.read() for labels in case.labels]
    maps = [with_names(labels) for labels in read]
    table = OrganTable.of(read, maps)
    if case.scan is None:
        if not maps:
            raise ScanError(" ".join(case.notes))
        blank = _blank(maps[0])
        return LoadedCase(blank, blank, tuple(labels_on(each, blank.grid) for each in maps), table)
    source = read_source(case.scan, force=True)
    placed = tuple(labels_on(each, source.grid) for each in maps)
    moved = [
        f"{labels.title}: this label map has another grid than the scan; every voxel shows the label there."
        for labels, new, old in zip(case.labels, placed, maps, strict=True)
        if new is not old
    ]
    return LoadedCase(source.on_grid, source.volume, placed, table, (*source.notes, *moved))


def _blank(labels: LabelMap) -> Volume:
    return Volume(np.full(labels.grid.shape, EMPTY_HU, np.int16), labels.grid)
