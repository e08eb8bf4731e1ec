"""Body parts from labels: the spine as the body's ruler.

Parts meet at the lower end-plates of L5, T11 and T2. A vertebra that is labelled and whole gives its own
height; between and beyond them heights follow from a table of usual vertebrae, stretched to this patient.
Where no vertebra is labelled, a few organs whose ends have usual heights replace them.

In:  a label map with organ names
Out: heights of the three landmarks, in slices
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

from continual_segment.organs import canonical_name
from continual_segment.volume import LabelMap

PITCH_MM = {  # usual height of a vertebra with the disc above it, from the sacrum up
    **dict.fromkeys(("L5", "L4", "L3"), 36.0),
    **dict.fromkeys(("L2", "L1"), 34.5),
    **{f"T{n}": 20.5 + 0.85 * (n - 1) for n in range(12, 0, -1)},
    **{f"C{n}": 17.5 for n in range(7, 2, -1)},
    "C2": 21.0,
    "C1": 14.0,
}
VERTEBRAE = tuple(PITCH_MM)
"""From below."""
USUAL_MM = dict(zip(VERTEBRAE, np.cumsum([0.0, *PITCH_MM.values()]).tolist(), strict=False))
"""Usual height of every lower end-plate above that of L5."""
LANDMARKS = ("L5", "T11", "T2")
"""Where abdomen, chest, and head and neck begin."""
BODY_SHARE = 0.35
"""Of a vertebra from front to back that is its body: processes behind hang lower."""
LEAST_VOXELS = 8

STAND_INS: dict[str, tuple[str, float]] = {
    "hip_left": ("top", USUAL_MM["L4"]),
    "hip_right": ("top", USUAL_MM["L4"]),
    "kidney_left": ("middle", USUAL_MM["L2"] + 20),
    "kidney_right": ("middle", USUAL_MM["L2"] + 10),
    "liver": ("top", USUAL_MM["T9"]),
    "lung_upper_lobe_left": ("top", USUAL_MM["C7"]),
    "lung_upper_lobe_right": ("top", USUAL_MM["C7"]),
    "brain": ("bottom", USUAL_MM["C1"] + 20),
    "brainstem": ("bottom", USUAL_MM["C1"] + 5),
    "parotid_left": ("middle", USUAL_MM["C2"] + 10),
    "parotid_right": ("middle", USUAL_MM["C2"] + 10),
    "eye_left": ("middle", USUAL_MM["C1"] + 40),
    "eye_right": ("middle", USUAL_MM["C1"] + 40),
}
"""Organ -> which of its heights is where, above the lower end-plate of L5."""
STAND_IN_REACH_MM = 60.0
"""How far beyond such organs heights are extrapolated."""
LEAST_RULER_MM = 100.0
"""Shorter ones give no estimate of a patient's height."""


@dataclass(frozen=True)
class Ruler:
    """Heights of a patient, in slices, against usual heights in mm; both rise together."""

    usual_mm: tuple[float, ...]
    slices: tuple[float, ...]
    slice_mm: float

    def slice_at(self, usual_mm: float) -> float:
        """The slice, in the scan or beyond its ends, of a usual height."""
        beyond = usual_mm - float(np.clip(usual_mm, self.usual_mm[0], self.usual_mm[-1]))
        inside = float(np.interp(usual_mm, self.usual_mm, self.slices))
        return inside + beyond * self.stretch / self.slice_mm

    @property
    def stretch(self) -> float:
        """This patient's millimetres per usual one; 1 for a short ruler."""
        if self.usual_mm[-1] - self.usual_mm[0] < LEAST_RULER_MM:
            return 1.0
        rise = (self.slices[-1] - self.slices[0]) * self.slice_mm
        return float(np.clip(rise / (self.usual_mm[-1] - self.usual_mm[0]), 0.7, 1.4))


def ruler_of(labels: LabelMap) -> Ruler | None:
    """The ruler that a label map gives; None where it shows nothing of use."""
    heights = vertebra_bottoms(labels)
    known = {USUAL_MM[name]: height for name, height in heights.items()} or dict(_stand_ins(labels))
    rising = _rising(known)
    if not rising:
        return None
    return Ruler(tuple(rising), tuple(rising.values()), labels.grid.spacing_mm[0])


def _rising(known: Mapping[float, float]) -> dict[float, float]:
    """Heights without those that contradict the ones before: a label at the wrong place must not fold it."""
    found: dict[float, float] = {}
    for usual in sorted(known):
        if not found or known[usual] > max(found.values()):
            found[usual] = known[usual]
    return found


def vertebra_bottoms(labels: LabelMap) -> dict[str, float]:
    """Vertebra -> lower end-plate of its body, as a slice number with fractions; -0.5 is the scan's bottom.

    A vertebra cut by the bottom of the scan has none.
    """
    return {
        name: height
        for name, mask, first in _crops(labels, {f"vertebrae_{name}": name for name in VERTEBRAE})
        if (height := _body_bottom(mask, first)) is not None
    }


def end_plates(labels: LabelMap) -> dict[str, float]:
    """The same; where no vertebra is labelled, by organs in place of them: those of the heights they span."""
    if found := vertebra_bottoms(labels):
        return found
    ruler = ruler_of(labels)
    if ruler is None:
        return {}
    low, high = ruler.usual_mm[0] - STAND_IN_REACH_MM, ruler.usual_mm[-1] + STAND_IN_REACH_MM
    return {name: ruler.slice_at(usual) for name, usual in USUAL_MM.items() if low <= usual <= high}


def has_known_heights(names: Iterable[str]) -> bool:
    """Whether any of these organs does."""
    known = {*STAND_INS, *(canonical_name(f"vertebrae_{name}") for name in VERTEBRAE)}
    return any(canonical_name(name) in known for name in names)


def _crops(labels: LabelMap, wanted: Mapping[str, str]) -> Iterator[tuple[str, np.ndarray, int]]:
    """Name, mask in its box and first slice of every wanted organ that is there."""
    numbers = {label: wanted.get(canonical_name(name)) for label, name in labels.names.items()}
    for label, box in enumerate(ndimage.find_objects(labels.voxels), start=1):
        name = numbers.get(label)
        if box is not None and name is not None:
            mask = labels.voxels[box] == label
            if np.count_nonzero(mask) >= LEAST_VOXELS:
                yield name, mask, box[0].start


def _body_bottom(mask: np.ndarray, first_slice: int) -> float | None:
    """Lower face of the front part of a vertebra."""
    rows = np.flatnonzero(mask.any(axis=(0, 2)))
    front = mask[:, int(rows[-1] - BODY_SHARE * (rows[-1] - rows[0])) :]
    area = front.sum(axis=(1, 2))
    filled = np.flatnonzero(area >= 0.4 * area.max())  # a few voxels of a rim or a tilted plate are no face
    if first_slice + filled[0] == 0:
        return None
    return first_slice + float(filled[0]) - 0.5


def _stand_ins(labels: LabelMap) -> Iterator[tuple[float, float]]:
    """Usual height and slice of the organs that replace vertebrae; an end cut by the scan is none."""
    for name, mask, first in _crops(labels, {name: name for name in STAND_INS}):
        kind, usual = STAND_INS[name]
        last = first + len(mask) - 1
        cut = (first == 0, last == len(labels.voxels) - 1)
        if kind == "bottom" and not cut[0]:
            yield usual, first - 0.5
        elif kind == "top" and not cut[1]:
            yield usual, last + 0.5
        elif kind == "middle" and not any(cut):
            yield usual, (first + last) / 2
