"""A stack of parallel slices becomes a box of even voxels.

Scanners tilt their gantry, leave gaps and lose slices; a reader that trusts the first two positions then puts
organs centimetres off without a word. Here every slice keeps its own place: slices of a tilted gantry are
moved within their plane until they are above each other, uneven ones are interpolated along the normal, and
what would have to be made up over too long a way is refused with the numbers. Moved slices do not fill the
box: which of its voxels were scanned is part of the result.

In:  slices (slice, row, column) with the millimetres of each one's first voxel
Out: voxels of one even box, its affine, and a sentence for everything that was changed
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import ndimage

from continual_segment.errors import ScanError
from continual_segment.files.rounding import without_rounding

AIR_HU = -1024
SHIFT_ALLOWED = 0.05
"""Of a voxel: slices that are nearer than this to an even box are left as they are."""
LARGEST_GAP_MM = 15.0
"""Longest way that is interpolated over where slices are missing."""
MOST_MISSING = 3
"""In one place; more are not made up."""
STEEPEST_TILT = 2.0
"""Sideways for its height, 63 degrees; gantries are tilted by up to 30."""
SAME_PLACE_MM = 0.01


@dataclass(frozen=True, eq=False)
class Stack:
    """Parallel slices of one size."""

    voxels: np.ndarray
    """(slice, row, column)"""
    positions_mm: np.ndarray
    """(slice, 3): the centre of each slice's first voxel"""
    along_row: np.ndarray
    """Unit vector in which the column index grows."""
    along_column: np.ndarray
    """Unit vector in which the row index grows."""
    pixel_mm: tuple[float, float]
    """Distance of neighbouring rows, of neighbouring columns."""
    scanned: np.ndarray | None = None
    """bool, like the voxels: those that a slice covers; None: all"""

    @property
    def normal(self) -> np.ndarray:
        return np.cross(self.along_row, self.along_column)

    @property
    def heights_mm(self) -> np.ndarray:
        return self.positions_mm @ self.normal

    def sorted(self) -> Stack:
        """Slices in the order of their height."""
        order = np.argsort(self.heights_mm, kind="stable")
        if (np.diff(order) == 1).all():
            return self
        return replace(self, voxels=self.voxels[order], positions_mm=self.positions_mm[order])

    def without_rounding(self) -> Stack:
        """Slices at the places that their rounded positions mean."""
        return replace(self, positions_mm=without_rounding(self.positions_mm, self.normal))

    def affine(self, slices: int | None = None) -> np.ndarray:
        """Index (column, row, slice) -> millimetres, of so many even slices from the first to the last."""
        last, first = self.positions_mm[-1], self.positions_mm[0]
        affine = np.eye(4)
        affine[:3, 0] = self.along_row * self.pixel_mm[1]
        affine[:3, 1] = self.along_column * self.pixel_mm[0]
        affine[:3, 2] = (last - first) / ((slices or len(self.positions_mm)) - 1)
        affine[:3, 3] = first
        return affine

    @property
    def sideways_mm(self) -> np.ndarray:
        """How far each slice is from where the first one is, within its plane."""
        away = self.positions_mm - self.positions_mm[0]
        return np.linalg.norm(away - np.outer(away @ self.normal, self.normal), axis=1)

    @property
    def is_straight(self) -> bool:
        """Whether the first voxels of all slices are on one line."""
        heights, away = self.heights_mm, self.positions_mm - self.positions_mm[0]
        share = (heights - heights[0]) / (heights[-1] - heights[0])
        off = away - share[:, None] * away[-1]
        return bool(np.linalg.norm(off, axis=1).max() <= SHIFT_ALLOWED * min(self.pixel_mm))


def straighten(stack: Stack, name: str, force: bool = False) -> tuple[Stack, tuple[str, ...]]:
    """The same patient in an even box with right angles; `force` interpolates over any gap."""
    stack = stack.sorted().without_rounding()
    check_gaps(stack, name, force)
    check_tilt(stack, name)
    upright, tilt = without_tilt(stack)
    even, gaps = without_gaps(upright)
    return even, (*tilt, *gaps)


def check_gaps(stack: Stack, name: str, force: bool) -> None:
    """Refuse slices in one place, and gaps too long to be made up."""
    steps = np.diff(stack.heights_mm)
    if (twice := int(np.count_nonzero(steps < SAME_PLACE_MM))) > 0:
        raise ScanError(
            f"{name}: {twice} of {len(steps) + 1} slices have the position of another one but differ. "
            "This is no single volume: give one phase or reconstruction alone."
        )
    usual, largest = float(np.median(steps)), float(steps.max())
    missing = round(largest / usual) - 1
    if missing >= 1 and (missing > MOST_MISSING or largest > LARGEST_GAP_MM) and not force:
        at = int(steps.argmax())
        raise ScanError(
            f"{name}: {missing} slices are missing between {stack.heights_mm[at]:.1f} and "
            f"{stack.heights_mm[at + 1]:.1f} mm: a gap of {largest:.1f} mm, others {usual:.1f} mm. "
            "Export the series again, or interpolate over the gap with --force."
        )


