"""Makes the starter, the model in the package, from scans of patients (OpenKBP), and scores it.

    python benchmarks/starter.py FOLDER --open-kbp ../shared/data/open-kbp  # an hour and a half on one core
    python benchmarks/starter.py FOLDER --open-kbp ../shared/data/open-kbp --only validation
    python benchmarks/starter.py FOLDER2 --open-kbp ../shared/data/open-kbp --teacher FOLDER/model

Four partially labelled datasets are learned together (configs/starter.toml): one encoder, one pack per
dataset. The pack of Dataset104, a second one for the esophagus, only helps the encoder and is removed. With
--teacher, every pack also learns from the training scans of all other datasets, with the label maps of that
model where the organ is not labelled; there is no pack of Dataset104 then. Parts, by --only:

  learn       prepare the datasets and learn the model
  validation  validation scans, segmented as users do it and with one setting changed: validation.md
  test        test scans, segmented as users do it, scored by `conseg evaluate`: one JSON file per pack

Every stage is done once: run the command again to resume. The model is FOLDER/model; a release has a copy of
it in src/continual_segment/starter.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

import nibabel as nib
import numpy as np
from nnunet_stock import SCAN_ENDING, link, link_cases, made_once, splits_of
from nnunet_story import ROOT, conseg

from continual_segment.evaluation import evaluate
from continual_segment.files import write_text
from continual_segment.model import Model
from continual_segment.organs import find_organ

PRESET = ROOT / "configs" / "starter.toml"
PARTS = ("learn", "validation", "test")
DATASETS = {
    "brainstem_cord_mandible": "Dataset101_HNBase",
    "parotids": "Dataset102_Parotid",
    "larynx_esophagus": "Dataset103_LarynxEsophagus",
    "esophagus_tumour": "Dataset104_EsophagusTumour",
}
"""By the name of their pack; the first is the first step."""
PACKS = tuple(DATASETS)[:3]
"""Those of the starter."""
TUMOURS = "Dataset110_TumourTarget"
"""Labels no organ; with a teacher, its training scans are learned from."""
EMPTY = {"pt_143"}
"""A scan of it from which the patient was cut away: 0.3 % of its voxels are tissue."""
VARIANTS: dict[str, tuple[str, ...]] = {
    "as users run it": (),
    "without coverage": ("--ignore-coverage",),
    "with islands": ("--keep-islands",),
    "overlap 0.25": ("--overlap", "0.25"),
    "consensus": ("--merge", "consensus"),
}
"""Options of `conseg segment`."""


@dataclass(frozen=True)
class Starter:
    """Where everything is."""

    folder: Path
    open_kbp: Path
    teacher: Path | None = None

    @property
    def packs(self) -> tuple[str, ...]:
        """Those that are learned."""
        return PACKS if self.teacher else tuple(DATASETS)

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def prepared(self, pack: str) -> Path:
        return self.folder / "prepared" / pack

    def raw(self, pack: str) -> Path:
        """The dataset in a folder named after its pack: packs that are learned together have that name."""
        return made_once(self.folder / "raw" / pack, partial(link_dataset, self.open_kbp / DATASETS[pack]))

    def completed(self, pack: str, teacher: Path) -> Path:
        """The dataset with the training scans of all others, labelled by their contours and the teacher."""
        return made_once(self.folder / "completed" / pack, partial(self.complete, pack, teacher))

    def complete(self, pack: str, teacher: Path, folder: Path) -> None:
        own = self.open_kbp / DATASETS[pack]
        link_dataset(own, folder)
        for dataset in {*DATASETS.values(), TUMOURS} - {DATASETS[pack]}:
            raw = self.open_kbp / dataset
            scans = made_once(self.folder / "scans" / "train" / dataset, partial(link_scans, raw, "train"))
            taught = made_once(self.folder / "taught" / dataset, partial(run_teacher, teacher, scans))
            for scan in scans.iterdir():
                link(folder / "imagesTr" / scan.name, scan)
                case = f"{scan.name.removesuffix(SCAN_ENDING)}.nii.gz"
                drawn, found = nib.load(raw / "labelsTr" / case), nib.load(taught / case)
                labels = join(
                    np.asarray(drawn.dataobj), labels_of(raw), np.asarray(found.dataobj), labels_of(own)
                )
                nib.save(nib.Nifti1Image(labels, drawn.affine), folder / "labelsTr" / case)

    def learn(self) -> None:
        if not self.model.exists():
            for pack in self.packs:
                raw = self.completed(pack, self.teacher) if self.teacher else self.raw(pack)
                conseg("prepare", raw, "--preset", PRESET, "-o", self.prepared(pack))
            first, *others = map(self.prepared, self.packs)
            options = ["-m", self.model, "--preset", PRESET, "--licence", "MIT"]
            conseg("learn", first, "--with", *others, *options)
        for extra in set(self.packs) - set(PACKS):
            if extra in Model.open(self.model).pack_names:
                conseg("pack", "remove", extra, "-m", self.model)

    def segment(self, pack: str, split: str, variant: str) -> Path:
        """Label maps of a split of a pack's dataset, by all packs."""
        scans = made_once(self.folder / "scans" / split / pack, partial(link_scans, self.raw(pack), split))
        return made_once(
            self.folder / "labels" / split / variant.replace(" ", "_") / pack,
            lambda out: conseg("segment", scans, "-m", self.model, *VARIANTS[variant], "-o", out, "--quiet"),
        )


