"""PrepareConfig: what every scan is brought to before a network sees it.

There are two ways. Ours resamples Hounsfield units to one voxel size in RAS axes and normalises what a patch
or window reads. `nnunet` prepares as stock nnU-Net does (data/nnunet_preparation.py has its steps), so that
an imported network gets the input it was trained on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from continual_segment.data.intensity import Intensity
from continual_segment.data.network_frame import NetworkFrame, Reader

LEAST_SPACING_MM = 0.05
"""Finer voxels than any scanner has would need any amount of memory."""
FORMATS = (2, 3)
"""Of prepared datasets that can be read; 3 has settings that 2, spacing and window alone, cannot express."""


@dataclass(frozen=True)
class NnunetPreparation:
    """Settings of stock nnU-Net's preprocessing, as `plans.json` names them."""

    image_reader_writer: Reader = "SimpleITKIO"
    """Decides the axes of arrays: those of the file, or RAS."""
    transpose_forward: tuple[int, int, int] = (0, 1, 2)
    """Permutation of the reader's axes."""
    separate_z: bool | None = None
    """force_separate_z of scans. None: a coarse axis is resampled separately if voxels are anisotropic."""
    separate_z_of_logits: bool | None = None
    """The same for the way back."""
    use_mask_for_norm: bool = False
    """Whether z-score normalises the voxels that are not 0 alone."""
    orientation: str = ""
    """Axis codes of the files that the network was trained on, such as LPS: every scan is turned to them.
    Empty: the axes of the file, as stock nnU-Net has them."""

    def __post_init__(self) -> None:
        self.frame("RAS")  # raises for an unknown reader or permutation
        object.__setattr__(self, "transpose_forward", tuple(self.transpose_forward))

    def frame(self, orientation: str) -> NetworkFrame:
        """The network's axes for a file with these axis codes."""
        known = self.orientation or orientation
        return NetworkFrame.of_reader(self.image_reader_writer, known, self.transpose_forward)

    def described(self) -> dict[str, Any]:
        """The settings, without an orientation where there is none: fingerprints stay as they were."""
        return {name: value for name, value in asdict(self).items() if name != "orientation" or value}


@dataclass(frozen=True)
class PrepareConfig:
    """What every scan is brought to before a network sees it."""

    spacing_mm: tuple[float, float, float]
    """Voxel size (z, y, x)."""
    intensity: Intensity = field(default_factory=Intensity)
    """How Hounsfield units become network input."""
    nnunet: NnunetPreparation | None = None
    """Prepare scans as stock nnU-Net does, for an imported encoder; voxel sizes then are in the order of the
    network's axes."""
    window_hu: tuple[float, float] | None = None
    """Short for Intensity.window(least, greatest), and wins over another window; once constructed, None."""

    def __post_init__(self) -> None:
        spacing = tuple(map(float, self.spacing_mm))
        if len(spacing) != 3 or not all(LEAST_SPACING_MM <= size < 100 for size in spacing):
            raise ValueError(
                f"spacing_mm is three voxel sizes (z, y, x) in millimetres, not {self.spacing_mm}."
            )
        object.__setattr__(self, "spacing_mm", spacing)
        if self.window_hu is not None:
            object.__setattr__(self, "intensity", self._window_intensity(self.window_hu))
            object.__setattr__(self, "window_hu", None)

    def _window_intensity(self, window_hu: tuple[float, float]) -> Intensity:
        if self.intensity.kind != "window":
            raise ValueError(f"window_hu is given beside an intensity of kind {self.intensity.kind}.")
        return replace(self.intensity, clip_hu=window_hu)

    @property
    def is_window(self) -> bool:
        """Whether the form of version 0.1, spacing and window, expresses this config."""
        return self.nnunet is None and self.intensity == Intensity("window", self.intensity.clip_hu)

    def described(self) -> dict[str, Any]:
        """The config as dataset.json, model.json and fingerprints have it.

        What version 0.1 could express keeps its form, and so every model its fingerprint.
        """
        if self.is_window:
            return {"spacing_mm": self.spacing_mm, "window_hu": self.intensity.clip_hu}
        described = {"spacing_mm": self.spacing_mm, "intensity": self.intensity.described()}
        return described | ({"nnunet": self.nnunet.described()} if self.nnunet else {})

    @property
    def format(self) -> int:
        """Of a dataset that is prepared with this config."""
        return FORMATS[0] if self.is_window else FORMATS[1]