def check_tilt(stack: Stack, name: str) -> None:
    """Refuse slices that are farther beside each other than any gantry puts them: memory follows from it."""
    sideways, height = float(stack.sideways_mm.max()), float(np.ptp(stack.heights_mm))
    if sideways > STEEPEST_TILT * height:
        raise ScanError(
            f"{name}: a slice is {sideways:.0f} mm beside the first one, over a height of {height:.0f} mm, "
            "which no tilt of a gantry explains. Export the series again."
        )


def without_tilt(stack: Stack) -> tuple[Stack, tuple[str, ...]]:
    """Move slices within their planes until their first voxels are above each other."""
    away = stack.positions_mm - stack.positions_mm[0]
    moved = np.stack([away @ stack.along_column, away @ stack.along_row], axis=1) / stack.pixel_mm
    if np.abs(moved).max() <= SHIFT_ALLOWED:
        return stack, ()
    first = np.floor(moved.min(axis=0))
    shape = np.add(stack.voxels.shape[1:], np.ceil(moved.max(axis=0) - first).astype(int))
    voxels = np.full((len(moved), *shape), AIR_HU, stack.voxels.dtype)
    scanned = np.zeros(voxels.shape, bool)
    for index, (piece, start) in enumerate(zip(stack.voxels, moved - first, strict=True)):
        own = _covered(start, piece.shape)
        scanned[index][own] = True
        voxels[index][own] = _like(_moved(piece, start, own), voxels)
    heights = stack.heights_mm - stack.heights_mm[0]
    across = first * stack.pixel_mm
    corner = stack.positions_mm[0] + across[0] * stack.along_column + across[1] * stack.along_row
    positions = corner + heights[:, None] * stack.normal
    upright = replace(stack, voxels=voxels, positions_mm=positions, scanned=scanned)
    return upright, (_tilt_sentence(float(stack.sideways_mm.max()), float(heights[-1])),)


def _covered(start: np.ndarray, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Pixels whose middle is within a slice of this shape that starts there."""
    firsts = np.ceil(start - 0.5).astype(int)
    return tuple(slice(first, first + length) for first, length in zip(firsts.tolist(), shape, strict=True))


def _moved(piece: np.ndarray, start: np.ndarray, own: tuple[slice, ...]) -> np.ndarray:
    """The values of a slice that starts at `start`, interpolated linearly at these pixels."""
    offset = [part.start - first for part, first in zip(own, start.tolist(), strict=True)]
    return ndimage.affine_transform(piece.astype(np.float32), np.ones(2), offset, order=1, mode="nearest")


def _tilt_sentence(sideways: float, height: float) -> str:
    angle = np.degrees(np.arctan2(sideways, height))
    return f"The gantry was tilted by {angle:.1f} degrees; slices were moved by up to {sideways:.1f} mm."


def without_gaps(stack: Stack) -> tuple[Stack, tuple[str, ...]]:
    """Interpolate linearly along the normal where slices are not evenly spaced."""
    heights = stack.heights_mm
    usual = float(np.median(np.diff(heights)))
    count = round((heights[-1] - heights[0]) / usual) + 1
    even = np.linspace(heights[0], heights[-1], count)
    if count == len(heights) and np.abs(even - heights).max() <= SHIFT_ALLOWED * usual:
        return stack, ()
    above = np.clip(np.searchsorted(heights, even), 1, len(heights) - 1)
    share = (even - heights[above - 1]) / (heights[above] - heights[above - 1])
    voxels = np.empty((count, *stack.voxels.shape[1:]), stack.voxels.dtype)
    for target, index, part in zip(voxels, above, share.astype(np.float32), strict=True):
        mixed = (1 - part) * _filled(stack, index - 1, index) + part * _filled(stack, index, index - 1)
        target[:] = _like(mixed, voxels)
    nearest = above - (share < 0.5)
    scanned = None if stack.scanned is None else stack.scanned[nearest]
    positions = stack.positions_mm[0] + (even - even[0])[:, None] * stack.normal
    steps = np.diff(heights)
    sentence = (
        f"Slices are {steps.min():.2f} to {steps.max():.2f} mm apart; {len(heights)} were interpolated to "
        f"{count} at {even[1] - even[0]:.2f} mm."
    )
    return replace(stack, voxels=voxels, positions_mm=positions, scanned=scanned), (sentence,)


def _filled(stack: Stack, index: int, other: int) -> np.ndarray:
    """A slice, and where that was not scanned another one: tissue is not mixed with padding."""
    if stack.scanned is None:
        return stack.voxels[index]
    return np.where(stack.scanned[index], stack.voxels[index], stack.voxels[other])


def _like(values: np.ndarray, original: np.ndarray) -> np.ndarray:
    """Rounded to whole numbers where the scan is of such."""
    return np.rint(values).astype(original.dtype) if original.dtype.kind in "iu" else values
