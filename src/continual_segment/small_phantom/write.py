"""Write phantom datasets in nnU-Net's raw layout, through the writers every scan takes.

Four datasets are learned one after the other, as in the paper: a broad one, one of the chest that shares
organs with it, one of head and neck that shares none, and one organ again in diseased patients.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from continual_segment.errors import ConfigError, DatasetError
from continual_segment.files import write_labels, write_scan
from continual_segment.files.atomic import write_json
from continual_segment.processes import for_each
from continual_segment.small_phantom.anatomy import BODY_MM, Patient, paint
from continual_segment.small_phantom.scanner import scan
from continual_segment.volume import Grid, LabelMap, Volume

Range = tuple[float, float]


@dataclass(frozen=True)
class PhantomDataset:
    """What one dataset shows and labels."""

    number: int
    organs: tuple[str, ...]
    views_mm: tuple[tuple[Range, Range], ...]
    """Fields of view, one drawn per case: the heights of the body between which it starts, and ends."""
    noise_hu: float = 15.0
    tumour: bool = False


DATASETS = {
    "totalseg": PhantomDataset(
        1,
        (
            "spleen", "kidney_right", "kidney_left", "liver", "stomach", "aorta", "lung_upper_lobe_left",
            "lung_lower_lobe_left", "lung_upper_lobe_right", "lung_lower_lobe_right", "esophagus", "trachea",
            "brain", "hip_left", "hip_right", "urinary_bladder",
        ),
        (
            ((-250, -245), (245, 250)),  # whole body
            ((-170, -120), (120, 150)),  # chest and abdomen
            ((-250, -245), (-60, -20)),  # pelvis
            ((50, 80), (245, 250)),  # head and neck
        ),
    ),
    "chest": PhantomDataset(
        2,
        ("esophagus", "trachea", "sternum", "superior_vena_cava", "thyroid_left", "thyroid_right"),
        (((-110, -90), (140, 160)),),
        noise_hu=20.0,
    ),
    "headneck": PhantomDataset(
        3,
        ("eye_left", "eye_right", "parotid_left", "parotid_right", "spinal_cord"),
        (((60, 80), (240, 250)),),
    ),
    "esophagus": PhantomDataset(4, ("esophagus",), (((-100, -80), (130, 150)),), noise_hu=20.0, tumour=True),
}  # fmt: skip


def write_phantom(
    folder: Path,
    dataset: str,
    cases: int,
    seed: int = 0,
    spacing_mm: tuple[float, float, float] = (4.0, 4.0, 4.0),
    workers: int | None = None,
) -> Path:
    """Write `folder`/DatasetNNN_Name; the same seed gives the same bytes. Return that folder."""
    if dataset not in DATASETS:
        raise ConfigError(f"The small phantom has no dataset '{dataset}'; it has {', '.join(DATASETS)}.")
    described = DATASETS[dataset]
    root = dataset_folder(folder, dataset)
    for name in ("imagesTr", "labelsTr"):
        (root / name).mkdir(parents=True, exist_ok=True)
    jobs: dict[str, tuple[int]] = {f"phantom_{number:04d}": (number,) for number in range(cases)}
    shared = (root, described, seed, spacing_mm)
    outcome = for_each(write_case, jobs, shared, workers or 1, f"phantom {dataset}")
    if outcome.failures:
        raise DatasetError("\n".join(f"{name}: {why}" for name, why in outcome.failures.items()))
    labels = {"background": 0} | {organ: i for i, organ in enumerate(described.organs, start=1)}
    summary = {"channel_names": {"0": "CT"}, "labels": labels, "numTraining": cases, "file_ending": ".nii.gz"}
    write_json(root / "dataset.json", summary)
    return root


def dataset_folder(folder: Path, dataset: str) -> Path:
    """Where in `folder` a dataset lies."""
    return folder / f"Dataset{900 + DATASETS[dataset].number}_{dataset}"


def write_case(
    number: int, root: Path, dataset: PhantomDataset, seed: int, spacing_mm: tuple[float, float, float]
) -> None:
    case_seed = int(np.random.SeedSequence((seed, dataset.number, number)).generate_state(1)[0])
    rng = np.random.default_rng(case_seed)
    start, end = dataset.views_mm[rng.integers(len(dataset.views_mm))]
    low, high = rng.uniform(*start), rng.uniform(*end)
    grid = field_of_view(low, high, spacing_mm)
    painted, structures = paint(Patient.draw(case_seed, dataset.tumour), *body_points(grid))
    name = f"phantom_{number:04d}"
    hu = scan(painted, structures, case_seed, dataset.noise_hu)
    write_scan(root / "imagesTr" / f"{name}_0000.nii.gz", Volume(hu, grid))
    ids = {organ: i for i, organ in enumerate(dataset.organs, start=1)}
    # a tumour of the esophagus is esophagus to those who contour it
    table = [0, *(ids.get("esophagus" if s.name == "tumour" else s.name, 0) for s in structures)]
    labels = np.array(table, dtype=np.uint8)[painted]
    write_labels(root / "labelsTr" / f"{name}.nii.gz", LabelMap(labels, grid, {i: o for o, i in ids.items()}))


def field_of_view(low_mm: float, high_mm: float, spacing_mm: tuple[float, float, float]) -> Grid:
    """A grid around the body's axis between two heights."""
    extent = np.array([BODY_MM[0], BODY_MM[1], high_mm - low_mm])  # (x, y, z)
    spacing = np.array(spacing_mm)[::-1]
    counts = np.maximum(1, np.round(extent / spacing)).astype(int)
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = np.array([-extent[0] / 2, -extent[1] / 2, low_mm]) + spacing / 2
    return Grid((int(counts[2]), int(counts[1]), int(counts[0])), affine)


def body_points(grid: Grid) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coordinates of the voxel centres, each of a shape that broadcasts to (z, y, x)."""
    z, y, x = np.ogrid[tuple(slice(0, n) for n in grid.shape)]
    steps, origin = np.diag(grid.affine), grid.affine[:, 3]
    return steps[0] * x + origin[0], steps[1] * y + origin[1], steps[2] * z + origin[2]
