"""Pictures of scans and label maps, as PNG bytes; no display is needed."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from continual_segment.files.organ_colours import label_colour
from continual_segment.organs import find_organ
from continual_segment.volume import LabelMap, Volume

WINDOW_HU = (-160.0, 260.0)  # soft tissue
PLANES = ("axial", "coronal", "sagittal")


def three_planes(scan: Volume, columns: Sequence[tuple[str, LabelMap | None]]) -> bytes:
    """Axial, coronal and sagittal slices through the labelled organs, one column per label map."""
    labelled = next(labels for _, labels in columns if labels is not None)
    centre = best_centre(labelled)
    z, y, x = np.multiply(scan.grid.shape, scan.grid.spacing_mm)
    heights = (y, z, z)
    size = 2.6 / max(x, y) * np.array([len(columns) * max(x, y), sum(heights)])
    figure = Figure(figsize=(float(size[0]), float(size[1])), layout="constrained", facecolor="black")
    axes = figure.subplots(3, len(columns), squeeze=False, height_ratios=heights)
    for row, plane in enumerate(PLANES):
        for column, (title, labels) in enumerate(columns):
            axis = axes[row, column]
            aspect = plane_aspect(scan.grid.spacing_mm, plane)
            axis.imshow(plane_slice(scan.voxels, centre, plane), "gray", vmin=WINDOW_HU[0], vmax=WINDOW_HU[1],
                        aspect=aspect, interpolation="bilinear")  # fmt: skip
            if labels is not None:
                axis.imshow(coloured(labels, centre, plane), aspect=aspect, interpolation="nearest")
            axis.set_axis_off()
            if row == 0:
                axis.set_title(title, color="white", fontsize=9)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=90)
    return picture.getvalue()


def best_centre(labels: LabelMap) -> tuple[int, int, int]:
    """Per axis, the slice that shows most organs; between equals the one with most labelled voxels."""
    found = labels.voxels
    counts = [0, 0, 0]
    for axis in range(3):
        slices = np.moveaxis(found, axis, 0).reshape(found.shape[axis], -1)
        scores = [(len(np.unique(s)), int(np.count_nonzero(s))) for s in slices]
        counts[axis] = max(range(len(scores)), key=scores.__getitem__)
    return counts[0], counts[1], counts[2]


def plane_slice(voxels: np.ndarray, centre: tuple[int, int, int], plane: str) -> np.ndarray:
    """The slice as a radiologist sees it: the patient's right on the left, head or front at the top."""
    z, y, x = centre
    if plane == "axial":
        return voxels[z, ::-1, ::-1]
    if plane == "coronal":
        return voxels[::-1, y, ::-1]
    return voxels[::-1, ::-1, x]


def plane_aspect(spacing_mm: tuple[float, float, float], plane: str) -> float:
    z, y, x = spacing_mm
    return {"axial": y / x, "coronal": z / x, "sagittal": z / y}[plane]


def coloured(labels: LabelMap, centre: tuple[int, int, int], plane: str) -> np.ndarray:
    """RGBA of a slice; an organ has the same colour in every picture, whatever its number in the file."""
    cut = plane_slice(labels.voxels, centre, plane)
    picture = np.zeros((*cut.shape, 4))
    for label in np.unique(cut[cut > 0]):
        picture[cut == label] = (*label_colour(find_organ(labels.names[int(label)]).id), 0.55)
    return picture
