"""What the browser gets is bounded: large scans are shown on a coarser grid, small ones voxel by voxel.

In:  the grid of a scan
Out: a grid over the same box of the patient that a browser can hold several times
"""

from __future__ import annotations

from math import ceil, prod

from continual_segment.volume import Grid

MOST_VOXELS = 16_000_000
"""A browser needs about 20 bytes for each of a scan and its labels: 320 MB."""
MOST_WITHOUT_GRAPHICS = 2_000_000
"""Where a processor draws in place of a graphics card, time grows with every voxel."""
MOST_ON_A_SIDE = 1024
"""Half of what browsers on desktops allow for a 3D texture; some phones allow no more than this."""


def bounded(grid: Grid, most_voxels: int = MOST_VOXELS) -> Grid:
    """The grid itself, or one with fewer voxels over the same box; the finest axes are thinned first."""
    spacing, size = list(grid.spacing_mm), [n * mm for n, mm in zip(grid.shape, grid.spacing_mm, strict=True)]
    shape = _shape(size, spacing, grid.shape)
    while prod(shape) > most_voxels:
        finest = min(spacing)
        spacing = [max(each, finest * 1.02) for each in spacing]
        shape = _shape(size, spacing, grid.shape)
    return grid if shape == grid.shape else grid.with_shape(shape)


def _shape(size: list[float], spacing: list[float], most: tuple[int, int, int]) -> tuple[int, int, int]:
    """Voxels per axis, never more than the scan has."""
    z, y, x = (
        max(1, min(limit, MOST_ON_A_SIDE, ceil(mm / step - 1e-6)))
        for mm, step, limit in zip(size, spacing, most, strict=True)
    )
    return z, y, x


def size_text(grid: Grid) -> str:
    """As `512 x 512 x 800 voxels of 0.8 x 0.8 x 1 mm`, x first."""
    shape = " x ".join(map(str, grid.shape[::-1]))
    return f"{shape} voxels of {' x '.join(f'{side:.3g}' for side in grid.spacing_mm[::-1])} mm"
