"""Augmented patches per core and second: ours against nnU-Net's batchgeneratorsv2, with the same settings.

    python benchmarks/feeding.py --venv FOLDER       # of benchmarks/nnunet_venv.py, made on first use

Both sides run in one process on one thread, in turns, and cut patches of 64x128x128 out of the same scan in
memory, with the same labels. Both have the same transforms, in the same order, with the same probabilities
and ranges, which are those of `AugmentConfig`: rotation, scaling, noise, blur, brightness, contrast, low
resolution, gamma of the negative, gamma; no mirroring. batchgeneratorsv2 is as in nnU-Net's trainer but for
those settings: it cuts the larger patch that nnU-Net cuts, of a scan that is already float32 (ours is int16
and is normalised here). Labels are looked up by nearest neighbour on both sides; a second row has nnU-Net's
own way, which interpolates every label. A third row is nnU-Net's pipeline as it is, with its own, stronger
settings and mirroring. One difference is left: our blur ends at 3 standard deviations, theirs at 6.

Seconds are CPU seconds of the process, so a busy machine changes them little.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

PATCH = (64, 128, 128)
SCAN = (160, 320, 320)
ORGANS = 30
WINDOW_HU = 1024.0
TRANSFORMS = (
    "rotation",
    "scaling",
    "noise",
    "blur",
    "brightness",
    "contrast",
    "low_resolution",
    "gamma_inverted",
    "gamma",
)
Patch = tuple[np.ndarray, np.ndarray]
Make = Callable[[np.random.Generator], Any]


def made_scan() -> Patch:
    """A smooth int16 scan with noise, and labels in blocks."""
    from scipy import ndimage

    rng = np.random.default_rng(0)
    coarse = rng.normal(0, 400, [length // 16 for length in SCAN])
    scan = ndimage.zoom(coarse, 16, order=1) + rng.normal(0, 20, SCAN)
    blocks = rng.integers(0, ORGANS + 1, [length // 32 for length in SCAN])
    labels = blocks.repeat(32, 0).repeat(32, 1).repeat(32, 2)
    return np.clip(scan, -1024, 3071).astype(np.int16), labels.astype(np.uint8)


def centre(rng: np.random.Generator, margin: np.ndarray) -> np.ndarray:
    """Far enough from the edges that no side has to pad."""
    return rng.integers(margin, np.array(SCAN) - margin + 1)


def box(voxels: np.ndarray, middle: np.ndarray, size: Any) -> np.ndarray:
    start = middle - np.array(size) // 2
    return voxels[tuple(slice(at, at + length) for at, length in zip(start, size, strict=True))]


def ours(scan: Patch, margin: np.ndarray, config: Any) -> Make:
    """As `Patches` cuts, normalises and augments."""
    import torch

    from continual_segment.data.augment import augment

    def make(rng: np.random.Generator) -> Any:
        middle = centre(rng, margin)

        def read(size: tuple[int, int, int]) -> Patch:
            image = box(scan[0], middle, size).astype(np.float32) / np.float32(WINDOW_HU)
            return np.clip(image, -1.0, 1.0), box(scan[1], middle, size)

        image, labels = augment(read, PATCH, (1.0, 1.0, 1.0), config, rng)
        return torch.from_numpy(image[None]), torch.from_numpy(labels.astype(np.int64))

    return make


def theirs(scan: Patch, margin: np.ndarray, transforms: Any, cut: Any) -> Make:
    """As nnU-Net's loader cuts, and its transforms."""
    import torch

    image = np.clip(scan[0].astype(np.float32) / np.float32(WINDOW_HU), -1.0, 1.0)
    labels = scan[1].astype(np.int16)

    def make(rng: np.random.Generator) -> Any:
        middle = centre(rng, margin)
        np.random.seed(rng.integers(2**31))  # what it draws from
        torch.manual_seed(int(rng.integers(2**31)))
        image_box, labels_box = (np.ascontiguousarray(box(each, middle, cut)) for each in (image, labels))
        with torch.no_grad():
            return transforms(
                image=torch.from_numpy(image_box)[None], segmentation=torch.from_numpy(labels_box)[None]
            )

    return make


