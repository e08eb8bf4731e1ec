"""The stock nnU-Net that tests import: trained on coarse phantoms, with its labels of a scan it never saw.

    python benchmarks/nnunet_fixture.py FOLDER      # minutes on one core

Writes tests/model/nnunet/stock/: `model.zip` (a model folder; the state of the optimizer is removed, which
halves the file twice), `scan.nii.gz` (a phantom) and `labels.nii.gz` (by stock nnUNetv2_predict, without
mirroring).
"""

from __future__ import annotations

import argparse
import shutil
import zipfile
from pathlib import Path

import torch
from nnunet_phantoms import Configuration, train, turned_phantom
from nnunet_stock import StockNnunet, made_once

OUT = Path(__file__).parents[1] / "tests" / "model" / "nnunet" / "stock"
CONFIGURATION = Configuration(
    "Dataset915_Fixture",
    (24, 24, 24),
    (8.0, 8.0, 8.0),
    (),
    trainer="nnUNetTrainerShortAdamMirror01",
    epochs=16,
    features=(6, 12, 24),
)
UNSEEN_MM = (7.0, 9.0, 9.0)
UNSEEN_SEED = 4
KEPT = ("network_weights", "init_args", "trainer_name", "current_epoch", "inference_allowed_mirroring_axes")


def write_zip(model: Path, path: Path) -> None:
    """A model folder as nnUNetv2_export_model_to_zip packs it, with a smaller checkpoint."""
    small = path.with_suffix(".pth")
    checkpoint = torch.load(model / "fold_0" / "checkpoint_final.pth", weights_only=False)  # our own
    torch.save({name: checkpoint[name] for name in KEPT}, small)
    above = f"{CONFIGURATION.dataset}/{model.name}"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in ("plans.json", "dataset.json"):
            archive.write(model / name, f"{above}/{name}")
        archive.write(small, f"{above}/fold_0/checkpoint_final.pth")
    small.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="for nnU-Net's environment, datasets and models")
    stock = StockNnunet(parser.parse_args().folder.resolve())
    model = train(stock, CONFIGURATION)
    unseen = made_once(
        stock.folder / "phantoms" / "fixture_unseen",
        lambda folder: turned_phantom(folder, 1, UNSEEN_SEED, UNSEEN_MM, "LPS"),
    )
    (scan,) = unseen.rglob("imagesTr/*.nii.gz")
    labels = stock.folder / "fixture_labels"
    shutil.rmtree(labels, ignore_errors=True)
    stock.predict(model, scan.parent, labels)
    OUT.mkdir(exist_ok=True)
    write_zip(model, OUT / "model.zip")
    shutil.copy(scan, OUT / "scan.nii.gz")
    (found,) = labels.glob("*.nii.gz")
    shutil.copy(found, OUT / "labels.nii.gz")


if __name__ == "__main__":
    main()
