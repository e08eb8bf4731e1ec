"""Write phantom datasets in nnU-Net's raw layout, through the writers every scan takes.

The folder body_parts beside them has, for each case, the slices of every body part by the landmarks of the
spine (lower end-plates of L5, T11 and T2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from continual_segment.errors import ConfigError, DatasetError
from continual_segment.files import write_json, write_labels, write_scan
from continual_segment.lab.phantom.datasets import DATASETS, DISEASES, Disease, PhantomDataset
from continual_segment.lab.phantom.organ_lists import label_voxels
from continual_segment.lab.phantom.scanner import Scan, majority, scan_patient
from continual_segment.processes import for_each
from continual_segment.volume import LabelMap, Volume

Spacing = tuple[float, float, float]


@dataclass(frozen=True)
class PhantomCase:
    """One case to write: all that its bytes depend on."""

    name: str
    dataset: PhantomDataset
    seed: int
    spacing_mm: Spacing


def write_phantom(
    folder: Path,
    dataset: str,
    cases: int,
    seed: int = 0,
    spacing_mm: Spacing = (4.0, 4.0, 4.0),
    workers: int | None = None,
    organs: Literal["all", "demo"] | Sequence[str] = "all",
    progress: bool = True,
    disease: Disease = "usual",
) -> Path:
    """Write `folder`/DatasetNNN_name; the same seed gives the same bytes. Return that folder.

    organs: the labels: all of the dataset, a few large ones for a demo, or names out of its list.
    disease: usual in the dataset's patients, none, or a tumour of the esophagus in every patient.
    """
    if disease not in DISEASES:
        raise ConfigError(f"The disease of phantoms is one of {', '.join(DISEASES)}, not {disease!r}.")
    if seed < 0:
        raise ConfigError(f"The seed of phantoms is 0 or more, not {seed}.")
    described = _labelling(organs, _described(dataset, cases, spacing_mm)).with_disease(disease)
    root = dataset_folder(Path(folder), dataset)
    for name in ("imagesTr", "labelsTr", "body_parts"):
        (root / name).mkdir(parents=True, exist_ok=True)
    jobs = [
        PhantomCase(f"{dataset}_{n:04d}", described, case_seed(seed, described, n), spacing_mm)
        for n in range(cases)
    ]
    outcome = for_each(
        write_case, {job.name: (job,) for job in jobs}, (root,), workers, f"phantom {dataset}", progress
    )
    if outcome.failures:
        raise DatasetError("\n".join(f"{name}: {why}" for name, why in outcome.failures.items()))
    labels = {"background": 0} | {organ: i for i, organ in enumerate(described.organs, start=1)}
    write_json(
        root / "dataset.json",
        {"channel_names": {"0": "CT"}, "labels": labels, "numTraining": cases, "file_ending": ".nii.gz"},
    )
    return root


def dataset_folder(folder: Path, dataset: str) -> Path:
    """Where in `folder` a dataset is stored."""
    return folder / f"Dataset{900 + DATASETS[dataset].number}_{dataset}"


def _described(dataset: str, cases: int, spacing_mm: Spacing) -> PhantomDataset:
    if dataset not in DATASETS:
        raise ConfigError(f"There is no phantom dataset {dataset!r}; choose one of {', '.join(DATASETS)}.")
    if cases < 1:
        raise ConfigError(f"A phantom dataset needs at least one case, not {cases}.")
    if not all(0.4 <= mm <= 30 for mm in spacing_mm):
        raise ConfigError(f"Phantom voxels measure 0.4 to 30 mm along each axis, not {spacing_mm}.")
    return DATASETS[dataset]


def _labelling(organs: Literal["all", "demo"] | Sequence[str], dataset: PhantomDataset) -> PhantomDataset:
    """The dataset with the labels that were chosen."""
    if isinstance(organs, str):
        return dataset.demo if organs == "demo" else dataset
    if unknown := [name for name in organs if name not in dataset.organs] or (not organs and ["no name"]):
        raise ConfigError(
            f"The phantom labels {', '.join(dataset.organs)} in this dataset, not {unknown[0]}."
        )
    return replace(dataset, organs=tuple(organs))


def case_seed(seed: int, dataset: PhantomDataset, number: int) -> int:
    """Every case has its own seed, so that ten cases are the first ten of twenty."""
    return int(np.random.SeedSequence((seed, dataset.number, number)).generate_state(1)[0])


def make_scan(dataset: PhantomDataset, seed: int, spacing_mm: Spacing) -> Scan:
    """A patient of the dataset, scanned: a function of the seed alone."""
    patient = dataset.draw(seed)
    rng = np.random.default_rng([seed, 11])
    view = dataset.place(patient, spacing_mm, rng)
    return scan_patient(patient, view, dataset.scanner, rng)


def write_case(case: PhantomCase, root: Path) -> None:
    scan = make_scan(case.dataset, case.seed, case.spacing_mm)
    labels = majority(label_voxels(scan.body, case.dataset.organs), scan.split)
    names = dict(enumerate(case.dataset.organs, start=1))
    write_scan(root / "imagesTr" / f"{case.name}_0000.nii.gz", Volume(scan.hu, scan.grid))
    write_labels(root / "labelsTr" / f"{case.name}.nii.gz", LabelMap(labels, scan.grid, names))
    write_json(root / "body_parts" / f"{case.name}.json", body_parts(scan))


def body_parts(scan: Scan) -> dict[str, Any]:
    """Where each body part starts (mm along z) and its slices [first, one past the last)."""
    bottom, step = scan.grid.affine[2, 3], scan.grid.spacing_mm[0]
    starts = list(scan.region_starts_mm.values())
    edges = [
        int(np.clip(np.ceil((mm - bottom) / step), 0, scan.grid.shape[0])) if np.isfinite(mm) else 0
        for mm in starts
    ]
    edges.append(scan.grid.shape[0])
    slices = {name: [edges[k], edges[k + 1]] for k, name in enumerate(scan.region_starts_mm)}
    finite = {name: round(mm, 2) for name, mm in scan.region_starts_mm.items() if np.isfinite(mm)}
    return {"starts_mm": finite, "slices": slices}
