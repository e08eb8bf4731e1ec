import argparse
import json

import numpy as np
import pytest

from continual_segment.cli import evaluate as verb
from continual_segment.errors import DatasetError
from continual_segment.files import write_labels
from continual_segment.volume import Grid, LabelMap

NAMES = {1: "liver", 2: "spleen"}


def labels(spleen_from=3, spacing_mm=2.0):
    voxels = np.zeros((4, 6, 8), np.uint8)
    voxels[:2, :2, :2] = 1
    voxels[2:, spleen_from:, 4:] = 2
    return LabelMap(voxels, Grid(voxels.shape, np.diag([spacing_mm] * 3 + [1])), NAMES)


@pytest.fixture
def folders(tmp_path):
    for case, spleen_from in (("a", 3), ("b", 4)):
        write_labels(tmp_path / "predictions" / f"{case}.nii.gz", labels(spleen_from))
        write_labels(tmp_path / "truth" / f"{case}.nii.gz", labels())
    return [str(tmp_path / "predictions"), str(tmp_path / "truth")]


def conseg(*arguments):
    parser = argparse.ArgumentParser(prog="conseg")
    verb.add_parser(parser.add_subparsers())
    args = parser.parse_args(["evaluate", "--workers", "1", *arguments])
    return args.run(args)


def test_the_table_is_shown_and_the_files_are_written(folders, tmp_path, capsys):
    assert conseg(*folders, "-o", str(tmp_path / "out")) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines() if not line.startswith("-")] == [
        "organ",
        "liver",
        "spleen",
        "mean",
    ]
    assert (tmp_path / "out" / "scores.csv").is_file()
    assert (tmp_path / "out" / "organs.csv").is_file()
    written = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert written["mean"]["dice"] == pytest.approx((1 + (1 + 0.8) / 2) / 2)


def test_json_is_all_that_json_prints(folders, tmp_path, capsys):
    conseg(*folders, "-o", str(tmp_path / "out"), "--json")
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((tmp_path / "out" / "evaluation.json").read_text())


def test_without_an_output_nothing_is_written(folders, tmp_path):
    before = set(tmp_path.rglob("*"))
    conseg(*folders)
    assert set(tmp_path.rglob("*")) == before


def test_test_cases_are_scored_where_prepare_wrote_its_default_folder(
    raw_folders, datasets, tmp_path, monkeypatch, capsys
):
    raw = raw_folders["chest"]
    monkeypatch.chdir(tmp_path)
    conseg(str(raw / "labelsTr"), str(raw), "--json")
    shown = capsys.readouterr()
    assert json.loads(shown.out)["split"] == "all"
    (tmp_path / f"{raw.name}_prepared").symlink_to(datasets["chest"].folder)
    conseg(str(raw / "labelsTr"), str(raw), "--json")
    shown = capsys.readouterr()
    test_cases = datasets["chest"].case_names("test")
    assert json.loads(shown.out)["cases_per_split"] == {
        "train": 0,
        "validation": 0,
        "test": len(test_cases),
        "unknown": 0,
    }
    assert f"{raw.name}_prepared" in shown.err
    assert f"Cases scored: {len(test_cases)} ({len(test_cases)} test" in shown.err


def test_how_many_training_cases_were_scored_is_shown(raw_folders, datasets, caplog):
    raw, prepared = raw_folders["chest"], datasets["chest"]
    conseg(str(raw / "labelsTr"), str(raw), "--split", "all", "--prepared", str(prepared.folder))
    train, count = len(prepared.case_names("train")), len(prepared.splits)
    assert f"{train} of {count} cases scored were used for training" in caplog.text


def test_organs_are_picked_by_name(folders, capsys):
    conseg(*folders, "--json", "--organs", "Spleen,")
    assert [organ["name"] for organ in json.loads(capsys.readouterr().out)["organs"]] == ["spleen"]


def test_a_case_that_cannot_be_scored_is_told_and_ends_with_code_one(folders, tmp_path, capsys):
    write_labels(tmp_path / "predictions" / "b.nii.gz", labels(spacing_mm=3.0))
    write_labels(tmp_path / "truth" / "c.nii.gz", labels())
    assert conseg(*folders) == 1
    printed = capsys.readouterr().err
    assert "not scored: b: " in printed
    assert "1 case without a prediction: c" in printed


def test_forgetting_is_told_against_the_best_earlier_step(folders, tmp_path, capsys):
    conseg(folders[1], folders[1], "-o", str(tmp_path / "step1"))  # perfect
    conseg(*folders, "-o", str(tmp_path / "step2"))
    capsys.readouterr()
    earlier = ["--earlier", str(tmp_path / "step1"), str(tmp_path / "step2")]
    conseg(*folders, "--json", *earlier)
    assert json.loads(capsys.readouterr().out)["forgetting"] == pytest.approx(
        {"step": 3, "absolute": 0.05, "relative": 0.05}
    )
    conseg(*folders, *earlier)
    assert "0.0500 DSC (5.00 %)" in capsys.readouterr().out


def test_forgetting_between_different_organs_is_refused(folders, tmp_path):
    conseg(*folders, "-o", str(tmp_path / "step1"), "--organs", "liver")
    with pytest.raises(DatasetError, match="other cases or organs"):
        conseg(*folders, "--earlier", str(tmp_path / "step1"))


@pytest.mark.parametrize("wrong", [["--workers", "0"], ["--workers", "two"], ["--organs", ","]])
def test_an_option_that_cannot_be_is_refused(folders, wrong, capsys):
    with pytest.raises(SystemExit):
        conseg(*folders, *wrong)
    assert "from 1 on was expected" in capsys.readouterr().err or wrong[0] == "--organs"


def test_the_help_shows_commands_and_says_what_is_written(capsys):
    with pytest.raises(SystemExit):
        conseg("--help")
    shown = capsys.readouterr().out
    assert "conseg evaluate predictions/ Dataset101_Chest/ -o scores/" in shown
    assert "evaluation.json" in shown
