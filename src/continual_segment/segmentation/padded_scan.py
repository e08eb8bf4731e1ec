"""A prepared scan as the networks see it, a few slices at a time.

Voxels are normalised when a row of windows reads its slices, so no second copy of the scan is made. A scan
smaller than a window is padded with air. Windows cover the box around the body only: air beside the body
costs time and memory and contains no organ.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from continual_segment.data.intensity import FittedIntensity, Intensity
from continual_segment.volume import SliceSource

AIR_HU = -950.0
"""Blocks with a lower mean contain only air."""
AIR_BLOCK = (4, 8, 8)
"""Voxels (z, y, x) that are averaged, so that noise is not taken for tissue."""

SLICES_AT_ONCE = 32
Box = tuple[slice, slice]
"""Lines and columns (y, x), the same in every slice."""
WHOLE = slice(None), slice(None)
NORMALISED = Intensity.window(-1.0, 1.0).fitted()
"""Of a scan that is normalised already."""


class PaddedScan:
    """A prepared scan, cropped to the body and padded to at least one window; normalised when read."""

    def __init__(
        self,
        scan: SliceSource,
        window: tuple[int, int, int],
        intensity: FittedIntensity = NORMALISED,
        box: Box = WHOLE,
    ) -> None:
        """`intensity` normalises the values of the scan; only the `box` of every slice is used."""
        self.scan, self.window, self.intensity, self.box = scan, window, intensity, box
        depth, *plane = scan.shape
        inside = [len(range(*part.indices(length))) for part, length in zip(box, plane, strict=True)]
        self.scan_shape = depth, *inside
        """(z, y, x), cropped to the box, without padding."""
        missing = [max(0, size - length) for length, size in zip(self.scan_shape, window, strict=True)]
        before = [gap // 2 for gap in missing]
        self._widths = [(b, gap - b) for b, gap in zip(before, missing, strict=True)]
        z, y, x = (slice(b, b + n) for b, n in zip(before, self.scan_shape, strict=True))
        self.inside = z, y, x
        """Position of the scan among the padded voxels."""
        self.shape = tuple(n + gap for n, gap in zip(self.scan_shape, missing, strict=True))
        """(z, y, x), padded."""

    def unpadded(self, slices: slice) -> slice:
        """Slice numbers with padding -> slice numbers in the scan, without those that are padding."""
        first, length = self.inside[0].start, self.scan_shape[0]
        return slice(min(max(slices.start - first, 0), length), min(max(slices.stop - first, 0), length))

    def __getitem__(self, slices: slice) -> np.ndarray:
        """Some slices (z, y, x), normalised and padded: float32."""
        own = self.unpadded(slices)
        inside = self.intensity.normalise(self._own_voxels(own))
        if not any(map(sum, self._widths)):
            return inside
        first = self.inside[0].start
        depth = (own.start + first - slices.start, slices.stop - own.stop - first)
        return np.pad(inside, [depth, *self._widths[1:]], constant_values=self.intensity.padding_value)

    def window_at(self, corner: Sequence[int]) -> np.ndarray:
        """A window (z, y, x) at any place of the scan, not cropped to the body; padded where it leaves it."""
        sizes = zip(corner, self.window, self.scan.shape, strict=True)
        z, y, x = inside = [slice(max(at, 0), min(at + size, length)) for at, size, length in sizes]
        voxels = self.intensity.normalise(self.scan[z][:, y, x])
        ends = zip(inside, corner, self.window, strict=True)
        widths = [(part.start - at, at + size - part.stop) for part, at, size in ends]
        return np.pad(voxels, widths, constant_values=self.intensity.padding_value)

    def are_air(self, slices: slice, boxes: Sequence[Box]) -> list[bool]:
        """Which windows of these slices are at the side of the scan and contain only air.

        Air inside the body, as in the lungs, does not reach the side.
        """
        if any(map(sum, self._widths[1:])):
            return [False] * len(boxes)  # in a scan narrower than a window, every window shows the body
        voxels = self._own_voxels(self.unpadded(slices))
        return [self._at_side(box) and is_air(voxels[:, *box]) for box in boxes]  # the cheap test first

    def _own_voxels(self, own: slice) -> np.ndarray:
        return self.scan[own][:, *self.box]

    def _at_side(self, box: Box) -> bool:
        return any(
            part.start == 0 or part.stop == length for part, length in zip(box, self.shape[1:], strict=True)
        )


def is_air(voxels: np.ndarray) -> bool:
    """Whether the voxels (z, y, x) contain only air."""
    if voxels[0].mean() > AIR_HU:  # one slice is enough to exclude most windows
        return False
    return bool(block_means(voxels).max() < AIR_HU)


def body_box(scan: SliceSource, window: Sequence[int]) -> Box:
    """The box outside of which every slice is air; at least a window wide if the scan is."""
    depth, height, width = scan.shape
    blocks = [-(-length // size) for length, size in zip((height, width), AIR_BLOCK[1:], strict=True)]
    tissue = np.zeros(blocks, bool)
    for first in range(0, depth, SLICES_AT_ONCE):
        tissue |= (block_means(scan[first : first + SLICES_AT_ONCE]) >= AIR_HU).any(axis=0)
    lines, columns = np.atleast_1d(tissue.any(axis=1)), np.atleast_1d(tissue.any(axis=0))
    return _extent(lines, AIR_BLOCK[1], height, window[1]), _extent(columns, AIR_BLOCK[2], width, window[2])


def _extent(tissue: np.ndarray, block: int, length: int, least: int) -> slice:
    """From one block before the first block of tissue, since skin may fill it only partly, to one after."""
    found = np.flatnonzero(tissue)
    if len(found) == 0:
        return slice(0, min(least, length))
    start, stop = max(0, (found[0] - 1) * block), min(length, (found[-1] + 2) * block)
    missing = max(0, min(least, length) - (stop - start))
    start = min(max(0, start - missing // 2), length - min(least, length))
    return slice(int(start), int(max(stop, min(start + least, length))))


def block_means(voxels: np.ndarray) -> np.ndarray:
    """Mean of each block of voxels; the last blocks along an axis may be smaller."""
    means: np.ndarray = voxels.astype(np.float32)
    for axis, size in enumerate(AIR_BLOCK):
        starts = np.arange(0, means.shape[axis], size)
        counts = np.diff(np.append(starts, means.shape[axis])).astype(np.float32)
        shape = [-1 if axis == other else 1 for other in range(means.ndim)]
        means = np.add.reduceat(means, starts, axis=axis) / counts.reshape(shape)
    return means