def same_transforms(config: Any, labels: str) -> Any:
    """batchgeneratorsv2 with our settings; `labels` is how it looks them up."""
    from batchgeneratorsv2.transforms.intensity.brightness import MultiplicativeBrightnessTransform
    from batchgeneratorsv2.transforms.intensity.contrast import ContrastTransform
    from batchgeneratorsv2.transforms.intensity.gamma import GammaTransform
    from batchgeneratorsv2.transforms.intensity.gaussian_noise import GaussianNoiseTransform
    from batchgeneratorsv2.transforms.noise.gaussian_blur import GaussianBlurTransform
    from batchgeneratorsv2.transforms.spatial.low_resolution import SimulateLowResolutionTransform
    from batchgeneratorsv2.transforms.spatial.spatial import SpatialTransform
    from batchgeneratorsv2.transforms.utils.compose import ComposeTransforms
    from batchgeneratorsv2.transforms.utils.random import RandomTransform

    def angle(image: Any, dim: int) -> float:
        largest = config.rotation_in_plane_deg if dim == 0 else config.rotation_tilt_deg
        return float(np.random.uniform(-1, 1) * np.deg2rad(largest))

    def gamma(inverted: bool) -> Any:
        return GammaTransform(config.gamma, float(inverted), False, p_per_channel=1, p_retain_stats=1)

    low = SimulateLowResolutionTransform(
        config.low_resolution, False, True, ignore_axes=None, p_per_channel=1
    )
    blur = GaussianBlurTransform(config.blur_voxels, False, True, p_per_channel=1, benchmark=True)
    changes = [
        (GaussianNoiseTransform(config.noise, 1, True), config.noise_share),
        (blur, config.blur_share),
        (MultiplicativeBrightnessTransform(config.brightness, False, 1), config.brightness_share),
        (ContrastTransform(config.contrast, True, False, 1), config.contrast_share),
        (low, config.low_resolution_share),
        (gamma(True), config.gamma_inverted_share),
        (gamma(False), config.gamma_share),
    ]
    space = SpatialTransform(
        PATCH, 0, random_crop=False, p_rotation=config.rotation_share, rotation=angle,
        p_scaling=config.scaling_share, scaling=(1 / config.scaling[1], 1 / config.scaling[0]),
        p_synchronize_scaling_across_axes=1, mode_seg=labels, border_mode_seg="border",
        padding_mode_image="border",
    )  # fmt: skip
    chosen = [RandomTransform(each, apply_probability=share) for each, share in changes]
    return ComposeTransforms([space, *chosen])


def stock_transforms() -> Any:
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    limit = float(np.deg2rad(30))
    return nnUNetTrainer.get_training_transforms(PATCH, (-limit, limit), None, (0, 1, 2), False)


def cut_size(config: Any) -> tuple[int, ...]:
    """The patch that nnU-Net cuts so that a rotated and scaled one fits in."""
    from nnunetv2.training.data_augmentation.compute_initial_patch_size import get_patch_size

    turns = np.deg2rad([config.rotation_in_plane_deg, config.rotation_tilt_deg, config.rotation_tilt_deg])
    return tuple(get_patch_size(PATCH, *turns, config.scaling).tolist())


def seconds_each(make: Make, patches: int, seed: int) -> float:
    """CPU seconds for a patch."""
    rng = np.random.default_rng(seed)
    started = time.process_time()
    for _ in range(patches):
        make(rng)
    return (time.process_time() - started) / patches


