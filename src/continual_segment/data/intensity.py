"""Intensity: how Hounsfield units become the numbers a network reads.

Every kind of normalisation is the same three operations: clip, subtract, divide. Kinds differ in where the
numbers come from. Those of `window` and `ct-percentiles` are settings; those of `z-score` and `rescale-01`
are statistics of each scan. `fitted` fills them in: `prepare` stores them with the case, from where training
takes them, and segmentation measures them on the resampled scan, some slices at a time.

In:  Hounsfield units
Out: float32
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

import numpy as np

from continual_segment.volume import SliceSource

Kind = Literal["window", "ct-percentiles", "z-score", "rescale-01", "none"]
Padding = Literal["air", "zero"]
Range = tuple[float, float]

OWNERS = {"mean": "ct-percentiles", "std": "ct-percentiles", "mask_above_hu": "z-score"}
"""Settings of one kind alone."""
AIR_HU = -1024.0
INT16 = (-32768.0, 32767.0)  # what a prepared scan can hold
SMALLEST_DIVISOR = 1e-8  # as in nnU-Net: a scan of one value becomes 0
SLICES_AT_ONCE = 8  # statistics need a copy of them in double precision


@dataclass(frozen=True)
class FittedIntensity:
    """The normalisation of one scan."""

    subtract: float = 0.0
    divide: float = 1.0
    clip_hu: Range | None = None
    """Values outside are clipped first."""
    mask_above_hu: float | None = None
    """Voxels at or below become 0."""
    padding: Padding = "air"

    def normalise(self, hu: np.ndarray) -> np.ndarray:
        """Network input of some voxels; float32."""
        clipped = hu if self.clip_hu is None else np.clip(hu, *self.clip_hu)
        values = clipped.astype(np.float32, copy=False)
        found = (values - np.float32(self.subtract)) / np.float32(self.divide)
        if self.mask_above_hu is not None:
            found[hu <= self.mask_above_hu] = 0
        return found

    def to_hu(self, values: np.ndarray) -> np.ndarray:
        """Hounsfield units of network input, apart from what clipping and masking removed; float32."""
        return values.astype(np.float32) * np.float32(self.divide) + np.float32(self.subtract)

    @property
    def padding_value(self) -> float:
        """Network input where there is no scan."""
        return 0.0 if self.padding == "zero" else float(self.normalise(np.array([AIR_HU]))[0])

    @property
    def limits(self) -> Range | None:
        """Least and greatest network input; None where clipping sets none."""
        if self.clip_hu is None:
            return None
        low, high = ((value - self.subtract) / self.divide for value in self.clip_hu)
        return low, high


ON_INPUT = FittedIntensity(padding="zero")
"""Of values that are network input already."""


@dataclass(frozen=True)
class Intensity:
    """A kind of normalisation and its settings; stored with prepared datasets and models."""

    kind: Kind = "window"
    """window: `clip_hu` becomes [-1, 1]; ct-percentiles: nnU-Net's CTNormalization; z-score: every scan has
    mean 0 and standard deviation 1; rescale-01: every scan reaches from 0 to 1; none: Hounsfield units."""
    clip_hu: Range | None = None
    """Values outside are clipped first. Required by ct-percentiles: the percentiles 0.5 and 99.5 of the
    foreground. Left out, window clips to (-1024, 1024) and the other kinds do not clip."""
    mean: float | None = None
    """Of the foreground of the training scans; for ct-percentiles alone."""
    std: float | None = None
    """As `mean`."""
    mask_above_hu: float | None = None
    """For z-score alone: statistics are those of the voxels above, and all others become 0."""
    padding: Padding = "air"
    """Around a scan that is smaller than a window: normalised air, or 0 as in nnU-Net."""

    def __post_init__(self) -> None:
        if self.kind == "window" and self.clip_hu is None:
            object.__setattr__(self, "clip_hu", (AIR_HU, -AIR_HU))
        if self.clip_hu is not None:
            object.__setattr__(self, "clip_hu", tuple(map(float, self.clip_hu)))
        self._check_choices()
        self._check_numbers()

    def _check_choices(self) -> None:
        for name, choices in (("kind", get_args(Kind)), ("padding", get_args(Padding))):
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name} is one of {', '.join(choices)}, not {value!r}.")
        for name, owner in OWNERS.items():
            if getattr(self, name) is not None and self.kind != owner:
                raise ValueError(f"{name} is a setting of {owner}, not of {self.kind}.")

    def _check_numbers(self) -> None:
        clip = self.clip_hu
        if clip is not None and (len(clip) != 2 or not INT16[0] <= clip[0] < clip[1] <= INT16[1]):
            raise ValueError(f"clip_hu is (least, greatest) in Hounsfield units, not {clip}.")
        if self.kind == "ct-percentiles":
            if clip is None or self.mean is None or self.std is None:
                raise ValueError("ct-percentiles needs clip_hu, mean and std.")
            if not (math.isfinite(self.mean) and 0 < self.std < math.inf):
                raise ValueError(f"mean and std are numbers, std above 0, not {self.mean} and {self.std}.")

    @classmethod
    def window(cls, low: float, high: float) -> Intensity:
        """Clip to a window and map it to [-1, 1]."""
        return cls("window", (low, high))

    @property
    def per_scan(self) -> bool:
        """Whether `fitted` needs the scan."""
        return self.kind in ("z-score", "rescale-01")

    @property
    def stored_hu(self) -> tuple[int, int]:
        """Least and greatest whole Hounsfield unit that a prepared scan must keep."""
        low, high = self.clip_hu or INT16
        if self.mask_above_hu is not None:
            low = max(INT16[0], min(low, self.mask_above_hu))  # what is masked stays below what is not
        return math.floor(low), math.ceil(high)

    def fitted(self, scan: SliceSource | None = None) -> FittedIntensity:
        """The normalisation of one scan, which is needed only where the kind is `per_scan`."""
        subtract, divide = self._offset_and_divisor(scan)
        return FittedIntensity(subtract, divide, self.clip_hu, self.mask_above_hu, self.padding)

    def _offset_and_divisor(self, scan: SliceSource | None) -> tuple[float, float]:
        if self.kind == "none":
            return 0.0, 1.0
        if self.kind == "ct-percentiles":
            assert self.mean is not None
            assert self.std is not None
            return self.mean, self.std
        if self.kind == "window":
            assert self.clip_hu is not None
            low, high = self.clip_hu
            return (low + high) / 2, (high - low) / 2
        assert scan is not None, f"{self.kind} needs the scan"
        return self._z_score(scan) if self.kind == "z-score" else self._rescale(scan)

    def _z_score(self, scan: SliceSource) -> tuple[float, float]:
        count, total, squares = 0, 0.0, 0.0
        for values in self._slabs(scan):
            count, total, squares = count + len(values), total + values.sum(), squares + values @ values
        mean = total / max(1, count)
        variance = max(0.0, squares / max(1, count) - mean**2)
        return float(mean), max(math.sqrt(variance), SMALLEST_DIVISOR)

    def _rescale(self, scan: SliceSource) -> tuple[float, float]:
        ends = [(values.min(), values.max()) for values in self._slabs(scan)]
        least, greatest = min(low for low, _ in ends), max(high for _, high in ends)
        return float(least), max(float(greatest - least), SMALLEST_DIVISOR)

    def _slabs(self, scan: SliceSource) -> Iterator[np.ndarray]:
        """The voxels that statistics are taken of, clipped, some slices at a time; float64."""
        for first in range(0, scan.shape[0], SLICES_AT_ONCE):
            hu = scan[first : first + SLICES_AT_ONCE]
            kept = hu.ravel() if self.mask_above_hu is None else hu[hu > self.mask_above_hu]
            values = kept.astype(np.float64)  # whole numbers: their sums are exact in any order
            yield values if self.clip_hu is None else values.clip(*self.clip_hu)

    def described(self) -> dict[str, Any]:
        """The kind and the settings that differ from the usual ones, for JSON."""
        usual = {item.name: item.default for item in fields(self)} | {"kind": None}
        return {name: value for name, value in asdict(self).items() if value != usual[name]}
