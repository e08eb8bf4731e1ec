"""`conseg prepare` at the terminal."""

import argparse
import json
import shlex
import shutil

import nibabel
import numpy as np
import pytest

from continual_segment.cli import prepare as verb
from continual_segment.cli.main import main
from continual_segment.data.prepared import PreparedDataset
from continual_segment.errors import ConfigError, DatasetError
from continual_segment.model import Model
from continual_segment.training import history


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def raw_folder(here):
    """Four TotalSegmentator cases; in the first, liver and spleen overlap."""
    folder = here / "my scans"
    scan = np.random.default_rng(0).integers(-900, 900, (16, 16, 16)).astype(np.int16)
    for number in range(4):
        masks = {"liver": np.zeros(scan.shape, np.uint8), "spleen": np.zeros(scan.shape, np.uint8)}
        masks["liver"][2:12, 2:12, 2:12] = 1
        masks["spleen"][11 if number == 0 else 12 :, 2:12, 2:12] = 1
        save(folder / f"s{number}" / "ct.nii.gz", scan)
        for organ, mask in masks.items():
            save(folder / f"s{number}" / "segmentations" / f"{organ}.nii.gz", mask)
    return folder


def save(path, voxels):
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(voxels, np.diag([3.0, 3.0, 3.0, 1.0])), path)


def conseg(*arguments):
    parser = argparse.ArgumentParser(prog="conseg")
    verb.add_parser(parser.add_subparsers())
    args = parser.parse_args(["prepare", "--workers", "1", *map(str, arguments)])
    return args.run(args)


def test_it_says_where_the_result_is_and_what_to_type_next(raw_folder, here, capsys):
    assert conseg(raw_folder, "--preset", "tiny") == 0
    shown = capsys.readouterr().out
    dataset = PreparedDataset.open(here / "my scans_prepared")
    counts = [len(dataset.case_names(split)) for split in ("train", "validation", "test")]
    assert "4 cases ({} train, {} validation, {} test), 2 organs, 16 x 16 x 16 mm".format(*counts) in shown
    assert "Prepared in my scans_prepared" in shown
    assert "Next: conseg learn 'my scans_prepared' -m mymodel --preset tiny --name my_scans\n" in shown


def test_overlapping_masks_are_noted(raw_folder, capsys):
    conseg(raw_folder, "--preset", "tiny")
    assert "Note: The masks of liver and spleen overlap" in capsys.readouterr().out


def test_a_spacing_of_ones_own(raw_folder, here):
    conseg(raw_folder, "--preset", "tiny", "--spacing", "6", "3", "4", "-o", here / "out")
    dataset = PreparedDataset.open(here / "out")
    assert dataset.config.spacing_mm == (6.0, 3.0, 4.0)
    assert dataset.case("s0").shape == (8, 16, 12)


def hint(shown):
    """The words of the command that was printed last."""
    return shlex.split(shown.splitlines()[-1].removeprefix("Next: conseg "))


def test_the_command_it_prints_works_as_printed(raw_folder, preset, capsys, monkeypatch):
    monkeypatch.setattr(history, "curves_png", lambda rows: b"")
    conseg(raw_folder, "--preset", "tiny")
    assert main(hint(capsys.readouterr().out)) == 0
    for name in ("my_scans_2", "my_scans_3"):  # the model takes the same dataset again, under another name
        conseg(raw_folder, "--model", "mymodel")
        assert main(hint(capsys.readouterr().out)) == 0
        assert name in Model.open("mymodel").pack_names
        trained = Model.open("mymodel").pack(name).card["train"]
        assert trained["iterations"] == preset.later.iterations  # of the preset that the model was made with
    conseg(raw_folder, "--preset", "tiny", "-o", "again")
    assert "-m mymodel_2 " in capsys.readouterr().out  # a new model is asked for


def test_with_too_few_cases_it_says_so_in_place_of_a_command(raw_folder, capsys):
    for number in (2, 3):
        shutil.rmtree(raw_folder / f"s{number}")
    conseg(raw_folder, "--preset", "tiny")
    shown = capsys.readouterr().out
    assert "Next:" not in shown
    assert "validation split" in shown


def test_a_model_decides_how_its_next_dataset_is_prepared(raw_folder, base_model_folder, preset):
    conseg(raw_folder, "--model", base_model_folder)
    assert PreparedDataset.open("my scans_prepared").config == preset.prepare


def test_given_again_it_reads_no_scan(raw_folder, monkeypatch, capsys):
    conseg(raw_folder, "--preset", "tiny")
    monkeypatch.setattr(
        "continual_segment.data.check.read_scan", lambda path: pytest.fail(f"{path} was read")
    )
    assert conseg(raw_folder, "--preset", "tiny") == 0


def test_all_broken_cases_are_listed_before_anything_is_written(raw_folder, here):
    for number in (1, 2):
        (raw_folder / f"s{number}" / "ct.nii.gz").write_bytes(b"\x1f\x8b nothing")
    with pytest.raises(DatasetError, match=r"s1(.|\n)*s2"):
        conseg(raw_folder, "--preset", "tiny")
    assert not (here / "my scans_prepared").exists()


@pytest.mark.parametrize("wrong", [["--spacing", "0", "1", "1"], ["--spacing", "1", "1", "1", "-m", "model"]])
def test_a_spacing_that_cannot_be_is_one_sentence(raw_folder, wrong):
    preset = [] if "-m" in wrong else ["--preset", "tiny"]
    with pytest.raises(ConfigError, match="--spacing"):
        conseg(raw_folder, *preset, *wrong)


def test_the_help_names_the_three_layouts(capsys):
    with pytest.raises(SystemExit):
        conseg("--help")
    shown = capsys.readouterr().out
    assert all(layout in shown for layout in ("nnU-Net", "TotalSegmentator", "Decathlon"))


def test_a_prepared_dataset_is_no_raw_one(raw_folder, here):
    conseg(raw_folder, "--preset", "tiny")
    with pytest.raises(DatasetError, match="my scans_prepared"):
        conseg("my scans_prepared", "--preset", "tiny")
    assert json.loads((here / "my scans_prepared" / "dataset.json").read_text())["name"] == "my scans"