def measure(makes: dict[str, Make], patches: int, rounds: int) -> dict[str, list[float]]:
    """Seconds a patch, round after round in turns; the same seed draws other patches on the two sides."""
    for make in makes.values():
        seconds_each(make, 2, seed=0)
    found: dict[str, list[float]] = {name: [] for name in makes}
    for number in range(rounds):
        for name, make in makes.items():
            found[name].append(seconds_each(make, patches, seed=number + 1))
    return found


def alone(name: str) -> Any:
    """One transform, always."""
    from continual_segment.data.augment import AugmentConfig

    return replace(AugmentConfig.none(), **{f"{name}_share": 1.0})


def compare(patches: int, rounds: int) -> dict[str, Any]:
    """All rows; runs in nnU-Net's environment."""
    import torch

    torch.set_num_threads(1)
    from continual_segment.data.augment import AugmentConfig

    config, scan = AugmentConfig(), made_scan()
    cut = cut_size(config)
    stock_cut = stock_cut_size()
    margin = np.minimum(np.maximum(stock_cut, cut) // 2 + 1, np.array(SCAN) // 2)
    makes = {
        "ours": ours(scan, margin, config),
        "same": theirs(scan, margin, same_transforms(config, "nearest"), cut),
        "same, labels interpolated": theirs(scan, margin, same_transforms(config, "bilinear"), cut),
        "as in nnU-Net": theirs(scan, margin, stock_transforms(), stock_cut),
    }
    found = {"all": measure(makes, patches, rounds)}
    for name in TRANSFORMS:
        single = alone(name)
        pair = {
            "ours": ours(scan, margin, single),
            "same": theirs(scan, margin, same_transforms(single, "nearest"), cut),
        }
        found[name] = measure(pair, max(2, patches // 10), rounds)
    return {"seconds": found, "config": asdict(config), "cut": cut, "versions": versions()}


def stock_cut_size() -> tuple[int, ...]:
    """As nnU-Net's trainer has it."""
    from nnunetv2.training.data_augmentation.compute_initial_patch_size import get_patch_size

    return tuple(get_patch_size(PATCH, *[np.deg2rad(30)] * 3, (0.85, 1.25)).tolist())


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "numpy", "scipy", "nnunetv2", "batchgeneratorsv2")}


def table(found: dict[str, Any]) -> str:
    """Patches a second and ratios, with the least and the greatest of the rounds."""
    every = found["seconds"]["all"]
    lines = [f"{'':28} {'patches per core and second':>28}   {'ours is faster by':>18}"]
    for name, seconds in every.items():
        rates = sorted(1 / each for each in seconds)
        speed = f"{median(rates):6.2f} ({rates[0]:.2f} to {rates[-1]:.2f})"
        ratios = sorted(other / own for other, own in zip(seconds, every["ours"], strict=True))
        faster = f"{median(ratios):5.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        lines.append(f"{name:28} {speed:>28}   {faster:>18}")
    lines.append(f"\n{'each transform alone, always':28} {'ours, ms':>10} {'same, ms':>10} {'ratio':>8}")
    for name in TRANSFORMS:
        own, other = (1000 * median(found["seconds"][name][side]) for side in ("ours", "same"))
        lines.append(f"{name:28} {own:10.1f} {other:10.1f} {other / own:8.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--venv", type=Path, default=Path("runs/nnunet/venv"), help="nnU-Net's environment")
    parser.add_argument("--patches", type=int, default=60, help="a round and side (default: 60)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.inside:
        print(json.dumps(compare(args.patches, args.rounds)))
        return
    from nnunet_venv import nnunet_python

    here = Path(__file__).resolve()
    environment = os.environ | {"PYTHONPATH": str(here.parents[1] / "src"), "OMP_NUM_THREADS": "1"}
    command = [nnunet_python(args.venv), here, "--inside", "--patches", args.patches, "--rounds", args.rounds]
    done = subprocess.run([*map(str, command)], env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    print(" ".join(["python", *sys.argv]), "\n", found["versions"], "\n", table(found), sep="")


if __name__ == "__main__":
    main()
