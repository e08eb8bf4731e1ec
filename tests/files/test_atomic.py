"""A file is there whole or not at all."""

from __future__ import annotations

import json

import pytest

from continual_segment.files import atomic_path, write_json, write_text


def names_in(folder):
    return [path.name for path in folder.iterdir()]


def test_a_finished_file_takes_its_name(tmp_path):
    with atomic_path(tmp_path / "deep" / "scan.nii.gz") as unfinished:
        unfinished.write_text("whole")
        assert unfinished.name.endswith(".nii.gz")
        assert not (tmp_path / "deep" / "scan.nii.gz").exists()
    assert (tmp_path / "deep" / "scan.nii.gz").read_text() == "whole"
    assert names_in(tmp_path / "deep") == ["scan.nii.gz"]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_an_error_keeps_the_old_file_and_leaves_nothing_behind(tmp_path, error):
    (tmp_path / "model.json").write_text("old")

    def write_half() -> None:
        with atomic_path(tmp_path / "model.json") as unfinished:
            unfinished.write_text("ha")
            raise error

    with pytest.raises(type(error)):
        write_half()
    assert (tmp_path / "model.json").read_text() == "old"
    assert names_in(tmp_path) == ["model.json"]


def test_a_folder_can_be_written_whole_too(tmp_path):
    with atomic_path(tmp_path / "pack") as unfinished:
        unfinished.mkdir()
        (unfinished / "weights").write_text("1")
    assert (tmp_path / "pack" / "weights").read_text() == "1"
    assert names_in(tmp_path) == ["pack"]


def test_a_half_written_folder_is_removed(tmp_path):
    def write_half() -> None:
        with atomic_path(tmp_path / "pack") as unfinished:
            unfinished.mkdir()
            (unfinished / "weights").write_text("1")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_half()
    assert names_in(tmp_path) == []


def test_written_files_have_the_rights_the_user_s_umask_gives(tmp_path):
    write_text(tmp_path / "ours", "text")
    (tmp_path / "plain").write_text("text")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_text_and_json_come_back(tmp_path):
    write_text(tmp_path / "note.txt", "Ösophagus")
    write_json(tmp_path / "data.json", {"organ": "Ösophagus", "id": 42})
    assert (tmp_path / "note.txt").read_text(encoding="utf-8") == "Ösophagus"
    assert json.loads((tmp_path / "data.json").read_text(encoding="utf-8")) == {
        "organ": "Ösophagus",
        "id": 42,
    }


def test_data_that_is_no_json_changes_nothing(tmp_path):
    write_json(tmp_path / "data.json", {"id": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "data.json", {"id": object()})
    assert json.loads((tmp_path / "data.json").read_text()) == {"id": 1}
    assert names_in(tmp_path) == ["data.json"]
