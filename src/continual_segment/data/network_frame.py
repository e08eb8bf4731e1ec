"""NetworkFrame: the axes of the arrays that a network trained elsewhere reads.

Voxels are (z, y, x) with RAS axes everywhere in this package. An nnU-Net is trained on arrays as its image
reader returns them: some readers keep the axes of the file, others turn them to RAS. `transpose_forward` of
its plans then permutes them. A frame holds both steps as one permutation with flips, so that a scan becomes
the network's array, and the network's labels become ours, without a copy.

In:  the axis codes of a file, the reader's name and the permutation from `plans.json`
Out: views of arrays, shapes and voxel sizes in the network's axes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from continual_segment.volume import Grid

FileOrderReader = Literal["SimpleITKIO", "NibabelIO"]
"""Their arrays have the axes of the file, last axis first."""
ReorientingReader = Literal["NibabelIOWithReorient", "SimpleITKIOWithReorient"]
"""Their arrays are (z, y, x) with RAS axes, as ours."""
Reader = FileOrderReader | ReorientingReader

Value = TypeVar("Value")
_ANATOMICAL_AXIS = {"L": 0, "R": 0, "P": 1, "A": 1, "I": 2, "S": 2}
_AGAINST_RAS = "LPI"


@dataclass(frozen=True)
class NetworkFrame:
    """A permutation of our axes (z, y, x), with flips."""

    axes: tuple[int, int, int] = (0, 1, 2)
    """Which of our axes each axis of the network's arrays is."""
    flipped: tuple[bool, bool, bool] = (False, False, False)
    """Whether each axis of the network's arrays runs against ours."""

    def __post_init__(self) -> None:
        _check_permutation("axes", self.axes)

    @classmethod
    def of_reader(
        cls, reader: Reader, orientation: str = "RAS", transpose_forward: Sequence[int] = (0, 1, 2)
    ) -> NetworkFrame:
        """The frame of a file with these axis codes (`Grid.orientation`), as `reader` hands it to nnU-Net."""
        _check_permutation("transpose_forward", transpose_forward)
        codes = _codes_read(reader, orientation)[::-1]  # readers return the file's last axis first
        own = [(2 - _ANATOMICAL_AXIS[code], code in _AGAINST_RAS) for code in codes]
        first, second, third = (own[axis] for axis in transpose_forward)
        return cls((first[0], second[0], third[0]), (first[1], second[1], third[1]))

    def to_network(self, voxels: np.ndarray) -> np.ndarray:
        """A view of (..., z, y, x) in the network's axes."""
        return _transpose_last(voxels, self.axes)[self._flips]

    def from_network(self, voxels: np.ndarray) -> np.ndarray:
        """A view of an array in the network's axes as (..., z, y, x)."""
        z, y, x = (self.axes.index(axis) for axis in range(3))
        return _transpose_last(voxels[self._flips], (z, y, x))

    def in_network_order(self, per_axis: Sequence[Value]) -> tuple[Value, Value, Value]:
        """One value per axis (z, y, x), such as a shape or a spacing, in the order of the network's axes."""
        first, second, third = (per_axis[axis] for axis in self.axes)
        return first, second, third

    def in_own_order(self, per_axis: Sequence[Value]) -> tuple[Value, Value, Value]:
        """One value per axis of the network's arrays in the order (z, y, x)."""
        z, y, x = (per_axis[self.axes.index(axis)] for axis in range(3))
        return z, y, x

    def shape(self, grid: Grid) -> tuple[int, int, int]:
        return self.in_network_order(grid.shape)

    def spacing_mm(self, grid: Grid) -> tuple[float, float, float]:
        return self.in_network_order(grid.spacing_mm)

    @property
    def _flips(self) -> tuple[Any, ...]:
        return ..., *(slice(None, None, -1 if flipped else None) for flipped in self.flipped)


def _codes_read(reader: Reader, orientation: str) -> str:
    """Axis codes of the array axes i, j, k that a reader makes of a file."""
    if reader not in (*get_args(FileOrderReader), *get_args(ReorientingReader)):
        known = ", ".join((*get_args(FileOrderReader), *get_args(ReorientingReader)))
        raise ValueError(f"The image reader {reader!r} of an nnU-Net is not supported; known are {known}.")
    codes = "RAS" if reader in get_args(ReorientingReader) else orientation
    if sorted(_ANATOMICAL_AXIS.get(code, -1) for code in codes) != [0, 1, 2]:
        raise ValueError(f"Axis codes name each axis of the patient once, such as RAS or LPS, not {codes!r}.")
    return codes


def _check_permutation(name: str, axes: Sequence[int]) -> None:
    if sorted(axes) != [0, 1, 2]:
        raise ValueError(f"{name} is a permutation of 0, 1, 2, not {tuple(axes)}.")


def _transpose_last(voxels: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """Permute the last three axes; those before them stay."""
    leading = voxels.ndim - 3
    return voxels.transpose(*range(leading), *(leading + axis for axis in axes))
