"""One picture of a whole segmentation: the patient from the front and from the left, organs in colour.

Every ray shows the organ it meets first, darker the deeper it is, over a projection of the scan. No display
server is needed.
"""

from __future__ import annotations

import io

import numpy as np

from continual_segment.files.organ_colours import label_colour
from continual_segment.organs import find_organ
from continual_segment.volume import LabelMap, Volume

VIEWS = {"from the front": (1, "R", "L"), "from the left": (2, "A", "P")}
"""Title -> the axis of (z, y, x) that is looked along, and what is at the picture's left and right."""
WINDOW_HU = (-200.0, 400.0)
MOST_NAMES = 45
NAMES_IN_A_COLUMN = 23
LARGEST_INCHES, LEAST_HEIGHT_INCHES = (9.0, 6.0), 4.0  # of the views, at 100 pixels an inch


def preview(scan: Volume, labels: LabelMap) -> bytes:
    """A PNG."""
    from matplotlib.figure import Figure  # heavy, and only for pictures
    from matplotlib.patches import Patch

    z, y, x = np.multiply(scan.grid.shape, scan.grid.spacing_mm)
    scale = max(z / LARGEST_INCHES[1], (x + y) / LARGEST_INCHES[0])  # millimetres an inch
    names = _largest(labels)
    columns = max(1, -(-len(names) // NAMES_IN_A_COLUMN))
    size = (x + y) / scale + 1.7 * columns, max(z / scale, LEAST_HEIGHT_INCHES)
    figure = Figure(figsize=size, layout="constrained", facecolor="black")
    axes = figure.subplots(1, 2, width_ratios=(x, y))
    for axes_, (title, (axis, *sides_seen)) in zip(axes, VIEWS.items(), strict=True):
        sides = {1: scan.grid.spacing_mm[2], 2: scan.grid.spacing_mm[1]}
        aspect = scan.grid.spacing_mm[0] / sides[axis]
        axes_.imshow(seen(_projection(scan, axis)), "gray", vmin=0, vmax=1, aspect=aspect)
        axes_.imshow(seen(first_organs(labels, axis)), aspect=aspect, interpolation="nearest")
        axes_.set_title(title, color="white", fontsize=9)
        for place, letter in zip((0.02, 0.98), sides_seen, strict=True):
            axes_.text(place, 0.5, letter, color="white", ha="center", transform=axes_.transAxes)
        axes_.set_axis_off()
    patches = [Patch(color=_colour(name), label=name) for name in names]
    if patches:
        legend = {"loc": "outside right center", "ncols": columns, "fontsize": 7, "frameon": False}
        figure.legend(handles=patches, labelcolor="white", **legend)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100)
    return picture.getvalue()


def seen(picture: np.ndarray) -> np.ndarray:
    """Head at the top; from the front the patient's right is on the left, from the left the front is."""
    return picture[::-1, ::-1]


def _projection(scan: Volume, axis: int) -> np.ndarray:
    """Between the mean and the brightest along each ray, so that outline and bones both show."""
    low, high = WINDOW_HU
    brightest, total, voxels = None, 0.0, scan.voxels
    for index in range(voxels.shape[axis]):
        plane = np.clip((voxels.take(index, axis=axis) - low) / (high - low), 0, 1).astype(np.float32)
        brightest = plane if brightest is None else np.maximum(brightest, plane)
        total = total + plane
    assert brightest is not None
    mean = total / np.float32(voxels.shape[axis])
    return 0.35 * brightest + 0.65 * mean / max(float(np.max(mean)), 1e-6)


def first_organs(labels: LabelMap, axis: int) -> np.ndarray:
    """RGBA of the organ that each ray meets first: looking from the front or from the left."""
    voxels = np.moveaxis(labels.voxels, axis, 0)
    voxels = voxels[::-1] if axis == 1 else voxels  # y grows to the front, x to the right
    found = voxels > 0
    depth = found.argmax(axis=0)
    first = np.take_along_axis(voxels, depth[None], axis=0)[0]
    shade = 1 - 0.6 * depth / max(1, voxels.shape[0] - 1)
    picture = np.zeros((*first.shape, 4))
    for label in np.unique(first[first > 0]).tolist():
        where = first == label
        picture[where, :3] = np.outer(shade[where], _colour(labels.names[label]))
        picture[where, 3] = 0.8
    return picture


def _largest(labels: LabelMap) -> list[str]:
    """Names of the organs that were found; of many the largest, all in the order of their ids."""
    count = np.bincount(labels.voxels.ravel())
    found = [label for label in labels.names if label < len(count) and count[label]]
    kept = sorted(found, key=lambda label: -count[label])[:MOST_NAMES]
    return [labels.names[label] for label in sorted(kept)]


def _colour(name: str) -> tuple[float, float, float]:
    """The same in every picture, whatever the organ's number in the file."""
    return label_colour(find_organ(name).id)
