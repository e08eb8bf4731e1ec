"""Four datasets one after the other on real scans: an imported nnU-Net that learns, against stock nnU-Net.

    python benchmarks/nnunet_story.py FOLDER --open-kbp ../shared/data/open-kbp  # hours on one core
    python benchmarks/nnunet_story.py FOLDER --open-kbp ../shared/data/open-kbp --only fine-tuned

A stock nnU-Net is trained on Dataset101 of OpenKBP (30 epochs of 50 updates). Datasets 102, 103 and 104 with
other patients and partial labels follow, 250 updates each:

  per dataset  stock nnU-Net trained from random weights on each dataset: a network per dataset
  fine-tuned   stock nnU-Net fine-tuned on one dataset after the other with -pretrained_weights, which
               replaces the output layer: organs of earlier datasets are no longer among the labels
  ours         `conseg import` of the first network, then `conseg learn` for each dataset

After every step the test cases of all datasets so far are segmented and scored. Parts, by --only:

  per-dataset  stock nnU-Net's trainings from random weights
  fine-tuned   stock nnU-Net's trainings one after the other; may run beside those per dataset
  ours         import and learning
  scores       segmentation and scores, to --out as one JSON file per method; --methods divides them among
               processes
  report       table and figure from these files

Every stage is done once: run the command again to resume.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from measured_process import CONSEG
from nnunet_stock import SmallPlans, StockNnunet, link, made_once, splits_of
from nnunet_story_report import METHODS, Step, dice_by_organ, write_report, write_steps

from continual_segment.model import Model

ROOT = Path(__file__).parents[1]
PRESET = Path(__file__).with_suffix(".toml")
PARTS = ("per-dataset", "fine-tuned", "ours", "scores", "report")
DATASETS = (
    "Dataset101_HNBase",
    "Dataset102_Parotid",
    "Dataset103_LarynxEsophagus",
    "Dataset104_EsophagusTumour",
)
PLANS = SmallPlans("small", (40, 48, 48), (16, 32, 64, 128))
TRAINER = "nnUNetTrainerShortAdamNoMirroring"
"""The variant with AdamW: after 700 updates of nnU-Net's default, SGD, the validation Dice on Dataset101
was 0 for brainstem and spinal cord and 0.11 for the mandible."""
FINE_TUNED = "nnUNetTrainerShortFineTuned"
FIRST_EPOCHS, LATER_EPOCHS = 30, 5
"""Of 50 updates with two patches each."""


@dataclass(frozen=True)
class Story:
    """Where everything is, and the models by step; the first step is 0."""

    stock: StockNnunet
    raw: Path
    """Folder of the raw datasets."""

    @property
    def folder(self) -> Path:
        return self.stock.folder / "story"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def plan_first(self) -> None:
        """The plans of the first dataset, which later ones take over."""
        self.stock.add_dataset(self.raw / DATASETS[0])
        self.stock.plan(DATASETS[0], PLANS)

    def first_model(self) -> Path:
        self.plan_first()
        return self.stock.train(DATASETS[0], PLANS, TRAINER, FIRST_EPOCHS)

    def per_dataset(self, step: int) -> Path:
        """Trained on one dataset from random weights."""
        return self.first_model() if step == 0 else self._train_later(step, TRAINER)

    def fine_tuned(self, step: int) -> Path:
        """Trained on all datasets so far, one after the other."""
        if step == 0:
            return self.first_model()
        before = self.fine_tuned(step - 1) / "fold_0" / "checkpoint_final.pth"
        return self._train_later(step, FINE_TUNED, before)

    def _train_later(self, step: int, trainer: str, pretrained: Path | None = None) -> Path:
        self.plan_first()
        self.stock.add_dataset(self.raw / DATASETS[step])
        self.stock.plan(DATASETS[step], PLANS, from_dataset=DATASETS[0])
        return self.stock.train(DATASETS[step], PLANS, trainer, LATER_EPOCHS, pretrained)

    def learn_ours(self) -> None:
        """The imported model with a pack per dataset."""
        if not self.model.exists():
            conseg("import", self.first_model(), "-m", self.model, "--name", pack_name(DATASETS[0]))
        for dataset in DATASETS[1:]:
            if pack_name(dataset) in Model.open(self.model).pack_names:
                continue
            prepared = self.folder / "prepared" / dataset
            conseg("prepare", self.raw / dataset, "--model", self.model, "-o", prepared, "--workers", 1)
            conseg("learn", prepared, "-m", self.model, "--preset", PRESET, "--name", pack_name(dataset))

    def segment_stock(self, model: Path, method: str, step: int, dataset: str) -> Path:
        """Stock nnU-Net's label maps of a dataset's test cases."""
        return made_once(
            self.folder / "labels" / method / str(step + 1) / dataset,
            partial(self.stock.predict, model, self.test_scans(dataset)),
        )

    def segment_ours(self, step: int, dataset: str) -> Path:
        """Label maps by the packs that the model had after a step; packs never change."""
        packs = ",".join(map(pack_name, DATASETS[: step + 1]))
        options = ["-m", self.model, "--packs", packs, "--quiet"]
        return made_once(
            self.folder / "labels" / "ours" / str(step + 1) / dataset,
            lambda folder: conseg("segment", self.test_scans(dataset), *options, "-o", folder),
        )

    def test_scans(self, dataset: str) -> Path:
        return made_once(self.folder / "scans" / dataset, partial(link_test_scans, self.raw / dataset))

    def steps(self, method: str) -> Iterator[Step]:
        """The scores of every step."""
        for step, learned in enumerate(DATASETS):
            seen = DATASETS[step : step + 1] if method == "per dataset" else DATASETS[: step + 1]
            yield Step(learned, {dataset: self.dice(method, step, dataset) for dataset in seen})

    def dice(self, method: str, step: int, dataset: str) -> dict[str, dict[str, float]]:
        """Of every organ of a dataset in every test case."""
        if method == "ours":
            return dice_by_organ(self.segment_ours(step, dataset), self.raw / dataset)
        if step == 0:
            method = "per dataset"  # both begin with the same network
        model = self.fine_tuned(step) if method == "fine-tuned" else self.per_dataset(step)
        if organs_of(model).isdisjoint(organs_of(self.raw / dataset)):
            return self.nothing_found(dataset)
        return dice_by_organ(self.segment_stock(model, method, step, dataset), self.raw / dataset)

    def nothing_found(self, dataset: str) -> dict[str, dict[str, float]]:
        """The Dice of a network that has none of the organs: 0 wherever they are."""
        known = self.dice("per dataset", DATASETS.index(dataset), dataset)
        return {organ: dict.fromkeys(cases, 0.0) for organ, cases in known.items()}


def organs_of(folder: Path) -> set[str]:
    """The labels in the dataset.json of a model or a raw dataset."""
    return set(json.loads((folder / "dataset.json").read_text())["labels"]) - {"background"}


def link_test_scans(raw: Path, folder: Path) -> None:
    for case, split in splits_of(raw).items():
        if split == "test":
            name = f"{case}_0000.nii.gz"
            link(folder / name, raw / "imagesTr" / name)


def pack_name(dataset: str) -> str:
    return dataset.partition("_")[2]


def conseg(*arguments: object) -> None:
    """Not measured: looking at memory takes a tenth of a core."""
    subprocess.run([*CONSEG, *map(str, arguments)], check=True, stdout=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for nnU-Net's environment, datasets, models and labels")
    parser.add_argument("--open-kbp", type=Path, required=True, metavar="RAW", help="folder of the datasets")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts (default: all)")
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=METHODS, help="that are scored (default: all)"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "results" / "nnunet_story", help="of scores and table"
    )
    parser.add_argument(
        "--figure", type=Path, default=ROOT / "docs" / "pictures" / "nnunet_story.png", metavar="PNG"
    )
    chosen = parser.parse_args()
    story = Story(StockNnunet(chosen.folder.resolve()), chosen.open_kbp.resolve())
    later = range(1, len(DATASETS))
    if "per-dataset" in chosen.only:
        for step in later:
            story.per_dataset(step)
    if "fine-tuned" in chosen.only:
        for step in later:
            story.fine_tuned(step)
    if "ours" in chosen.only:
        story.learn_ours()
    if "scores" in chosen.only:
        for method in chosen.methods:
            write_steps(chosen.out, method, story.steps(method))
    if "report" in chosen.only:
        write_report(chosen.out, chosen.figure)


if __name__ == "__main__":
    main()