def link_dataset(raw: Path, folder: Path) -> None:
    link_cases(raw, folder, splits_of(raw))
    link(folder / "dataset.json", raw / "dataset.json")


def run_teacher(teacher: Path, scans: Path, out: Path) -> None:
    conseg("segment", scans, "-m", teacher, "-o", out, "--quiet")


def labels_of(raw: Path) -> dict[str, int]:
    """Label by name of organ."""
    found: dict[str, int] = json.loads((raw / "dataset.json").read_text())["labels"]
    return {name: label for name, label in found.items() if label}


def join(
    drawn: np.ndarray, drawn_labels: dict[str, int], found: np.ndarray, wanted: dict[str, int]
) -> np.ndarray:
    """Organs with their wanted labels: as drawn, or as the teacher found them where nobody drew them."""
    joined = np.zeros(drawn.shape, np.uint8)
    for name, label in wanted.items():
        is_drawn = name in drawn_labels
        joined[drawn == drawn_labels[name] if is_drawn else found == find_organ(name).id] = label
    return joined


def link_scans(raw: Path, split: str, folder: Path) -> None:
    for case, its_split in splits_of(raw).items():
        if its_split == split and case not in EMPTY:
            name = f"{case}{SCAN_ENDING}"
            link(folder / name, raw / "imagesTr" / name)


def validation_table(starter: Starter) -> str:
    """Mean Dice and HD95 over organs, by variant; organs that were missed count with the scan's diagonal."""
    text = "| variant | Dice | HD95, mm | lowest Dice of an organ |\n|---|---|---|---|\n"
    for variant in VARIANTS:
        organs = {name: (dice, hd95) for name, dice, hd95 in validation_scores(starter, variant)}
        dice, hd95 = (fmean(column) for column in zip(*organs.values(), strict=True))
        worst = min(organs, key=lambda name: organs[name][0])
        text += f"| {variant} | {dice:.3f} | {hd95:.1f} | {worst} {organs[worst][0]:.3f} |\n"
    return text


def validation_scores(starter: Starter, variant: str) -> Iterator[tuple[str, float, float]]:
    """Name, Dice and HD95 of every organ."""
    for pack in PACKS:
        labels = starter.segment(pack, "validation", variant)
        found = evaluate(labels, starter.raw(pack), split="validation", workers=1, progress=False)
        for organ in found.organs:
            yield organ.name, organ.dice, organ.hd95_penalised_mm


def score_test(starter: Starter, out: Path) -> None:
    """The test scans as `conseg evaluate` scores them."""
    for pack in PACKS:
        labels, scores = starter.segment(pack, "test", "as users run it"), starter.folder / "scores" / pack
        options = ["--prepared", starter.prepared(pack), "-o", scores, "--workers", 1]
        conseg("evaluate", labels, starter.raw(pack), *options)
        shutil.copy(scores / "evaluation.json", out / f"{pack}.json")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for datasets, model and label maps")
    parser.add_argument("--open-kbp", type=Path, required=True, metavar="RAW", help="folder of the datasets")
    parser.add_argument("--teacher", type=Path, metavar="MODEL", help="labels organs without contours")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "starter", help="of the scores")
    chosen = parser.parse_args()
    starter = Starter(chosen.folder.resolve(), chosen.open_kbp.resolve(), chosen.teacher)
    chosen.out.mkdir(parents=True, exist_ok=True)
    if "learn" in chosen.only:
        starter.learn()
    if "validation" in chosen.only:
        write_text(chosen.out / "validation.md", validation_table(starter))
    if "test" in chosen.only:
        score_test(starter, chosen.out)


if __name__ == "__main__":
    main()
