"""A DICOM series becomes a Volume in Hounsfield units.

In:  a folder, zip or file; which series where several could be meant
Out: DicomScan: the volume, the headers of its slices for results that refer to them, and what was changed
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from pydicom import Dataset

from continual_segment.errors import ScanError
from continual_segment.files.dicom.choose import choose_series
from continual_segment.files.dicom.compression import check_compression, compression_of, loss
from continual_segment.files.dicom.frames import Frame
from continual_segment.files.dicom.headers import BROKEN, numbers, text
from continual_segment.files.dicom.series import Series, read_study, without_files, without_frames
from continual_segment.files.dicom.unreadable import Unreadable, leave_out, unknown_elsewhere
from continual_segment.files.grids import (
    LPS_TO_RAS,
    as_hounsfield,
    canonical_grid,
    check_affine,
    check_size,
    to_canonical,
)
from continual_segment.files.stack import AIR_HU, SAME_PLACE_MM, Stack, straighten
from continual_segment.names import printable
from continual_segment.volume import Grid, Volume

PLAUSIBLE_HU = (-1000.0, 3071.0)
"""A padding value that means a tissue is not believed."""


LONGEST_FILE = 400
"""Letters of a file name in a message."""
LARGEST_SLICE = 8192  # pixels; a damaged header can name 65535, and decoders allocate that memory


@dataclass(frozen=True, eq=False)
class DicomScan:
    """A scan and the slices it was made of."""

    volume: Volume
    series: Series
    notes: tuple[str, ...]
    """What was changed on the way, in sentences."""
    slices: Grid | None
    """Where the slices were scanned, if they were moved along one line to straighten them."""


class DamagedPixels(ScanError):
    """The pixels of one file cannot be decoded; those of its neighbours may be sound."""


def read_series(
    path: Path, wanted: str | None = None, force: bool = False, pick: str | None = None
) -> DicomScan:
    """Read the CT volume at a path; ScanError where there is none."""
    study = read_study(path)
    series = choose_series(study, wanted, pick, force)
    check_dimensions(path, series)
    own, others = study.unreadable_of(series)
    series, decoded, undecoded = decode(series)
    missing = leave_out(path, [*own, *undecoded], force)
    series, slices, copies = drop_copies(series, np.stack(decoded)) if decoded else (series, np.empty(0), ())
    if len(slices) < 2:
        raise ScanError(
            f"{path}: {len(slices)} slices of the series can be read; a volume was expected. Give the whole "
            "series."
        )
    tilted = stack_of(series, slices).sorted().without_rounding()
    stack, changes = straighten(tilted, str(path), force)
    affine = LPS_TO_RAS @ stack.affine()
    check_affine(path, affine)
    voxels, grid = to_canonical(stack.voxels.transpose(2, 1, 0), affine)
    scanned = None if stack.scanned is None else to_canonical(stack.scanned.transpose(2, 1, 0), affine)[0]
    where = None if stack.scanned is None else grid_of_slices(tilted, len(stack.voxels), grid)
    notes = (*missing, *unknown_elsewhere(others), *loss(series.header), *copies, *changes)
    return DicomScan(Volume(as_hounsfield(voxels), grid, scanned), without_files(series), notes, where)


def check_dimensions(path: Path, series: Series) -> None:
    """Refuse what no scanner makes, before memory is allocated."""
    rows, columns = int(series.header.Rows), int(series.header.Columns)
    if max(rows, columns) > LARGEST_SLICE:
        raise ScanError(
            f"{path}: slices of {rows} x {columns} pixels; no CT slice is so large. Export the series again."
        )
    check_size(path, (len(series.frames), rows, columns), 4)


def grid_of_slices(tilted: Stack, slices: int, upright: Grid) -> Grid | None:
    """Of so many slices as they were scanned; None where they are not on one line, or not along z."""
    _, rows, columns = tilted.voxels.shape
    grid = canonical_grid((columns, rows, slices), LPS_TO_RAS @ tilted.affine(slices))
    return grid if tilted.is_straight and upright.slice_shifts(grid) is not None else None


def stack_of(series: Series, slices: np.ndarray) -> Stack:
    frame = series.frames[0]
    positions = np.array([each.position_mm for each in series.frames])
    return Stack(slices, positions, frame.orientation[:3], frame.orientation[3:], frame.pixel_mm)


def drop_copies(series: Series, slices: np.ndarray) -> tuple[Series, np.ndarray, tuple[str, ...]]:
    """Leave out slices that are another one again, voxel by voxel."""
    heights = stack_of(series, slices).heights_mm
    order = np.argsort(heights, kind="stable")
    copies = [
        int(later)
        for earlier, later in pairwise(order)
        if heights[later] - heights[earlier] < SAME_PLACE_MM
        and np.array_equal(slices[earlier], slices[later])
    ]
    if not copies:
        return series, slices, ()
    note = f"{len(copies)} slices were there twice; one of each was kept."
    return without_frames(series, copies), np.delete(slices, copies, axis=0), (note,)


def decode(series: Series) -> tuple[Series, list[np.ndarray], list[Unreadable]]:
    """The frames that can be decoded, their Hounsfield units (row, column), and the files that cannot."""
    pictures: dict[str, np.ndarray] = {}
    frames, slices, damaged = [], [], {}
    for frame in series.frames:
        name = frame.file.name
        if name in damaged:
            continue
        try:
            if name not in pictures:  # every file is decoded once: its frames follow each other
                pictures = {name: _pixels(frame)}
            slices.append(_hounsfield(frame, pictures[name]))
            frames.append(frame)
        except DamagedPixels as error:
            damaged[name] = Unreadable(frame.file, str(error), series.uid)
    return replace(series, frames=tuple(frames)), slices, list(damaged.values())


def _pixels(frame: Frame) -> np.ndarray:
    """Stored values (frame, row, column)."""
    name = printable(frame.file.name, LONGEST_FILE)
    try:
        data = frame.file.read(pixels=True)
        if int(data.get("SamplesPerPixel", 1)) != 1:
            raise ScanError(
                f"{name}: this is a colour image; a CT slice was expected. Give the series itself."
            )
        check_compression(name, data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pixels = np.asarray(data.pixel_array)
    except BROKEN as error:
        raise DamagedPixels(f"the pixels cannot be decoded, {_reason(frame.header, error)}") from error
    return pixels if pixels.ndim == 3 else pixels[None]


def _reason(header: Dataset, error: BaseException) -> str:
    first = " ".join((str(error) or type(error).__name__).split())[:200].rstrip(".")
    return f"{getattr(compression_of(header), 'name', 'unknown transfer syntax')}: {first}"


def _hounsfield(frame: Frame, pixels: np.ndarray) -> np.ndarray:
    header = frame.header
    shape = int(header.Rows), int(header.Columns)
    if frame.index >= len(pixels) or pixels[frame.index].shape != shape:
        raise DamagedPixels(f"the pixels do not fill {shape[0]} x {shape[1]} of the header")
    stored = pixels[frame.index]
    slope, intercept = frame.rescale
    if slope.is_integer() and intercept.is_integer():
        values = as_hounsfield(stored.astype(np.int64) * int(slope) + int(intercept))
    else:
        values = stored.astype(np.float32) * np.float32(slope) + np.float32(intercept)
    return _without_padding(header, stored, values, slope, intercept)


def _without_padding(
    header: Dataset, stored: np.ndarray, values: np.ndarray, slope: float, intercept: float
) -> np.ndarray:
    """Outside the scanner's circle there is air, whatever number is stored there."""
    padding = numbers(header, "PixelPaddingValue", 1)
    if padding is None or not text(header, "PixelPaddingValue"):
        return values
    limit = numbers(header, "PixelPaddingRangeLimit", 1)
    low, high = sorted((padding[0], padding[0] if limit is None else limit[0]))
    if PLAUSIBLE_HU[0] < high * slope + intercept < PLAUSIBLE_HU[1]:
        return values
    return np.where((stored >= low) & (stored <= high), values.dtype.type(AIR_HU), values)
