"""NnunetScan: a scan on its way to the input of an imported nnU-Net, and labels on the way back.

The steps are those of data/nnunet_preparation.py: crop, normalise, resample, in the axes of the network.
Slices pass through them a few at a time; a whole copy is made only where the network's first axis is not the
scan's.

In:  a scan, PrepareConfig with `nnunet`
Out: network input, float32, slab by slab; arrays on the crop as arrays on the scan's grid
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from continual_segment.data.intensity import FittedIntensity
from continual_segment.data.network_frame import NetworkFrame
from continual_segment.data.nnunet_preparation import (
    SLICES_AT_ONCE,
    Box,
    coarse_axis,
    nonzero_box,
    nonzero_mask,
    put_back,
    resampled_shape,
)
from continual_segment.data.nnunet_resample import resampled_slabs
from continual_segment.data.prepare_config import NnunetPreparation, PrepareConfig
from continual_segment.volume import Grid, SliceSource, Volume

Shape = tuple[int, int, int]


class NetworkView:
    """The slices of a scan in the axes of a network."""

    def __init__(self, scan: Volume, frame: NetworkFrame) -> None:
        self.scan, self.frame, self.shape = scan, frame, frame.shape(scan.grid)
        self._whole = None if frame.axes[0] == 0 else frame.to_network(scan.voxels)

    def __getitem__(self, part: slice, /) -> np.ndarray:
        if self._whole is not None:
            return self._whole[part]
        start, stop, _ = part.indices(self.shape[0])
        if self.frame.flipped[0]:
            start, stop = self.shape[0] - stop, self.shape[0] - start
        return self.frame.to_network(self.scan.slices(slice(start, stop)))


class Crop:
    """A box of a source of slices."""

    def __init__(self, source: SliceSource, box: Box) -> None:
        self.source, self.box = source, box
        self.shape = _box_shape(box)

    def __getitem__(self, part: slice, /) -> np.ndarray:
        start, stop, _ = part.indices(self.shape[0])
        first = self.box[0].start
        return self.source[first + start : first + stop][:, *self.box[1:]]


@dataclass(frozen=True, eq=False)
class NormalisedCrop:
    """A crop as the network reads it, before resampling."""

    crop: Crop
    intensity: FittedIntensity
    mask: np.ndarray | None = None
    """Voxels that are normalised, where not all are."""

    @property
    def shape(self) -> Shape:
        return self.crop.shape

    def __getitem__(self, part: slice, /) -> np.ndarray:
        values = self.crop[part]
        found = self.intensity.normalise(values)
        return found if self.mask is None else np.where(self.mask[part], found, values.astype(np.float32))


@dataclass(frozen=True, eq=False)
class NnunetScan:
    """Where a scan's voxels are in the network's arrays, and what becomes of them."""

    scan: Volume
    config: PrepareConfig

    @property
    def settings(self) -> NnunetPreparation:
        assert self.config.nnunet is not None
        return self.config.nnunet

    @cached_property
    def frame(self) -> NetworkFrame:
        return self.settings.frame(self.scan.grid.orientation)

    @cached_property
    def _view(self) -> NetworkView:
        return NetworkView(self.scan, self.frame)

    @cached_property
    def box(self) -> Box:
        """The part of the scan that is prepared, in the network's axes."""
        return nonzero_box(self._view)

    @property
    def crop_shape(self) -> Shape:
        return _box_shape(self.box)

    @property
    def spacing_mm(self) -> tuple[float, float, float]:
        """Voxel size of the scan in the network's axes."""
        return self.frame.spacing_mm(self.scan.grid)

    @cached_property
    def shape(self) -> Shape:
        """Of the network input."""
        return resampled_shape(self.crop_shape, self.spacing_mm, self.config.spacing_mm)

    @property
    def coarse_axis_back(self) -> int | None:
        """Axis along which logits are repeated instead of interpolated on the way back to the crop."""
        return coarse_axis(self.config.spacing_mm, self.spacing_mm, self.settings.separate_z_of_logits)

    @cached_property
    def normalised(self) -> NormalisedCrop:
        crop, intensity = Crop(self._view, self.box), self.config.intensity
        if not (self.settings.use_mask_for_norm and intensity.kind == "z-score"):
            return NormalisedCrop(crop, intensity.fitted(crop))
        voxels = crop[:]
        mask = nonzero_mask(voxels)
        return NormalisedCrop(crop, intensity.fitted(voxels[mask].reshape(1, 1, -1)), mask)

    def slabs(self) -> Iterator[np.ndarray]:
        """The network input, some slices at a time: float32."""
        if self.shape != self.crop_shape:
            coarse = coarse_axis(self.spacing_mm, self.config.spacing_mm, self.settings.separate_z)
            yield from resampled_slabs(self.normalised, self.shape, coarse)
            return
        for first in range(0, self.shape[0], SLICES_AT_ONCE):
            yield self.normalised[first : first + SLICES_AT_ONCE]

    def crop(self, voxels: np.ndarray) -> np.ndarray:
        """The crop of an array (z, y, x) on the scan's grid, in the network's axes.

        Along an axis of one voxel, which stands for all, nothing is cut.
        """
        turned = self.frame.to_network(voxels)
        return turned[
            tuple(slice(None) if n == 1 else part for n, part in zip(turned.shape, self.box, strict=True))
        ]

    def put_back(self, voxels: np.ndarray) -> np.ndarray:
        """An array on the crop as an array (z, y, x) on the scan's grid, 0 around it."""
        return self.frame.from_network(put_back(voxels, self.box, self.frame.shape(self.scan.grid)))

    @property
    def crop_grid(self) -> Grid:
        """Place of the crop in the patient, with our axes; `frame` relates the network's arrays to it."""
        whole, frame = self.scan.grid, self.frame
        starts = [
            length - part.stop if flipped else part.start
            for part, flipped, length in zip(self.box, frame.flipped, frame.shape(whole), strict=True)
        ]
        affine = whole.affine.copy()
        affine[:3, 3] += whole.affine[:3, :3] @ frame.in_own_order(starts)[::-1]
        return replace(whole, shape=frame.in_own_order(self.crop_shape), affine=affine)

    @property
    def grid(self) -> Grid:
        """Place of the network input."""
        return self.crop_grid.with_shape(self.frame.in_own_order(self.shape))


def _box_shape(box: Box) -> Shape:
    z, y, x = (part.stop - part.start for part in box)
    return z, y, x
