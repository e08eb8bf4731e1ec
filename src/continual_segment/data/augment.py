"""Augmentation: one patch as it might have looked in another patient on another scanner.

The set is nnU-Net's (rotation, scaling, noise, blur, brightness, contrast, low resolution, gamma) with two
differences. Nothing is mirrored by default, since organs have sides; where a dataset allows it, left and
right are exchanged together with the labels of paired organs. And an offset may be added to all values, since
scanners are calibrated differently. Rotated and scaled patches are cut from a larger box of the scan, so
their corners show anatomy instead of an invented border.

In:  a way to read a box of the scan around the patch's centre, and a random generator
Out: image float32 within the limits of its intensity and label map, both of the patch's size; a pure function
     of the generator
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from scipy import ndimage
from torch.nn import functional

Size = tuple[int, int, int]
Range = tuple[float, float]
Read = Callable[[Size], tuple[np.ndarray, np.ndarray]]
"""Size (z, y, x) of a box -> normalised image and labels of that box, all boxes around one centre."""


@dataclass(frozen=True)
class AugmentConfig:
    """How often and how strongly a training patch is changed. Each `..._share` is a probability."""

    rotation_share: float = 0.2
    rotation_in_plane_deg: float = 15.0
    """Largest angle about z, either way."""
    rotation_tilt_deg: float = 10.0
    """Largest angle about y and about x, either way."""
    scaling_share: float = 0.2
    scaling: Range = (0.85, 1.2)
    """How much larger the anatomy becomes."""
    noise_share: float = 0.1
    noise: Range = (0.0, 0.05)
    """Standard deviation of Gaussian noise; 0.05 is 51 HU in the window of +-1024 HU."""
    blur_share: float = 0.2
    blur_voxels: Range = (0.5, 1.0)
    """Standard deviation of a Gaussian blur."""
    brightness_share: float = 0.15
    brightness: Range = (0.75, 1.25)
    """Factor on every value: water (0 HU) stays, all else moves away from it or towards it."""
    offset_share: float = 0.0
    offset: Range = (0.0, 0.1)
    """Added to every value or taken from it; 0.1 is 40 HU in a window of +-400 HU."""
    contrast_share: float = 0.15
    contrast: Range = (0.75, 1.25)
    """Factor on the distance to the patch's mean, within the patch's own range."""
    low_resolution_share: float = 0.25
    low_resolution: Range = (0.5, 1.0)
    """Voxels per axis, as a share, that the patch is reduced to before it is blown up again."""
    gamma_share: float = 0.3
    gamma_inverted_share: float = 0.1
    """As gamma, on the negative of the patch."""
    gamma: Range = (0.7, 1.5)
    """Exponent on the patch's values between its least and its greatest; mean and deviation are kept."""
    mirror_share: float = 0.0
    """Left and right exchanged, and the labels of paired organs with them. Only where both sides of an organ
    are labelled, and in a part of the body that looks alike from both sides: never with liver or heart."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name.endswith("_share") and not 0 <= value <= 1:
                raise ValueError(f"{item.name} is a probability between 0 and 1, not {value}.")
            if isinstance(value, (tuple, list)):
                if len(value) != 2 or not 0 <= value[0] <= value[1]:
                    raise ValueError(f"{item.name} is a range (least, greatest) from 0 upwards, not {value}.")
                object.__setattr__(self, item.name, tuple(value))
        for name in ("scaling", "low_resolution", "gamma"):
            if getattr(self, name)[0] == 0:
                raise ValueError(f"{name} starts above 0, not at {getattr(self, name)[0]}.")
        if self.low_resolution[1] > 1:
            raise ValueError(f"low_resolution is a share up to 1, not {self.low_resolution[1]}.")

    @classmethod
    def none(cls) -> AugmentConfig:
        """Patches as they are."""
        shares: dict[str, Any] = {item.name: 0.0 for item in fields(cls) if item.name.endswith("_share")}
        return cls(**shares)


def augment(
    read: Read,
    size: Size,
    spacing_mm: tuple[float, float, float],
    config: AugmentConfig,
    rng: np.random.Generator,
    limits: Range | None = (-1.0, 1.0),
) -> tuple[np.ndarray, np.ndarray]:
    """Read one patch of this size and change it; its values stay within `limits`."""
    motion = _draw_motion(config, rng)
    if motion is None:
        image, labels = read(size)
    else:
        moved = _in_voxels(motion, spacing_mm)
        image, labels = _move(*read(_source_size(moved, size)), moved, size)
    return change_values(image, config, rng, limits), labels


# Space


def _draw_motion(config: AugmentConfig, rng: np.random.Generator) -> np.ndarray | None:
    """The 3x3 matrix (x, y, z), in millimetres, from a place in the patch to its place in the scan."""
    motion = None
    if rng.random() < config.rotation_share:
        in_plane, tilt = config.rotation_in_plane_deg, config.rotation_tilt_deg
        angles = rng.uniform(-1, 1, 3) * [tilt, tilt, in_plane]
        motion = _rotation(0, angles[0]) @ _rotation(1, angles[1]) @ _rotation(2, angles[2])
    if rng.random() < config.scaling_share:
        # Drawn so that twice as large and half as large are equally likely.
        factor = np.exp(rng.uniform(*np.log(config.scaling)))
        motion = (np.eye(3) if motion is None else motion) / factor
    return motion


def _rotation(axis: int, angle_deg: float) -> np.ndarray:
    cosine, sine = np.cos(np.deg2rad(angle_deg)), np.sin(np.deg2rad(angle_deg))
    first, second = (axis + 1) % 3, (axis + 2) % 3
    rotation = np.eye(3)
    rotation[[first, second], [first, second]] = cosine
    rotation[first, second], rotation[second, first] = -sine, sine
    return rotation


def _in_voxels(motion: np.ndarray, spacing_mm: tuple[float, float, float]) -> np.ndarray:
    """The same motion between voxel offsets: a rotation of millimetres, whatever the voxel's shape."""
    spacing = np.array(spacing_mm[::-1])
    return motion * spacing / spacing[:, None]


