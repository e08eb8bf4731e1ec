"""The public API as a user's script sees it: listed, typed, light to import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import SimpleITK

import continual_segment as cs
from continual_segment.files import read_scan

INIT = Path(cs.__file__)

GOOD = """
from pathlib import Path

import numpy as np

import continual_segment as cs

model = cs.Model.open("mymodel")
names: tuple[str, ...] = model.pack_names
volume = cs.Volume.from_array(np.zeros((3, 4, 5), np.int16), np.eye(4))
result = cs.Segmenter(model, organs=["liver", "kidney_left"])(Path("ct.nii.gz"), scores=True)
liver = result.labels.mask("liver")
result.labels.write("labels.nii.gz")
model = model.add("larynx.pack")
pack = cs.learn("prepared/", Path("mymodel"), preset="laptop")
table: str = cs.evaluate("results", "raw").table()
"""
BAD = """
import continual_segment as cs

cs.Model.opne("mymodel")
cs.Volume.read(3)
cs.Segmentor
cs.Segmenter(cs.Model.open("mymodel"))("ct.nii.gz").label
"""


def test_a_type_checker_accepts_a_good_script_and_finds_every_mistake_of_a_bad_one(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "bad.py").write_text(BAD)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", str(tmp_path)]
    found = subprocess.run([*mypy, "good.py", "bad.py"], cwd=tmp_path, capture_output=True, text=True).stdout
    wrong = [line.split(":")[:2] for line in found.splitlines() if ": error:" in line]
    assert wrong == [["bad.py", str(number)] for number in (4, 5, 6, 7)], found


def test_the_names_for_type_checkers_are_those_that_are_imported() -> None:
    tree = ast.parse(INIT.read_text(encoding="utf-8"))
    (checked,) = [
        node for node in tree.body if isinstance(node, ast.If) and "not" not in ast.unparse(node.test)
    ]
    typed = {
        alias.asname: str(node.module).removeprefix("continual_segment.")
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == cs._HOMES
    assert set(dir(cs)) == {*typed, "__version__"}
    for name in typed:
        assert getattr(cs, name).__name__ == name


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, continual_segment; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Segmentor"):
        cs.Segmentor  # noqa: B018


def test_the_script_of_the_readme_runs(
    base_folder: Path, scan_path: Path, datasets, preset, tmp_path: Path
) -> None:
    """Ten lines that every researcher wants."""
    image = nib.load(scan_path)
    model = cs.Model.open(str(base_folder))
    organ = next(iter(model.organs))
    result = cs.Segmenter(model, organs=[organ])(image)
    mask = result.labels.mask(organ)
    assert mask.shape == image.shape
    nib.save(result.labels.to_nibabel(), tmp_path / "labels.nii.gz")
    assert nib.load(tmp_path / "labels.nii.gz").shape == image.shape
    cs.learn(datasets["chest"].folder, base_folder, preset=preset, name="chest")
    model = cs.Model.open(base_folder)
    model.export("chest", tmp_path / "chest.pack")
    assert model.remove("chest").add(str(tmp_path / "chest.pack")).pack_names == model.pack_names


def test_a_scan_may_be_a_path_or_an_image_of_another_library(base_folder: Path, scan_path: Path) -> None:
    segmenter = cs.Segmenter(cs.Model.open(base_folder))
    expected = segmenter(read_scan(scan_path)).labels.voxels
    for scan in (scan_path, str(scan_path), nib.load(scan_path), SimpleITK.ReadImage(scan_path)):
        np.testing.assert_array_equal(segmenter(scan).labels.voxels, expected)
    with pytest.raises(TypeError, match="ndarray"):
        segmenter(expected)  # type: ignore[arg-type]
