"""What the regressor sees of a scan: small axial slices at known heights, drawn in rows.

Training reads every scan once and keeps it as thumbnails. A batch holds a few scans and of each a row of
slices at equal distances; it follows from the seed and its number alone, as everywhere in training.

In:  scans
Out: slices (scan, slice, y, x), Hounsfield units / 1000, and their heights in mm (2, scan, slice): in the
     scan, and in the usual body where labels give that (else NaN)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from continual_segment.data.resample import resample_scan
from continual_segment.errors import DatasetError
from continual_segment.volume import Volume

LEAST_MM, MOST_MM, MOST_PIXELS = 0.5, 50.0, 512
"""Of a view, which may come from a stranger: memory follows from it."""
HU_PER_STEP = 8
"""Thumbnails are int8: a step is finer than the noise of a CT."""
BODY_HU = -500
AIR = -128


@dataclass(frozen=True)
class SliceView:
    """How a slice is shown to the network."""

    slice_mm: float = 6.0
    """Thinner slices are averaged to this; thicker ones stay as they are."""
    pixel_mm: float = 8.0
    size: int = 56
    """Pixels along each side, the body in their middle."""
    least_body: float = 0.03
    """Share of the slice that is body; slices with less are nowhere."""
    window_hu: tuple[float, float] = (-1024.0, 1024.0)
    """All beyond is cut off: prepared scans, which training reads, may be narrower than those of a clinic."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "window_hu", tuple(map(float, self.window_hu)))
        lengths = (self.slice_mm, self.pixel_mm)
        if not all(LEAST_MM <= length <= MOST_MM for length in lengths) or not 8 <= self.size <= MOST_PIXELS:
            raise ValueError(
                f"slice_mm and pixel_mm are {LEAST_MM} to {MOST_MM} mm and size is 8 to {MOST_PIXELS} pixels."
            )

    @property
    def body_hu(self) -> float:
        """Above it is body: in a narrow window, all that is not cut off."""
        return max(BODY_HU, self.window_hu[0] + HU_PER_STEP)

    @property
    def air(self) -> int:
        """What is put around a scan, in steps."""
        return max(AIR, int(np.rint(self.window_hu[0] / HU_PER_STEP)))


@dataclass(frozen=True, eq=False)
class Thumbnails:
    """A scan as the network sees it."""

    slices: np.ndarray
    """int8 (slice, size, size), HU / 8"""
    slice_mm: float
    body: np.ndarray
    """bool (slice,): where there is a body at all"""
    usual_mm: np.ndarray | None = None
    """float (slice,): heights above the usual L5 as labels give them, NaN where they do not; None: nowhere"""

    @property
    def heights_mm(self) -> np.ndarray:
        """Above the first slice."""
        return np.arange(len(self.slices)) * self.slice_mm

    def images(self) -> Tensor:
        """(slice, 1, y, x) for the network."""
        return as_images(torch.from_numpy(self.slices)[:, None])


def as_images(thumbnails: Tensor) -> Tensor:
    return thumbnails.float() * (HU_PER_STEP / 1000)


def make_thumbnails(scan: Volume, view: SliceView) -> Thumbnails:
    """Small slices of a scan, its body moved to their middle."""
    spacing = (max(view.slice_mm, scan.grid.spacing_mm[0]), view.pixel_mm, view.pixel_mm)
    cut = Volume(np.clip(scan.voxels, *view.window_hu), scan.grid)
    small = resample_scan(cut, scan.grid.with_spacing(spacing))
    body = small.voxels > view.body_hu
    hu = np.clip(np.rint(small.voxels / HU_PER_STEP), AIR, 127).astype(np.int8)
    slices = np.full((len(hu), view.size, view.size), view.air, np.int8)
    flat = np.argwhere(body.any(axis=0))
    middle = np.rint((flat.min(axis=0) + flat.max(axis=0)) / 2) if len(flat) else np.array(hu.shape[1:]) // 2
    source, target = zip(
        *(_overlap(int(at), length, view.size) for at, length in zip(middle, hu.shape[1:], strict=True)),
        strict=True,
    )
    slices[:, target[0], target[1]] = hu[:, source[0], source[1]]
    enough = (slices > view.body_hu / HU_PER_STEP).mean(axis=(1, 2)) >= view.least_body
    return Thumbnails(slices, small.grid.spacing_mm[0], enough)


def _overlap(middle: int, length: int, size: int) -> tuple[slice, slice]:
    """The part of an axis that a canvas of `size` around its middle shows, and where on the canvas."""
    first = middle - size // 2
    start, stop = max(0, first), min(length, first + size)
    return slice(start, stop), slice(start - first, stop - first)


