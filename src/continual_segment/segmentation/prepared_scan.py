"""A scan as its windows are read, and the way from there to the grids of its labels.

ResampledScan is our own way: Hounsfield units on the model's voxel size, normalised when a window is read.
CroppedScan is that of imported nnU-Nets: everything up to the labels happens in the axes of the network, on
the box of voxels that are not 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import numpy as np

from continual_segment.body_parts import BodyPartRegressor
from continual_segment.data.intensity import ON_INPUT
from continual_segment.data.nnunet_resample import resample_like_nnunet
from continual_segment.data.nnunet_scan import NnunetScan
from continual_segment.data.prepare import on_spacing
from continual_segment.data.prepare_config import PrepareConfig
from continual_segment.packed import PackedVolume, PackedVoxels
from continual_segment.segmentation.context import ScanContext
from continual_segment.segmentation.nnunet_inference import NNUNET_TILING
from continual_segment.segmentation.padded_scan import PaddedScan, body_box
from continual_segment.segmentation.sampling import Sampling, nearest_neighbour, on_grid
from continual_segment.segmentation.windows import OWN_TILING, Tiling
from continual_segment.volume import Grid, SliceSource, Volume, VolumeSlices

Window = tuple[int, int, int]


class PreparedScan(Protocol):
    """What segmentation needs to know about a prepared scan."""

    padded: PaddedScan
    tiling: Tiling

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the prepared scan."""
        ...

    @property
    def scanned(self) -> np.ndarray | None:
        """Which prepared voxels were scanned; None: all."""
        ...

    def context(self, known: ScanContext | None, regressor: BodyPartRegressor | None) -> ScanContext:
        """What is known about the scan, or body parts by the regressor, on the prepared voxels."""
        ...

    def samplings(self, grids: Sequence[Grid]) -> list[Sampling]:
        """How labels are sampled, so that `on_grids` makes those of all grids from them."""
        ...

    def on_grids(self, found: Sequence[np.ndarray], grids: Sequence[Grid]) -> list[np.ndarray]:
        """What was found by each sampling as arrays on the grids."""
        ...

    def nearest(self, voxels: np.ndarray, grid: Grid) -> np.ndarray:
        """For every voxel of a grid the nearest of some prepared ones."""
        ...


def prepare_for_windows(scan: Volume, config: PrepareConfig, window: Window) -> PreparedScan:
    return (CroppedScan if config.nnunet else ResampledScan)(scan, config, window)


class ResampledScan:
    """A scan prepared our own way."""

    tiling = OWN_TILING

    def __init__(self, scan: Volume, config: PrepareConfig, window: Window) -> None:
        prepared = on_spacing(scan, config)
        if prepared is not scan:
            prepared = PackedVolume.compress(prepared)
        self.scan, self.prepared, source = scan, prepared, VolumeSlices(prepared)
        self.padded = PaddedScan(source, window, config.intensity.fitted(source), body_box(source, window))

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.prepared.grid.shape

    @property
    def scanned(self) -> np.ndarray | None:
        found = self.scan.scanned
        return None if found is None else nearest_neighbour(found, self.shape)

    def context(self, known: ScanContext | None, regressor: BodyPartRegressor | None) -> ScanContext:
        if known:
            known = known.on_grid(self.scan.grid, self.prepared.grid)
        else:
            known = ScanContext.of(regressor.regions(self.prepared).body_part) if regressor else ScanContext()
        return known.crop(self.padded.box)

    def samplings(self, grids: Sequence[Grid]) -> list[Sampling]:
        return [Sampling.of(self.scan, self.shape, grid) for grid in grids]

    def on_grids(self, found: Sequence[np.ndarray], grids: Sequence[Grid]) -> list[np.ndarray]:
        return list(found)

    def nearest(self, voxels: np.ndarray, grid: Grid) -> np.ndarray:
        return Sampling.of(self.scan, self.shape, grid).nearest(voxels)


class CroppedScan:
    """A scan prepared as stock nnU-Net does.

    Labels are made on the crop, then put on the scan's grid. Those of another grid are copies of the nearest
    on the scan's grid.
    """

    tiling = NNUNET_TILING

    def __init__(self, scan: Volume, config: PrepareConfig, window: Window) -> None:
        self.scan, self.way = scan, NnunetScan(scan, config)
        self.padded = PaddedScan(self._input(), window, ON_INPUT)

    def _input(self) -> SliceSource:
        """The network input; what is resampled is stored, for windows overlap."""
        if self.way.shape == self.way.crop_shape:
            return self.way.normalised
        packed = PackedVoxels(self.way.shape[1:], np.float32)
        for slab in self.way.slabs():
            for plane in slab:
                packed.append(plane)
        return packed

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.way.shape

    @property
    def scanned(self) -> np.ndarray | None:
        found = self.scan.scanned
        return None if found is None else nearest_neighbour(self.way.crop(found), self.shape)

    def context(self, known: ScanContext | None, regressor: BodyPartRegressor | None) -> ScanContext:
        if known is None:
            known = ScanContext.of(regressor.regions(self.scan).body_part) if regressor else ScanContext()
        part, anomaly = known.body_part, known.anomaly
        found = ScanContext.of(
            None if part is None else self._body_part(part.numpy()),
            None if anomaly is None else self._anomaly(anomaly.numpy()),
        )
        return replace(found, familiar=known.familiar)

    def _body_part(self, part: np.ndarray) -> np.ndarray:
        """Body parts of slices along whatever axis of the network they are."""
        turned = self.way.crop(part)
        lengths = [1 if old == 1 else new for old, new in zip(turned.shape, self.shape, strict=True)]
        return nearest_neighbour(turned, lengths)

    def _anomaly(self, anomaly: np.ndarray) -> np.ndarray:
        return resample_like_nnunet(self.way.crop(anomaly), self.shape, order=1).clip(0, 1)

    @cached_property
    def _on_crop(self) -> Sampling:
        crop = self.way.crop_shape
        return Sampling(self.shape, crop, crop, coarse=self.way.coarse_axis_back)

    def samplings(self, grids: Sequence[Grid]) -> list[Sampling]:
        return [self._on_crop]

    def on_grids(self, found: Sequence[np.ndarray], grids: Sequence[Grid]) -> list[np.ndarray]:
        (on_crop,) = found
        voxels = self.way.put_back(on_crop)
        if (scanned := self.scan.scanned) is not None:
            voxels = voxels * scanned
        voxels = np.ascontiguousarray(voxels)
        return [on_grid(self.scan, voxels, grid) for grid in grids]

    def nearest(self, voxels: np.ndarray, grid: Grid) -> np.ndarray:
        (found,) = self.on_grids([self._on_crop.nearest(voxels)], [grid])
        return found
