"""Makes the starter, the model in the package, from scans of patients (OpenKBP), and scores it.

    python benchmarks/starter.py FOLDER --open-kbp ../shared/data/open-kbp

The encoder is that of a stock nnU-Net trained on Dataset101, the first network of benchmarks/nnunet_story.py
in the same FOLDER. Three packs are learned on it (configs/starter.toml), one per dataset; the pack that was
imported with the encoder is removed: it does not know the pieces of its organs, so islands would stay in its
labels. Every dataset's test scans are then segmented with its pack and scored.

Every stage is done once: run the command again to resume. The model is FOLDER/starter/model; a release has a
copy of it in src/continual_segment/starter.
"""

from __future__ import annotations

import argparse
import shutil
from functools import partial
from pathlib import Path

from nnunet_stock import StockNnunet, made_once
from nnunet_story import ROOT, Story, conseg

from continual_segment.model import Model

PRESET = ROOT / "configs" / "starter.toml"
PACKS = {
    "brainstem_cord_mandible": "Dataset101_HNBase",
    "parotids": "Dataset102_Parotid",
    "larynx_esophagus": "Dataset103_LarynxEsophagus",
}
IMPORTED = "imported"
STORED_AS = "PLI"
"""Orientation of all files of OpenKBP."""
ITERATIONS = {"brainstem_cord_mandible": 300}
"""Where they differ from the preset's 600: the encoder was trained with these very labels."""


def make(story: Story, folder: Path) -> Path:
    """The model with one pack per dataset."""
    model = folder / "model"
    if not model.exists():
        conseg("import", story.first_model(), "-m", model, "--name", IMPORTED, "--orientation", STORED_AS)
    for name, dataset in PACKS.items():
        if name not in Model.open(model).pack_names:
            prepared = folder / "prepared" / name
            conseg("prepare", story.raw / dataset, "--model", model, "-o", prepared, "--workers", 1)
            options = ["--iterations", ITERATIONS[name]] if name in ITERATIONS else []
            options += ["--preset", PRESET, "--name", name, "--licence", "MIT"]
            conseg("learn", prepared, "-m", model, *options)
    if IMPORTED in Model.open(model).pack_names:
        conseg("pack", "remove", IMPORTED, "-m", model)
    return model


def score(story: Story, model: Path, folder: Path, out: Path) -> None:
    """Scores of the test scans of every dataset by its pack, as `conseg evaluate` writes them."""
    out.mkdir(parents=True, exist_ok=True)
    for name, dataset in PACKS.items():
        scans = story.test_scans(dataset)
        labels = made_once(folder / "labels" / name, partial(segment, scans, model, name))
        scores, truth = folder / "scores" / name, story.raw / dataset
        if not scores.exists():
            conseg("evaluate", labels, truth, "--prepared", folder / "prepared" / name, "-o", scores)
        shutil.copy(scores / "evaluation.json", out / f"{name}.json")


def segment(scans: Path, model: Path, pack: str, folder: Path) -> None:
    conseg("segment", scans, "-m", model, "--packs", pack, "-o", folder, "--quiet")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="that of benchmarks/nnunet_story.py")
    parser.add_argument("--open-kbp", type=Path, required=True, metavar="RAW", help="folder of the datasets")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "starter", help="of the scores")
    chosen = parser.parse_args()
    story = Story(StockNnunet(chosen.folder.resolve()), chosen.open_kbp.resolve())
    folder = chosen.folder.resolve() / "starter"
    score(story, make(story, folder), folder, chosen.out)


if __name__ == "__main__":
    main()
