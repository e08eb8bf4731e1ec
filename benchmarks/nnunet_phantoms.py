"""Small stock nnU-Nets on phantom scans, one per kind of plans, and scans that none of them saw.

    python benchmarks/nnunet_phantoms.py FOLDER       # phantoms, planning, training: half an hour on one core

Every stage is done once: run the command again to resume.

In:  a work folder of benchmarks/nnunet_stock.py
Out: model folders of stock nnU-Net, and phantom scans with their true labels
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from nnunet_stock import SmallPlans, StockNnunet, made_once

from continual_segment.files import read_labels, read_scan, write_labels, write_scan
from continual_segment.lab.phantom.write import Spacing, write_phantom

TRAINING_CASES = 11
"""Ten of them train and validate; the split of the names keeps one back."""
FEATURES = (8, 16, 32, 64)
UNSEEN_SEEDS = (1, 4, 5)
"""Of the phantoms to compare on: patients whose scan shows the trunk, where ten of eleven organs are."""
MIRRORING, NO_MIRRORING = "nnUNetTrainerShortAdamMirror01", "nnUNetTrainerShortAdamNoMirroring"


@dataclass(frozen=True)
class Configuration:
    """One kind of network, the scans it learns from and those it is tried on."""

    dataset: str
    """DatasetNNN_Name; the name is also that of the plans."""
    patch: tuple[int, int, int]
    spacing_mm: Spacing
    """(z, y, x) of the scans for training; nnU-Net plans from it."""
    unseen_mm: tuple[Spacing, ...]
    """(z, y, x) of the scans to compare on, each of another patient."""
    orientation: str = "LPS"
    """Axis codes of the files."""
    planner: str = "ExperimentPlanner"
    trainer: str = NO_MIRRORING
    epochs: int = 12
    features: tuple[int, ...] = FEATURES

    @property
    def name(self) -> str:
        return self.dataset.partition("_")[2]

    @property
    def plans(self) -> SmallPlans:
        return SmallPlans(self.name.lower(), self.patch, self.features, planner=self.planner)

    @property
    def mirrors(self) -> bool:
        return self.trainer == MIRRORING


NEAR_4_MM = ((4.0, 4.0, 4.0), (5.0, 3.4, 3.4), (14.0, 3.0, 3.0))
CONFIGURATIONS = (
    Configuration("Dataset911_Isotropic", (40, 40, 40), (4.0, 4.0, 4.0), NEAR_4_MM, trainer=MIRRORING),
    Configuration(
        "Dataset912_Anisotropic",
        (16, 56, 56),
        (12.0, 3.0, 3.0),
        ((12.0, 3.0, 3.0), (9.0, 2.7, 2.7), (4.0, 3.6, 3.6)),
    ),
    Configuration(
        "Dataset913_ResEnc", (40, 40, 40), (4.0, 4.0, 4.0), NEAR_4_MM, "RAS", "nnUNetPlannerResEncM"
    ),
    # the coarsest axis becomes the first, here by a permutation that is not its own inverse
    Configuration(
        "Dataset914_Transposed",
        (32, 40, 40),
        (3.6, 4.0, 5.0),
        ((3.6, 4.0, 5.0), (4.5, 3.3, 3.3), (3.0, 3.0, 12.0)),
    ),
)
"""Scans to compare on have the voxels of the training scans, others, and once anisotropic ones (ratio over 3)
where the training scans are not, or the other way round: resampling then treats the coarse axis apart."""


def train(stock: StockNnunet, configuration: Configuration) -> Path:
    """The trained model's folder."""
    raw = stock.folder / "phantoms" / configuration.dataset
    stock.add_dataset(made_once(raw, lambda folder: write_training_scans(folder, configuration)))
    stock.plan(configuration.dataset, configuration.plans)
    return stock.train(
        configuration.dataset, configuration.plans, configuration.trainer, configuration.epochs
    )


def unseen_scans(folder: Path, configuration: Configuration) -> Path:
    """A raw dataset of scans to compare on, of patients that are in no training."""
    raw = folder / "phantoms" / f"{configuration.dataset}_unseen"
    return made_once(raw, lambda folder: write_unseen_scans(folder, configuration))


def write_training_scans(folder: Path, configuration: Configuration) -> None:
    spacing_mm, orientation = configuration.spacing_mm, configuration.orientation
    move_cases(turned_phantom(folder / "phantom", TRAINING_CASES, 0, spacing_mm, orientation), folder)
    shutil.rmtree(folder / "phantom")


def write_unseen_scans(folder: Path, configuration: Configuration) -> None:
    for seed, spacing_mm in zip(UNSEEN_SEEDS, configuration.unseen_mm, strict=True):
        written = turned_phantom(folder / "phantom", 1, seed, spacing_mm, configuration.orientation)
        move_cases(written, folder, f"unseen{seed}_")
        shutil.rmtree(folder / "phantom")


def turned_phantom(folder: Path, cases: int, seed: int, spacing_mm: Spacing, orientation: str) -> Path:
    """A phantom dataset whose files have this orientation."""
    raw = write_phantom(folder, "totalseg", cases, seed, spacing_mm, 1, "demo", progress=False)
    for path in raw.glob("imagesTr/*.nii.gz"):
        scan = read_scan(path)
        write_scan(path, replace(scan, grid=replace(scan.grid, orientation=orientation)))
    for path in raw.glob("labelsTr/*.nii.gz"):
        labels = read_labels(path)
        write_labels(path, replace(labels, grid=replace(labels.grid, orientation=orientation)))
    return raw


def move_cases(source: Path, target: Path, prefix: str = "") -> None:
    """Scans, labels and dataset.json, with a prefix to the names of the cases."""
    for part in ("imagesTr", "labelsTr"):
        (target / part).mkdir(exist_ok=True)
        for path in (source / part).iterdir():
            path.rename(target / part / f"{prefix}{path.name}")
    (source / "dataset.json").rename(target / "dataset.json")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for nnU-Net's environment, datasets and models")
    stock = StockNnunet(parser.parse_args().folder)
    for configuration in CONFIGURATIONS:
        print(train(stock, configuration), flush=True)


if __name__ == "__main__":
    main()