def _source_size(motion: np.ndarray, size: Size) -> Size:
    """The box around the same centre that holds every voxel the moved patch looks at."""
    patch = np.array(size[::-1])
    reach = np.abs(motion) @ (patch - 1)  # full extent, between outermost voxel centres
    margin = np.maximum(0, np.ceil((reach - (patch - 1)) / 2)).astype(int)  # whole voxels keep the centre
    x, y, z = (patch + 2 * margin).tolist()
    return z, y, x


def _move(
    image: np.ndarray, labels: np.ndarray, motion: np.ndarray, size: Size
) -> tuple[np.ndarray, np.ndarray]:
    """Look up every voxel of the patch in the larger box: image linear, labels nearest."""
    patch, source = np.array(size[::-1]), np.array(image.shape[::-1])
    to_unit = motion * patch / source[:, None]  # torch counts from -1 to 1 across either box
    theta = torch.from_numpy(np.pad(to_unit, ((0, 0), (0, 1)))).float()[None]
    # affine_grid, bit by bit, in half its time: the places in the patch are the same for all patches
    grid = torch.bmm(_places(size), theta.transpose(1, 2)).view(1, *size, 3)
    return _look_up_linear(image, grid), _look_up_nearest(labels, grid)


@lru_cache(maxsize=2)
def _places(size: Size) -> torch.Tensor:
    """(1, voxel, 4): x, y and z of every voxel of a patch, from -1 to 1 across it, and 1."""
    places = torch.ones(*size, 4)
    for axis, length in enumerate(size):
        middles = torch.linspace(-1, 1, length) * (length - 1) / length
        places[..., 2 - axis] = middles.view([-1 if axis == each else 1 for each in range(3)])
    return places.view(1, -1, 4)


