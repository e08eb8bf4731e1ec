"""Stock nnU-Net v2 at small size: plan, shrink the plans, train, predict. Steps are done once and resumed.

In:  a work folder and raw datasets in nnU-Net's layout
Out: model folders as stock nnU-Net writes them
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measured_process import Measured, run_measured
from nnunet_venv import nnunet_python

from continual_segment.data.splits import Split, split_cases

TRAINERS = Path(__file__).parent / "nnunet_trainers"
CONFIGURATION = "3d_fullres"
SCAN_ENDING = "_0000.nii.gz"


@dataclass(frozen=True)
class SmallPlans:
    """What is changed in nnU-Net's own plans, so that a CPU can train them."""

    name: str
    patch: tuple[int, int, int]
    features: tuple[int, ...]
    batch: int = 2
    planner: str = "ExperimentPlanner"


@dataclass(frozen=True)
class StockNnunet:
    """nnU-Net's three folders below one work folder, and its commands."""

    folder: Path
    threads: int = 1

    def run(self, command: str, *arguments: object, **environment: str) -> None:
        subprocess.run(
            [self.program(command), *map(str, arguments)],
            check=True,
            env=os.environ | self.environment | environment,
            stdout=sys.stderr,  # nnU-Net's log; benchmarks print their tables to stdout
        )

    def program(self, command: str) -> str:
        return str(nnunet_python(self.folder / "venv").parent / command)

    @property
    def environment(self) -> dict[str, str]:
        folders = {f"nnUNet_{name}": str(self.folder / name) for name in ("raw", "preprocessed", "results")}
        processes = {"nnUNet_n_proc_DA": "1", "nnUNet_def_n_proc": "1", "OMP_NUM_THREADS": str(self.threads)}
        return folders | processes | {"nnUNet_extTrainer": str(TRAINERS), "nnUNet_compile": "false"}

    def add_dataset(self, raw: Path) -> None:
        """Link the training and validation cases of a dataset; test cases stay out of nnU-Net's sight."""
        target = self.folder / "raw" / raw.name
        if (target / "dataset.json").exists():
            return
        splits = splits_of(raw)
        used = [case for case, split in splits.items() if split != "test"]
        link_cases(raw, target, used)
        description = json.loads((raw / "dataset.json").read_text()) | {"numTraining": len(used)}
        fold = {split: [case for case in used if splits[case] == kind] for split, kind in FOLD_PARTS}
        preprocessed = self.folder / "preprocessed" / raw.name
        preprocessed.mkdir(parents=True, exist_ok=True)
        write_json(preprocessed / "splits_final.json", [fold])
        write_json(target / "dataset.json", description)

    def plan(self, dataset: str, plans: SmallPlans, from_dataset: str | None = None) -> None:
        """nnU-Net's plans with small sizes, and the dataset preprocessed by them.

        Plans of another dataset are taken over as they are, as fine-tuning needs it.
        """
        number, path = number_of(dataset), self.plans_path(dataset, plans)
        if not (path.parent / "dataset_fingerprint.json").exists():
            self.run("nnUNetv2_extract_fingerprint", "-d", number, "-np", 1)
        if not path.exists():
            if from_dataset:
                source = json.loads(self.plans_path(from_dataset, plans).read_text())
                write_json(path, source | {"dataset_name": dataset})
                shutil.copy(self.folder / "raw" / dataset / "dataset.json", path.parent)  # as planning does
            else:
                options = ["-pl", plans.planner, "-overwrite_plans_name", plans.name]
                self.run("nnUNetv2_plan_experiment", "-d", number, *options)
                write_json(path, shrunk(json.loads(path.read_text()), plans))
        # beside the folder of cases: nnU-Net takes every file in it for one
        done = path.parent / f"{plans.name}_{CONFIGURATION}.done"
        if not done.exists():
            options = ["-plans_name", plans.name, "-c", CONFIGURATION, "-np", 1]
            self.run("nnUNetv2_preprocess", "-d", number, *options)
            done.touch()

    def train(
        self, dataset: str, plans: SmallPlans, trainer: str, epochs: int, pretrained: Path | None = None
    ) -> Path:
        """The trained model's folder; a stopped training is resumed."""
        model = self.model_folder(dataset, plans, trainer)
        if not (model / "fold_0" / "checkpoint_final.pth").exists():
            begun = (model / "fold_0" / "checkpoint_latest.pth").exists()
            options: list[object] = ["--c"] if begun else []
            if pretrained and not begun:
                options += ["-pretrained_weights", pretrained]
            self.run(
                *("nnUNetv2_train", number_of(dataset), CONFIGURATION, 0, "-tr", trainer, "-p", plans.name),
                *("-device", "cpu", *options),
                CONSEG_EPOCHS=str(epochs),
            )
        return model

    def predict(self, model: Path, scans: Path, out: Path, *, mirror: bool = False) -> Measured:
        """Label maps of all scans of a folder, by one process and those it starts.

        Of a training that has not ended, the best checkpoint counts, as for `conseg import`.
        """
        options = ["-f", 0, "-device", "cpu", "-npp", 1, "-nps", 1, *([] if mirror else ["--disable_tta"])]
        if not (model / "fold_0" / "checkpoint_final.pth").exists():
            options += ["-chk", "checkpoint_best.pth"]
        command = self.program("nnUNetv2_predict_from_modelfolder")
        return run_measured([command, "-i", scans, "-o", out, "-m", model, *options], self.environment)

    def plans_path(self, dataset: str, plans: SmallPlans) -> Path:
        return self.folder / "preprocessed" / dataset / f"{plans.name}.json"

    def model_folder(self, dataset: str, plans: SmallPlans, trainer: str) -> Path:
        return self.folder / "results" / dataset / f"{trainer}__{plans.name}__{CONFIGURATION}"


