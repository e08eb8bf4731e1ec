"""Arrays and arguments on which nnunet_parity.py compares our functions with stock nnU-Net's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

from continual_segment.data.nnunet_preparation import resampled_shape

READERS = ("SimpleITKIO", "NibabelIO", "NibabelIOWithReorient", "SimpleITKIOWithReorient")
CODES = ("RAS", "LPS", "LAS", "PIR", "ASL", "SLP", "IRA", "RIP")
TRANSPOSES = ((0, 1, 2), (1, 0, 2), (2, 0, 1), (1, 2, 0))
CT = {"percentile_00_5": -1024.0, "percentile_99_5": 276.0, "mean": -370.0004, "std": 436.5999}
"""Of the CT in a training set, as plans have it: for a network of many organs."""
Triple = tuple[Any, Any, Any]


@dataclass(frozen=True, eq=False)
class Case:
    """One call of a function that both sides have."""

    function: str
    arguments: dict[str, Any]
    voxels: np.ndarray | None = None


def all_cases(rng: np.random.Generator, count: int, folder: Path, large: bool) -> Iterator[Case]:
    """`count` random ones per function, many more where they are cheap."""
    yield from read_cases(rng, folder)
    yield from crop_cases(rng, count)
    yield from shape_cases(rng, 20 * count)
    yield from resample_cases(rng, count, large)
    yield from logit_cases(rng, count)
    yield from pad_cases(rng, count)
    yield from window_cases(rng, 20 * count)
    yield from weight_cases(rng, count)
    yield from preprocess_cases(rng, folder)


def read_cases(rng: np.random.Generator, folder: Path) -> Iterator[Case]:
    voxels = rng.integers(-1000, 1000, (7, 10, 13)).astype(np.int16)
    for number, codes in enumerate(CODES):
        file = folder / f"scan_{codes}.nii.gz"
        write_oriented(file, voxels, codes, (0.7, 1.9, 3.3))
        transpose = TRANSPOSES[number % len(TRANSPOSES)]
        for reader in READERS:
            yield Case("read", {"file": str(file), "reader": reader, "transpose_forward": transpose})


def crop_cases(rng: np.random.Generator, count: int) -> Iterator[Case]:
    yield Case("crop", {}, np.zeros((4, 5, 6), np.float32))
    for _ in range(count):
        voxels = scan_like(rng, shape_of(rng))
        voxels[rng.random(voxels.shape) < 0.6] = 0  # many holes
        for axis, length in enumerate(voxels.shape):
            np.moveaxis(voxels, axis, 0)[: rng.integers(length // 2 + 1)] = 0
        yield Case("crop", {}, voxels)


def shape_cases(rng: np.random.Generator, count: int) -> Iterator[Case]:
    halves = ((101, 103, 7), (0.5, 0.5, 3.0), (1.0, 1.0, 2.0)), ((9, 9, 9), (1.5, 1.5, 1.5), (1.0, 1.0, 3.0))
    drawn = ((shape_of(rng, 5, 600), spacing_of(rng), spacing_of(rng)) for _ in range(count))
    for shape, spacing, new in (*halves, *drawn):
        yield Case("shape", {"shape": shape, "spacing": spacing, "new_spacing": new})


def resample_cases(rng: np.random.Generator, count: int, large: bool) -> Iterator[Case]:
    chosen = [((1, 12, 9), (1.0, 1.0, 1.0), (0.25, 0.8, 1.1)), ((90, 6, 5), (1.0, 1.0, 1.0), (0.4, 1.0, 1.0))]
    if large:
        chosen.append(((160, 512, 512), (2.5, 0.8, 0.8), (1.5, 1.5, 1.5)))
        chosen.append(((160, 512, 512), (5.0, 0.8, 0.8), (3.0, 1.5, 1.5)))
    drawn = [(shape_of(rng), spacing_of(rng), spacing_of(rng)) for _ in range(count)]
    for shape, spacing, new in (*chosen, *drawn):
        yield resampling("resample", scan_like(rng, shape), spacing, new)


def logit_cases(rng: np.random.Generator, count: int) -> Iterator[Case]:
    for _ in range(count):
        logits = rng.normal(0, 4, (4, *shape_of(rng))).astype(np.float32)
        yield resampling("logits", logits, spacing_of(rng), spacing_of(rng))


def resampling(function: str, voxels: np.ndarray, spacing: Triple, new: Triple) -> Case:
    shape = resampled_shape(voxels.shape[-3:], spacing, new)
    return Case(function, {"shape": shape, "spacing": spacing, "new_spacing": new}, voxels)


def pad_cases(rng: np.random.Generator, count: int) -> Iterator[Case]:
    for _ in range(count):
        yield Case("pad", {"window": shape_of(rng, 3, 20)}, scan_like(rng, shape_of(rng, 3, 20)))


def window_cases(rng: np.random.Generator, count: int) -> Iterator[Case]:
    for _ in range(count):
        window, step = int(rng.integers(8, 200)), float(rng.choice([0.5, 0.8, 0.3, 1.0]))
        yield Case("windows", {"length": window + int(rng.integers(500)), "window": window, "step": step})


def weight_cases(rng: np.random.Generator, count: int) -> Iterator[Case]:
    usual = (128, 128, 128), (112, 112, 128), (40, 48, 48), (20, 320, 256), (7, 33, 12), (1, 64, 64)
    for window in (*usual, *(shape_of(rng, 1, 60) for _ in range(count))):
        yield Case("weights", {"window": window})


def preprocess_cases(rng: np.random.Generator, folder: Path) -> Iterator[Case]:
    """From a file to the network's input: orientation, crop, normalisation and resampling at once."""
    for number, codes in enumerate(CODES):
        file, voxels = (
            folder / f"whole_{codes}.nii.gz",
            rng.integers(-900, 900, (21, 34, 27)).astype(np.int16),
        )
        voxels[:3], voxels[:, -5:], voxels[4:9, 6:9, 4:9] = 0, 0, 0
        write_oriented(file, voxels, codes, (1.1, 0.8, 4.0 if number % 2 else 1.6))
        plans = plans_of(READERS[number % 4], TRANSPOSES[number // 2], (1.5, 1.3, 1.2))
        yield Case("preprocess", {"file": str(file), "plans": plans})


def shape_of(rng: np.random.Generator, low: int = 3, high: int = 45) -> Triple:
    z, y, x = rng.integers(low, high, 3).tolist()
    return z, y, x


def spacing_of(rng: np.random.Generator) -> Triple:
    """Isotropic, slightly anisotropic, or with a coarse axis."""
    spacing = rng.uniform(0.6, 1.8, 3) if rng.random() < 0.8 else np.full(3, 1.25)
    if rng.random() < 0.5:
        spacing[rng.integers(3)] = rng.uniform(3.0, 9.0)
    z, y, x = spacing.round(3).tolist()
    return z, y, x


def scan_like(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Normalised values, many of them at the ends of the range, as after clipping."""
    return np.clip(rng.normal(0, 1.5, shape), -1.4, 2.1).astype(np.float32)


def write_oriented(file: Path, voxels: np.ndarray, codes: str, spacing_mm: Triple) -> None:
    """A NIfTI file whose axes i, j, k run to these sides of the patient."""
    affine = np.diag([0.0, 0.0, 0.0, 1.0])
    for axis, (code, size) in enumerate(zip(codes, spacing_mm, strict=True)):
        affine["LRPAIS".index(code) // 2, axis] = size if code in "RAS" else -size
    affine[:3, 3] = (-31, 17, 5)
    nibabel.save(nibabel.Nifti1Image(voxels, affine), file)


def plans_of(reader: str, transpose_forward: Triple, spacing_mm: Triple) -> dict[str, Any]:
    """What of an nnU-Net's plans decides how a scan is prepared."""
    name = "resample_data_or_seg_to_shape"
    orders = {"data": 3, "seg": 1, "probabilities": 1}
    options = {
        f"resampling_fn_{kind}_kwargs": {
            "is_seg": kind == "seg",
            "order": order,
            "order_z": 0,
            "force_separate_z": None,
        }
        for kind, order in orders.items()
    }
    configuration = {
        "preprocessor_name": "DefaultPreprocessor",
        "architecture": {},  # of the new format; the network is not built
        "spacing": spacing_mm,
        "normalization_schemes": ["CTNormalization"],
        "use_mask_for_norm": [False],
        **{f"resampling_fn_{kind}": name for kind in orders},
        **options,
    }
    return {
        "image_reader_writer": reader,
        "transpose_forward": transpose_forward,
        "transpose_backward": np.argsort(transpose_forward).tolist(),
        "label_manager": "LabelManager",
        "foreground_intensity_properties_per_channel": {"0": CT},
        "configurations": {"3d_fullres": configuration},
    }
