"""The organs of a case, numbered 1, 2, ... for the page, whatever their numbers in the label maps.

Label maps of one case may number an organ differently, and numbers outside our table are large. The page
needs one small number per organ, so that colours are a short list and two label maps can be compared.

In:  the label maps of a case
Out: OrganTable: organs in the order of their groups, and each label map in the page's numbers
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from continual_segment.files.organ_colours import label_colour
from continual_segment.names import printable
from continual_segment.organs import Organ, canonical_name, find_organ, in_table, wholes_of
from continual_segment.volume import LabelMap

OTHER = "other"
"""Group of organs without one."""


def with_names(labels: LabelMap) -> LabelMap:
    """The label map with a name for every label in it: our spelling, `label_7` where there is none."""
    found = {int(value) for plane in labels.voxels for value in np.flatnonzero(np.bincount(plane.ravel()))}
    numbers = sorted({*labels.names, *found} - {0})
    spelled = {number: canonical_name(labels.names.get(number, "")) for number in numbers}
    return replace(labels, names={number: name or f"label_{number}" for number, name in spelled.items()})


@dataclass(frozen=True)
class OrganTable:
    """Organs by their number on the page."""

    names: tuple[str, ...]
    """Of number 1, 2, ..."""
    shown: dict[str, str]
    """Name -> how files that are not in our spelling write it."""

    @classmethod
    def of(cls, maps: Sequence[LabelMap], named: Sequence[LabelMap]) -> OrganTable:
        """Of label maps as they are in the files, and as `with_names` returns them."""
        names = {name for labels in named for name in labels.names.values()}
        written = {canonical_name(name): name for labels in maps for name in labels.names.values()}
        ordered = sorted((find_organ(name) for name in names), key=lambda organ: (group_of(organ), organ.id))
        return cls(tuple(organ.name for organ in ordered), written)

    @property
    def numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names, start=1)}

    def renumber(self, labels: LabelMap) -> LabelMap:
        """The label map, as `with_names` returns it, in the page's numbers."""
        table = np.zeros(max([0, *labels.names]) + 1, np.uint8 if len(self.names) < 256 else np.uint16)
        numbers = self.numbers
        for label, name in labels.names.items():
            table[label] = numbers[name]
        return LabelMap(table[labels.voxels], labels.grid, dict(enumerate(self.names, start=1)))

    def as_data(self) -> list[dict[str, Any]]:
        return [self._row(number, find_organ(name)) for name, number in self.numbers.items()]

    def _row(self, number: int, organ: Organ) -> dict[str, Any]:
        written = organ.name if in_table(organ) else self.shown.get(organ.name, organ.name)
        wholes = [self.numbers[whole] for whole in wholes_of(organ.name) if whole in self.numbers]
        return {
            "number": number,
            "name": organ.name,
            "shown": printable(written).replace("_", " "),
            "group": group_of(organ).replace("_", " "),
            "colour": colour_of(organ),
            "wholes": wholes,
        }


def group_of(organ: Organ) -> str:
    return organ.group or OTHER


def colour_of(organ: Organ) -> list[int]:
    """Red, green, blue, 0 to 255; as in previews and in the headers of label maps."""
    return [round(255 * part) for part in label_colour(organ.id)]