FOLD_PARTS = (("train", "train"), ("val", "validation"))


def shrunk(plans: dict[str, Any], wanted: SmallPlans) -> dict[str, Any]:
    """The plans with a smaller patch and fewer features; stages beyond the features are left out."""
    configuration = plans["configurations"][CONFIGURATION]
    configuration |= {"patch_size": list(wanted.patch), "batch_size": wanted.batch}
    configuration["data_identifier"] = f"{wanted.name}_{CONFIGURATION}"
    arguments = configuration["architecture"]["arch_kwargs"]
    stages = len(wanted.features)
    assert arguments["n_stages"] >= stages, f"{wanted.name}: nnU-Net planned {arguments['n_stages']} stages"
    arguments |= {"n_stages": stages, "features_per_stage": list(wanted.features)}
    for name, value in arguments.items():
        if isinstance(value, list):
            arguments[name] = value[: stages - 1 if name == "n_conv_per_stage_decoder" else stages]
    plans["configurations"] = {CONFIGURATION: configuration}
    return plans


def splits_of(raw: Path) -> dict[str, Split]:
    """The split of every case, as `conseg prepare` has it."""
    return split_cases(path.name.removesuffix(SCAN_ENDING) for path in (raw / "imagesTr").iterdir())


def link_cases(raw: Path, target: Path, cases: Iterable[str]) -> None:
    """Scans and labels of these cases in another folder of the same layout."""
    for case in cases:
        for name in (f"imagesTr/{case}{SCAN_ENDING}", f"labelsTr/{case}.nii.gz"):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            link(target / name, raw / name)


def number_of(dataset: str) -> int:
    return int(dataset.removeprefix("Dataset")[:3])


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """The folder, which `make` fills if need be; it appears under its name when it is complete."""
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.unfinished")
        unfinished.mkdir(parents=True, exist_ok=True)
        make(unfinished)
        unfinished.rename(folder)
    return folder


def link(path: Path, target: Path) -> None:
    if not path.exists():
        path.symlink_to(target.resolve())


def write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1))
