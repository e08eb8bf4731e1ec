"""The miniatures of the tutorials, as they are printed."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from continual_segment.cli.main import main
from continual_segment.files import read_labels
from continual_segment.model import Model

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
STOCK = ROOT / "tests" / "model" / "nnunet" / "stock"


def miniature(page):
    text = (DOCS / page).read_text(encoding="utf-8").partition("## A miniature")[2]
    return [shlex.split(line)[1:] for line in re.findall(r"^conseg .*$", text, re.MULTILINE)]


def test_the_miniature_of_the_tutorial_runs_and_the_imported_organs_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    commands = miniature("tutorial_totalsegmentator.md")
    assert [command[0] for command in commands] == [
        "import", "segment", "phantom", "prepare", "learn", "verify", "segment", "export",
    ]  # fmt: skip
    for command in commands:
        assert main(command) == 0, command
    model = Model.open("mini")
    assert set(model.pack_names) == {"body", "neck"}
    before, after = read_labels(Path("before/scan.nii.gz")), read_labels(Path("after/scan.nii.gz"))
    imported = np.isin(after.voxels, [organ.id for organ in model.pack("body").organs])
    assert np.array_equal(after.voxels[imported], before.voxels[imported])
    assert list(Path("neck_nnunet").rglob("checkpoint_final.pth"))


def test_labels_of_the_imported_model_are_those_of_stock_nnunet(tmp_path):
    """Stock nnU-Net 2.8.1 made `labels.nii.gz`; its classes are numbered, ours have ids."""
    assert main(["import", str(STOCK / "model.zip"), "-m", str(tmp_path / "m"), "--quiet"]) == 0
    assert main(["segment", str(STOCK / "scan.nii.gz"), "-m", str(tmp_path / "m"), "-o", str(tmp_path)]) == 0
    model = Model.open(tmp_path / "m")
    (pack,) = (model.pack(name) for name in model.pack_names)
    ids = np.array([0, *(organ.id for organ in pack.organs)])
    stock = read_labels(STOCK / "labels.nii.gz")
    assert len(np.unique(stock.voxels)) > 3
    found = read_labels(tmp_path / "scan.nii.gz")
    assert np.mean(ids[stock.voxels] == found.voxels) == pytest.approx(1, abs=1e-4)


def test_the_miniature_of_the_archive_runs_and_its_shards_have_every_case(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    commands = miniature("tutorials/archive.md")
    for command in commands[:-1]:
        assert main(command) == 0, command
    cases = {path.name.removesuffix("_0000.nii.gz") for path in Path("raw").glob("*/imagesTr/*")}
    assert {path.stem for path in Path("results/manifest").iterdir()} == cases
    before = {path: path.stat().st_mtime_ns for path in Path("results").glob("*.nii.gz")}
    assert len(before) == len(cases) == 6
    assert main(commands[-1]) == 0  # nothing is left to do
    assert {path: path.stat().st_mtime_ns for path in Path("results").glob("*.nii.gz")} == before


def test_the_miniature_of_ones_own_dataset_runs_and_has_two_packs_and_scores(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in miniature("tutorials/own_dataset.md"):
        assert main(command) == 0, command
    assert set(Model.open("mymodel").pack_names) == {"body", "neck"}
    assert Path("scores/evaluation.json").is_file()
    assert Path("neck.pack").is_file()