@dataclass(frozen=True)
class RowConfig:
    """What one batch consists of."""

    scans: int = 16
    slices: int = 6
    """Of each scan, at equal distances."""
    gap_mm: tuple[float, float] = (6.0, 100.0)
    """Between two neighbours, as far as the scan allows."""
    rotation_deg: float = 8.0
    scaling: float = 0.1
    """Share by which a slice is made larger or smaller at most."""
    shift: float = 0.05
    """Share of the slice."""
    contrast: float = 0.15
    brightness: float = 0.05
    """In units of 1000 HU."""
    noise: float = 0.03
    cut_share: float = 0.15
    """Of the slices whose field of view is made smaller."""


class SliceRows(torch.utils.data.Dataset):
    """The batches of training; hand it to `training.train`."""

    def __init__(self, scans: Sequence[Thumbnails], config: RowConfig, seed: int, iterations: int) -> None:
        self.scans = [scan for scan in scans if scan.body.sum() >= 3]
        if not self.scans:
            raise DatasetError("No scan has three slices of a body, so nothing can be learned of its order.")
        self.config, self.seed, self.iterations = config, seed, iterations

    def __len__(self) -> int:
        return self.iterations

    def __getitem__(self, iteration: int) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng([self.seed, iteration])
        rows = [self._row(rng) for _ in range(self.config.scans)]
        images = as_images(torch.from_numpy(np.stack([slices for slices, _ in rows])))
        heights = torch.from_numpy(np.stack([heights for _, heights in rows], axis=1).astype(np.float32))
        return augment(images, self.config, rng), heights

    def _row(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Slices of one scan and their heights (2, slice)."""
        scan = self.scans[rng.integers(len(self.scans))]
        inside = np.flatnonzero(scan.body)
        room = (inside[-1] - inside[0]) * scan.slice_mm
        steps = self.config.slices - 1
        low, high = self.config.gap_mm
        longest = min(high, room / steps)
        gap = rng.uniform(min(low, longest), longest)
        # drawn near the ends more often: a uniform start would show the first and last slices hardly ever
        start = inside[0] * scan.slice_mm + rng.beta(0.5, 0.5) * (room - gap * steps)
        wanted = np.rint((start + gap * np.arange(steps + 1)) / scan.slice_mm).astype(int)
        chosen = np.clip(wanted, inside[0], inside[-1])
        usual = np.full(len(chosen), np.nan) if scan.usual_mm is None else scan.usual_mm[chosen]
        return scan.slices[chosen], np.stack([chosen * scan.slice_mm, usual])


def augment(rows: Tensor, config: RowConfig, rng: np.random.Generator) -> Tensor:
    """Rows (scan, slice, y, x), every slice changed in its own way.

    Only differences within a scan are learned from. If its slices were changed alike, whatever they have in
    common, such as size or contrast, could shift all their scores unnoticed.
    """
    slices = rows.flatten(0, 1)[:, None]
    count = len(slices)
    angle = np.deg2rad(rng.uniform(-config.rotation_deg, config.rotation_deg, count))
    scale = 1 + rng.uniform(-config.scaling, config.scaling, count)
    mirrored = np.where(rng.random(count) < 0.5, -1.0, 1.0)
    move = rng.uniform(-2 * config.shift, 2 * config.shift, (count, 2, 1))  # the slice is 2 wide
    turn = np.stack([np.cos(angle), -np.sin(angle), np.sin(angle), np.cos(angle)], 1).reshape(count, 2, 2)
    turn = turn * scale[:, None, None] * np.stack([mirrored, np.ones(count)], 1)[:, None, :]
    theta = torch.from_numpy(np.concatenate([turn, move], 2)).float()
    grid = functional.affine_grid(theta, list(slices.shape), align_corners=False)
    air = float(rows.min())
    moved = functional.grid_sample(slices - air, grid, align_corners=False) + air
    _cut(moved, air, config, rng)
    factor = 1 + _uniform(rng, -config.contrast, config.contrast, count)
    offset = _uniform(rng, -config.brightness, config.brightness, count)
    noise = torch.from_numpy(rng.standard_normal(moved.shape, dtype=np.float32))
    changed = moved * factor + offset + _uniform(rng, 0, config.noise, count) * noise
    return changed.view(rows.shape)


def _uniform(rng: np.random.Generator, low: float, high: float, count: int) -> Tensor:
    return torch.from_numpy(rng.uniform(low, high, (count, 1, 1, 1)).astype(np.float32))


def _cut(slices: Tensor, air: float, config: RowConfig, rng: np.random.Generator) -> None:
    """Blank a margin of some slices (slice, 1, y, x), as a smaller field of view would."""
    size = slices.shape[-1]
    for number in np.flatnonzero(rng.random(len(slices)) < config.cut_share):
        top, bottom, left, right = rng.integers(0, size // 5, 4)
        kept = slices[number, :, top : size - bottom, left : size - right].clone()
        slices[number] = air
        slices[number, :, top : size - bottom, left : size - right] = kept
