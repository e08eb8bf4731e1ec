"""Voxels that are held compressed in memory.

A scan and its labels are needed from reading to writing, but only some slices of them at a time.
Packed, a scan takes half its memory and a label map a hundredth; slices are unpacked when they are read.

Appending 300 slices of 512 x 512 to a blosc2.NDArray takes five times as long (10.9 s, here 2.2 s). Gathered
by eight, it takes as long and as much memory, and as much code, because an NDArray does not pickle.
"""

from __future__ import annotations

import blosc2
import numpy as np

from continual_segment.volume import Grid, Volume

SLICES_A_PACKET = 8


class PackedVoxels:
    """Slices of one shape, appended in order and read in any."""

    def __init__(self, plane_shape: tuple[int, int], dtype: np.dtype | type) -> None:
        self.plane_shape, self.dtype = plane_shape, np.dtype(dtype)
        self._packets: list[bytes] = []
        self._loose: list[np.ndarray] = []
        """The last slices, too few for a packet."""

    @classmethod
    def of(cls, voxels: np.ndarray) -> PackedVoxels:
        packed = cls((voxels.shape[1], voxels.shape[2]), voxels.dtype)
        for plane in voxels:
            packed.append(plane)
        return packed

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self), *self.plane_shape

    def __len__(self) -> int:
        return len(self._packets) * SLICES_A_PACKET + len(self._loose)

    def append(self, plane: np.ndarray, box: tuple[slice, slice] = (slice(None), slice(None))) -> None:
        """Append a slice, or the `box` of one with zeros around it."""
        whole = np.zeros(self.plane_shape, self.dtype)
        whole[box] = plane
        self._loose.append(whole)
        if len(self._loose) == SLICES_A_PACKET:
            packet = np.stack(self._loose)
            self._packets.append(
                blosc2.compress(packet, packet.itemsize, 1, blosc2.Filter.SHUFFLE, blosc2.Codec.ZSTD)
            )
            self._loose.clear()

    def __getitem__(self, part: slice) -> np.ndarray:
        """Some slices, or with `[:]` all: an array of their own."""
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError(f"Slices are unpacked in steps of 1, not of {step}.")
        found = np.empty((max(0, stop - start), *self.plane_shape), self.dtype)
        for number in range(start // SLICES_A_PACKET, -(-stop // SLICES_A_PACKET)):
            first = number * SLICES_A_PACKET
            packet = self._packet(number)
            own = slice(max(start, first), min(stop, first + len(packet)))
            found[own.start - start : own.stop - start] = packet[own.start - first : own.stop - first]
        return found

    def _packet(self, number: int) -> np.ndarray:
        if number == len(self._packets):
            return np.stack(self._loose)
        voxels = np.empty((SLICES_A_PACKET, *self.plane_shape), self.dtype)
        blosc2.decompress(self._packets[number], voxels)
        return voxels


class PackedVolume(Volume):
    """A compressed scan. `voxels` unpacks all of it on every access; `slices` unpacks a part."""

    packed: PackedVoxels
    packed_scanned: PackedVoxels | None

    def __init__(self, packed: PackedVoxels, grid: Grid, scanned: PackedVoxels | None = None) -> None:
        object.__setattr__(self, "packed", packed)  # a volume does not change
        object.__setattr__(self, "grid", grid)
        object.__setattr__(self, "packed_scanned", scanned)

    @classmethod
    def compress(cls, volume: Volume) -> PackedVolume:
        if isinstance(volume, cls):
            return volume
        scanned = None if volume.scanned is None else PackedVoxels.of(volume.scanned)
        return cls(PackedVoxels.of(volume.voxels), volume.grid, scanned)

    @property
    def voxels(self) -> np.ndarray:
        return self.packed[:]

    @property
    def scanned(self) -> np.ndarray | None:
        return self.scanned_slices(slice(None))

    def slices(self, part: slice) -> np.ndarray:
        return self.packed[part]

    def scanned_slices(self, part: slice) -> np.ndarray | None:
        return None if self.packed_scanned is None else self.packed_scanned[part]
