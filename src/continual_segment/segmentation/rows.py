"""A prepared scan as the networks see it, some slices at a time.

Hounsfield units stay as they are until a row of windows asks for its slices, so no second copy of the scan is
ever made. A scan smaller than a window has air around it. Windows lie in the box around the body: the air
beside it would cost time and memory, and holds no organ.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from continual_segment.data.intensity import FittedIntensity, Intensity
from continual_segment.volume import Volume

AIR_HU = -950.0
"""Blocks of a window that are darker than this on average hold air alone."""
AIR_BLOCK = (4, 8, 8)
"""Voxels (z, y, x) averaged, so that noise is not taken for tissue."""

SLICES_AT_ONCE = 32
Box = tuple[slice, slice]
"""Lines and columns (y, x) of every slice."""
WHOLE = slice(None), slice(None)
NORMALISED = Intensity.window(-1.0, 1.0).fitted()
"""Of a scan that is normalised already."""


class Rows:
    """Rows of a prepared scan, normalised and padded to at least a window."""

    def __init__(
        self,
        volume: Volume,
        window: tuple[int, int, int],
        intensity: FittedIntensity = NORMALISED,
        box: Box = WHOLE,
    ) -> None:
        """`volume` holds Hounsfield units; of every slice the `box` alone is the scan."""
        self.volume, self.window, self.intensity, self.box = volume, window, intensity, box
        depth, *plane = volume.grid.shape
        inside = [len(range(*part.indices(length))) for part, length in zip(box, plane, strict=True)]
        self.own_shape = depth, *inside
        """(z, y, x) of the scan."""
        missing = [max(0, size - length) for length, size in zip(self.own_shape, window, strict=True)]
        before = [gap // 2 for gap in missing]
        self._widths = [(b, gap - b) for b, gap in zip(before, missing, strict=True)]
        z, y, x = (slice(b, b + n) for b, n in zip(before, self.own_shape, strict=True))
        self.inner = z, y, x
        """Where the scan lies among the padded voxels."""
        self.shape = tuple(n + gap for n, gap in zip(self.own_shape, missing, strict=True))
        """(z, y, x), padded."""

    def own(self, slices: slice) -> slice:
        """Those of some padded slices that are the scan's, by their numbers in the scan."""
        first, length = self.inner[0].start, self.own_shape[0]
        return slice(min(max(slices.start - first, 0), length), min(max(slices.stop - first, 0), length))

    def __getitem__(self, slices: slice) -> np.ndarray:
        """Some padded slices, normalised: float32."""
        own = self.own(slices)
        inside = self.intensity.normalise(self._own_voxels(own))
        if not any(map(sum, self._widths)):
            return inside
        first = self.inner[0].start
        depth = (own.start + first - slices.start, slices.stop - own.stop - first)
        return np.pad(inside, [depth, *self._widths[1:]], constant_values=self.intensity.padding_value)

    def air(self, slices: slice, places: Sequence[tuple[slice, slice, slice]]) -> list[bool]:
        """Which windows of a row lie at the side of the scan and hold nothing but air.

        Air inside the body, as in a lung, never reaches the side.
        """
        if any(map(sum, self._widths[1:])):
            return [False] * len(places)  # in a scan narrower than a window, every window shows the body
        voxels = self._own_voxels(self.own(slices))
        return [
            self._at_side(place) and is_air(voxels[:, place[1], place[2]])  # the cheap question first
            for place in places
        ]

    def _own_voxels(self, own: slice) -> np.ndarray:
        return self.volume.slices(own)[:, *self.box]

    def _at_side(self, place: tuple[slice, slice, slice]) -> bool:
        return any(
            part.start == 0 or part.stop == length
            for part, length in zip(place[1:], self.shape[1:], strict=True)
        )


def is_air(voxels: np.ndarray) -> bool:
    """Whether there is nothing else."""
    if voxels[0].mean() > AIR_HU:  # one slice tells of most windows that they are none
        return False
    return bool(block_means(voxels).max() < AIR_HU)


def body_box(volume: Volume, window: Sequence[int]) -> Box:
    """Lines and columns outside of which every slice is air, a window wide where the scan is."""
    depth, height, width = volume.grid.shape
    blocks = [-(-length // size) for length, size in zip((height, width), AIR_BLOCK[1:], strict=True)]
    tissue = np.zeros(blocks, bool)
    for first in range(0, depth, SLICES_AT_ONCE):
        some = volume.slices(slice(first, first + SLICES_AT_ONCE))
        tissue |= (block_means(some) >= AIR_HU).any(axis=0)
    lines, columns = np.atleast_1d(tissue.any(axis=1)), np.atleast_1d(tissue.any(axis=0))
    return _reach(lines, AIR_BLOCK[1], height, window[1]), _reach(columns, AIR_BLOCK[2], width, window[2])


def _reach(tissue: np.ndarray, block: int, length: int, least: int) -> slice:
    """From a block before the first of tissue, as skin may fill one little, to a block behind the last."""
    there = np.flatnonzero(tissue)
    if len(there) == 0:
        return slice(0, min(least, length))
    start, stop = max(0, (there[0] - 1) * block), min(length, (there[-1] + 2) * block)
    missing = max(0, min(least, length) - (stop - start))
    start = min(max(0, start - missing // 2), length - min(least, length))
    return slice(int(start), int(max(stop, min(start + least, length))))


def block_means(voxels: np.ndarray) -> np.ndarray:
    """Means of neighbouring voxels in blocks; the last blocks of an axis may be smaller."""
    means: np.ndarray = voxels.astype(np.float32)
    for axis, size in enumerate(AIR_BLOCK):
        starts = np.arange(0, means.shape[axis], size)
        counts = np.diff(np.append(starts, means.shape[axis])).astype(np.float32)
        shape = [-1 if axis == other else 1 for other in range(means.ndim)]
        means = np.add.reduceat(means, starts, axis=axis) / counts.reshape(shape)
    return means
