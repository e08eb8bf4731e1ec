"""A stack of parallel slices becomes a box of even voxels.

Scanners tilt their gantry, leave gaps and lose slices; a reader that trusts the first two positions then puts
organs centimetres off without a word. Here every slice keeps its own place: slices of a tilted gantry are
moved within their plane until they lie above each other, uneven ones are interpolated along the normal, and
what would have to be made up over too long a way is refused with the numbers.

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
"""Of a voxel: slices that lie nearer than this to an even box are left as they are."""
LARGEST_GAP_MM = 15.0
"""Longest way that is interpolated over where slices are missing."""
MOST_MISSING = 3
"""In one place; more are not made up."""
SAME_PLACE_MM = 0.01
FINER = (5, 3, 1)
"""Parts that pixels of tilted slices are cut into, across the tilt. Labels go back to the slices as whole
voxels: with pixels as they were, all of a slice would be off by up to half a pixel, now by a tenth. Odd, so
that the middle part lies where the pixel does."""
MOST_VOXELS = 2**28
"""Of the box that comes of it; where it would have more, pixels are cut into fewer parts."""


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
    finer: tuple[int, int] = (1, 1)
    """Rows, columns that one of the scan's was cut into."""

    @property
    def normal(self) -> np.ndarray:
        return np.cross(self.along_row, self.along_column)

    @property
    def heights_mm(self) -> np.ndarray:
        return self.positions_mm @ self.normal

    def sorted(self) -> Stack:
        """Slices in the order of their height."""
        order = np.argsort(self.heights_mm, kind="stable")
        return replace(self, voxels=self.voxels[order], positions_mm=self.positions_mm[order])

    def affine(self) -> np.ndarray:
        """Index (column, row, slice) -> millimetres, of a stack that is even."""
        last, first = self.positions_mm[-1], self.positions_mm[0]
        affine = np.eye(4)
        affine[:3, 0] = self.along_row * self.pixel_mm[1]
        affine[:3, 1] = self.along_column * self.pixel_mm[0]
        affine[:3, 2] = (last - first) / (len(self.positions_mm) - 1)
        affine[:3, 3] = first
        return affine


def straighten(stack: Stack, name: str, force: bool = False) -> tuple[Stack, tuple[str, ...]]:
    """The same patient in an even box with right angles; `force` interpolates over any gap."""
    stack = stack.sorted()
    stack = replace(stack, positions_mm=without_rounding(stack.positions_mm, stack.normal))
    check_gaps(stack, name, force)
    upright, tilt = without_tilt(stack)
    even, gaps = without_gaps(upright)
    return even, (*tilt, *gaps)


def check_gaps(stack: Stack, name: str, force: bool) -> None:
    """Refuse slices in one place, and gaps too long to be made up."""
    steps = np.diff(stack.heights_mm)
    if (twice := int(np.count_nonzero(steps < SAME_PLACE_MM))) > 0:
        raise ScanError(
            f"{name}: {twice} of {len(steps) + 1} slices lie in the same place as another one but differ. "
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


def without_tilt(stack: Stack) -> tuple[Stack, tuple[str, ...]]:
    """Move slices within their planes until their first voxels lie above each other."""
    away = stack.positions_mm - stack.positions_mm[0]
    moved = np.stack([away @ stack.along_column, away @ stack.along_row], axis=1) / stack.pixel_mm
    if np.abs(moved).max() <= SHIFT_ALLOWED:
        return stack, ()
    first = np.floor(moved.min(axis=0))
    shape = np.add(stack.voxels.shape[1:], np.ceil(moved.max(axis=0) - first).astype(int))
    finer = _finer(moved, len(moved) * int(shape.prod()))
    first = first - (finer - 1) / (2 * finer)  # from the middle of a pixel to that of its first part
    voxels = np.empty((len(moved), *(shape * finer)), stack.voxels.dtype)
    for canvas, piece, move in zip(voxels, stack.voxels, moved, strict=True):
        canvas[:] = _like(_moved(piece, first - move, finer, canvas.shape), voxels)
    heights = stack.heights_mm - stack.heights_mm[0]
    across = first * stack.pixel_mm
    corner = stack.positions_mm[0] + across[0] * stack.along_column + across[1] * stack.along_row
    upright = replace(
        stack,
        voxels=voxels,
        positions_mm=corner + heights[:, None] * stack.normal,
        pixel_mm=(stack.pixel_mm[0] / finer[0], stack.pixel_mm[1] / finer[1]),
        finer=(int(finer[0]), int(finer[1])),
    )
    return upright, (_tilt_sentence(away, heights[-1], stack.normal),)


def _finer(moved: np.ndarray, pixels: int) -> np.ndarray:
    """How many rows, columns become of one: several where slices move across them."""
    moves = np.abs(moved).max(axis=0) > SHIFT_ALLOWED
    parts = (np.where(moves, each, 1) for each in FINER)
    return next(each for each in parts if pixels * each.prod() <= MOST_VOXELS or each.max() == 1)


def _moved(piece: np.ndarray, start: np.ndarray, finer: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A slice from another first pixel on, linearly interpolated in finer steps; air around it."""
    return ndimage.affine_transform(
        piece.astype(np.float32), 1 / finer, start, shape, order=1, mode="grid-constant", cval=AIR_HU
    )


def _tilt_sentence(away: np.ndarray, height: float, normal: np.ndarray) -> str:
    sideways = np.linalg.norm(away[-1] - height * normal)
    angle = np.degrees(np.arctan2(sideways, height))
    return f"The gantry was tilted by {angle:.1f} degrees; slices were moved by up to {sideways:.1f} mm."


def without_gaps(stack: Stack) -> tuple[Stack, tuple[str, ...]]:
    """Interpolate linearly along the normal where slices do not lie evenly."""
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
        target[:] = _like((1 - part) * stack.voxels[index - 1] + part * stack.voxels[index], voxels)
    positions = stack.positions_mm[0] + (even - even[0])[:, None] * stack.normal
    steps = np.diff(heights)
    sentence = (
        f"Slices lie {steps.min():.2f} to {steps.max():.2f} mm apart; {len(heights)} were interpolated to "
        f"{count} at {even[1] - even[0]:.2f} mm."
    )
    return replace(stack, voxels=voxels, positions_mm=positions), (sentence,)


def _like(values: np.ndarray, original: np.ndarray) -> np.ndarray:
    """Rounded to whole numbers where the scan is of such."""
    return np.rint(values).astype(original.dtype) if original.dtype.kind in "iu" else values
