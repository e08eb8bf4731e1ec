"""A scan with two balls and label maps of it, for the viewer's tests."""

from __future__ import annotations

import numpy as np

from continual_segment.volume import Grid, LabelMap, Volume

SHAPE = (30, 40, 50)
SPACING_MM = (4.0, 3.0, 2.0)
NAMES = {5: "liver", 1: "spleen"}
HU = {5: 100, 1: 160}
BALLS = {5: ((15, 20, 30), 8), 1: ((15, 20, 12), 5)}
"""Label -> centre (z, y, x) and radius in voxels."""


def made_grid() -> Grid:
    z, y, x = SPACING_MM
    return Grid(SHAPE, np.array([[x, 0, 0, -50], [0, y, 0, -60], [0, 0, z, 10], [0, 0, 0, 1]], float))


def made_labels(moved: int = 0, names: dict[int, str] | None = None) -> LabelMap:
    """Two balls, the liver moved by some voxels along y."""
    index = np.indices(SHAPE)
    voxels = np.zeros(SHAPE, np.uint8)
    for label, ((z, y, x), radius) in BALLS.items():
        centre = np.array([z, y + (moved if label == 5 else 0), x])[:, None, None, None]
        voxels[((index - centre) ** 2).sum(axis=0) <= radius**2] = label
    return LabelMap(voxels, made_grid(), names or NAMES)


def made_scan() -> Volume:
    voxels = np.full(SHAPE, -1000, np.int16)
    voxels[:, 4:-4, 4:-4] = 20
    for label, hu in HU.items():
        voxels[made_labels().voxels == label] = hu
    return Volume(voxels, made_grid())
