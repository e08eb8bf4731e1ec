"""Draw the body of the viewer's page of a model: the outline of a phantom and of every organ, from the front.

python benchmarks/body_picture.py src/continual_segment/viewer/static/body.json

Everything comes from one phantom patient, nothing from a real scan. Coordinates are half millimetres, x to
the patient's left and y down, as the page draws them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from contourpy import contour_generator
from scipy import ndimage

from continual_segment.lab.phantom.organ_lists import CHEST, HEADNECK, TOTALSEG, label_voxels
from continual_segment.lab.phantom.patient import draw_patient
from continual_segment.lab.phantom.scanner import Scan, Scanner, majority, place_patient, scan_patient

SPACING_MM = 2.0
UNITS_PER_VOXEL = 4
TOLERANCE = 0.35
"""How far, in voxels, a simplified line may be from the drawn one."""
SMALLEST = 3.0
"""Area in voxels of a piece that is drawn."""
BODY_HU = -300


def front_scan() -> Scan:
    patient = replace(draw_patient(4), phase="venous", arms="down")
    scanner, rng = Scanner(noise_hu=0.0, turn_degrees=0.0), np.random.default_rng(4)
    view = place_patient(patient, -260.0, 745.0, 262.0, (SPACING_MM,) * 3, scanner, rng)
    return scan_patient(patient, view, scanner, rng)


def simplified(line: np.ndarray, tolerance: float) -> np.ndarray:
    """Douglas and Peucker: the points without which the line would move by more than the tolerance."""
    if len(line) < 3:
        return line
    start, along = line[0], line[-1] - line[0]
    away = line - start
    length = np.hypot(*along)
    distance = np.abs(along[0] * away[:, 1] - along[1] * away[:, 0]) / length if length else np.hypot(*away.T)
    farthest = int(distance.argmax())
    if distance[farthest] <= tolerance:
        return line[[0, -1]]
    before, after = simplified(line[: farthest + 1], tolerance), simplified(line[farthest:], tolerance)
    return np.concatenate([before[:-1], after])


def outlines(mask: np.ndarray, smooth: float) -> Iterator[np.ndarray]:
    """Closed lines around a flat mask, rounded; holes are lines of their own."""
    soft = ndimage.gaussian_filter(np.pad(mask, 3).astype(float), smooth)
    for line in contour_generator(z=soft).lines(0.5 if mask.sum() > 60 else 0.3):
        x, y = line.T - 3
        if abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2 >= SMALLEST:
            half = len(line) // 2  # a closed line has no ends: each half is simplified
            yield (
                np.concatenate(
                    [simplified(line[: half + 1], TOLERANCE)[:-1], simplified(line[half:], TOLERANCE)]
                )
                - 3
            )


def path_of(mask: np.ndarray, smooth: float = 0.7) -> str:
    """An SVG path of a mask (from the top, from the patient's right)."""
    points = [np.rint(UNITS_PER_VOXEL * (line + 0.5)).astype(int) for line in outlines(mask, smooth)]
    return "".join("M" + "L".join(f"{x} {y}" for x, y in line[:-1]) + "Z" for line in points)


def from_the_front(mask: np.ndarray) -> np.ndarray:
    """(z, y, x) to a flat mask, head at the top, the patient's right on the left."""
    return mask.any(axis=1)[::-1, ::-1]


def body_of(scan: Scan) -> np.ndarray:
    """The patient without the couch."""
    parts, _ = ndimage.label(scan.hu > BODY_HU)
    return ndimage.binary_fill_holes(from_the_front(parts == np.bincount(parts[parts > 0]).argmax()))


def part_lines(scan: Scan) -> dict[str, int]:
    """Body part -> where it ends at the bottom of the picture."""
    top = scan.grid.affine[2, 3] + scan.grid.shape[0] * SPACING_MM
    return {
        name: round(float(top - max(start, scan.grid.affine[2, 3])) / SPACING_MM * UNITS_PER_VOXEL)
        for name, start in scan.region_starts_mm.items()
    }


def main(path: Path) -> None:
    scan = front_scan()
    found: dict[str, tuple[int, str]] = {}
    for organs in (TOTALSEG, CHEST, HEADNECK):
        labels = majority(label_voxels(scan.body, organs), scan.split)
        for number, organ in enumerate(organs, start=1):
            flat = from_the_front(labels == number)
            if organ not in found and (drawn := path_of(flat)):
                found[organ] = int(flat.sum()), drawn
    largest_first = sorted(found, key=lambda organ: -found[organ][0])
    data = {
        "width": scan.grid.shape[2] * UNITS_PER_VOXEL,
        "height": scan.grid.shape[0] * UNITS_PER_VOXEL,
        "body": path_of(body_of(scan), 2.0),
        "parts": part_lines(scan),
        "organs": {organ: found[organ][1] for organ in largest_first},
    }
    path.write_text(json.dumps(data, separators=(",", ":")) + "\n")
    print(f"{len(found)} organs, {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