def _look_up_linear(voxels: np.ndarray, grid: torch.Tensor) -> np.ndarray:
    found = functional.grid_sample(
        torch.from_numpy(voxels)[None, None],
        grid,
        mode="bilinear",
        padding_mode="border",
        align_corners=False,
    )
    return found[0, 0].numpy()


def _look_up_nearest(voxels: np.ndarray, grid: torch.Tensor) -> np.ndarray:
    """The voxels that grid_sample finds with mode="nearest", of any type and in half its time."""
    index = torch.zeros(grid.shape[1:4], dtype=torch.int32)
    stride = 1
    for axis, length in enumerate(reversed(voxels.shape)):  # x, y, z
        place = grid[0, ..., axis].add(1).mul_(length).sub_(1).div_(2)
        index.add_(place.clamp_(0, length - 1).round_().to(torch.int32), alpha=stride)
        stride *= length
    return np.ascontiguousarray(voxels).reshape(-1)[index.numpy()]


def mirror(
    image: np.ndarray, labels: np.ndarray, axis: int, other_sides: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The patch of a patient whose left and right, along `axis`, are exchanged.

    `other_sides` has the label of the same organ on the other side for every label.
    """
    return np.flip(image, axis), other_sides[np.flip(labels, axis)]


# Values. Sums are numpy's: torch's depend on the number of threads in their last bit.


def change_values(
    image: np.ndarray,
    config: AugmentConfig,
    rng: np.random.Generator,
    limits: Range | None = (-1.0, 1.0),
) -> np.ndarray:
    """Every change of intensity that the generator draws, in nnU-Net's order; clipped to the limits."""
    original = image
    if rng.random() < config.noise_share:
        deviation = np.float32(rng.uniform(*config.noise))
        image = image + deviation * rng.standard_normal(image.shape, dtype=np.float32)
    if rng.random() < config.blur_share:
        image = ndimage.gaussian_filter(image, rng.uniform(*config.blur_voxels), truncate=3.0)
    if rng.random() < config.brightness_share:
        image = image * np.float32(rng.uniform(*config.brightness))
    if rng.random() < config.contrast_share:
        image = _contrast(image, rng.uniform(*config.contrast))
    if rng.random() < config.low_resolution_share:
        image = _low_resolution(image, rng.uniform(*config.low_resolution))
    if rng.random() < config.gamma_inverted_share:
        image = -_gamma(-image, rng.uniform(*config.gamma))
    if rng.random() < config.gamma_share:
        image = _gamma(image, rng.uniform(*config.gamma))
    # Drawn only where it is used: a preset without it keeps the patches that it has always had.
    if config.offset_share and rng.random() < config.offset_share:
        image = image + np.float32(rng.choice([-1.0, 1.0]) * rng.uniform(*config.offset))
    return image if image is original or limits is None else np.clip(image, *limits)


def _contrast(image: np.ndarray, factor: float) -> np.ndarray:
    mean = image.mean()
    return np.clip((image - mean) * np.float32(factor) + mean, image.min(), image.max())


def _low_resolution(image: np.ndarray, share: float) -> np.ndarray:
    """Pick fewer voxels, then fill in linearly, as a scan with thicker slices and larger pixels."""
    coarse_size = [max(1, round(length * share)) for length in image.shape]
    coarse = functional.interpolate(
        torch.from_numpy(image)[None, None], size=coarse_size, mode="nearest-exact"
    )
    fine = functional.interpolate(coarse, size=image.shape, mode="trilinear", align_corners=False)
    return fine[0, 0].numpy()


def _gamma(image: np.ndarray, exponent: float) -> np.ndarray:
    least, mean, deviation = image.min(), image.mean(), image.std()
    extent = image.max() - least
    if extent < 1e-6:
        return image  # a patch of air alone
    bent = ((image - least) / extent) ** np.float32(exponent)
    return (bent - bent.mean()) * (deviation / max(bent.std(), 1e-6)) + mean
