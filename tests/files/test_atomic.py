"""A file is there whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from filelock import FileLock

from continual_segment.files import atomic_path, write_json, write_text
from continual_segment.files.atomic import files_of_interrupted, staged


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


NAMES = ("a", "m/done", "m/zz", "z/deep/b")


def write_staged(folder, text, names=NAMES, outdated=()):
    """Results in several folders, of which `m/done` shows that the others are there."""
    with staged(folder, "m/done", outdated) as stage:
        for name in names:
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            (stage / name).write_text(text)


def texts_in(folder):
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    return {str(path.relative_to(folder)): path.read_text() for path in files}


class Killed(BaseException):
    pass


def killed_at(step, monkeypatch):
    """Raise before the step-th change of a visible file; return the changes that were made."""
    made = []

    def counted(change):
        def changed(path, *target, **options):
            seen = target[0] if target else path
            if ".unfinished" not in str(seen):
                if len(made) == step:
                    raise Killed
                made.append(seen)
            return change(path, *target, **options)

        return changed

    for name in ("replace", "unlink"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    return made


@pytest.mark.parametrize("step", range(7))
def test_the_last_file_is_there_only_where_all_others_are_of_the_same_run(step, tmp_path, monkeypatch):
    folder = tmp_path / "out"
    write_staged(folder, "old")
    made = killed_at(step, monkeypatch)
    if step < 5:
        with pytest.raises(Killed):
            write_staged(folder, "new")
    else:
        write_staged(folder, "new")
        assert len(made) == 5  # the old mark is removed, four files move
    found = texts_in(folder)
    assert "m/done" not in found or len(set(found.values())) == 1


@pytest.mark.parametrize("step", range(6))
def test_files_that_are_not_made_again_go_after_the_mark_and_are_listed_until_the_new_one_is_there(
    step, tmp_path, monkeypatch
):
    folder = tmp_path / "out"
    write_staged(folder, "old")
    with monkeypatch.context() as patched:
        made = killed_at(step, patched)
        with suppress(Killed):
            write_staged(folder, "new", ("c", "m/done"), list(map(Path, NAMES)))
    found = texts_in(folder)
    assert len(made) == min(step, 6)  # the old mark and three files are removed, two move
    assert "m/done" not in found or len(set(found.values())) == 1
    listed = files_of_interrupted(folder, Path("m/done"))
    assert set(found) <= set(listed)
    write_staged(folder, "third", ("d", "m/done"), list(map(Path, listed)))
    assert texts_in(folder) == {"d": "third", "m/done": "third"}
    assert files_of_interrupted(folder, Path("m/done")) == []


@pytest.mark.parametrize("content", ["{", "7", '{"a": 1}', "[1, null]"])
def test_a_damaged_list_names_no_file(tmp_path, content):
    (tmp_path / ".unfinished-done").write_text(content)
    assert files_of_interrupted(tmp_path, Path("done")) == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are named under /proc on Linux")
def test_every_folder_that_got_a_file_is_forced_to_the_disk_before_the_last_file_moves(tmp_path, monkeypatch):
    """Seen through the descriptors that are synchronised, in order, with the moves between them."""
    events = []
    fsync, replace = os.fsync, Path.replace

    def seen_fsync(handle):
        events.append(Path(f"/proc/self/fd/{handle}").resolve())
        fsync(handle)

    def seen_replace(path, target):
        events.append((path.name, target))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(Path, "replace", seen_replace)
    folder = tmp_path / "new" / "out"
    write_staged(folder, "text")
    moved = events.index(("done", folder / "m" / "done"))
    assert {folder, folder / "m", folder / "z", folder / "z" / "deep"} <= set(events[:moved])
    assert {folder, folder / "m", folder.parent, tmp_path} <= set(events[moved:])


def test_what_fails_while_it_is_made_keeps_the_old_results(tmp_path):
    def fail() -> None:
        with staged(tmp_path / "out", last="m/done") as stage:
            (stage / "a").write_text("new")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert not (tmp_path / "out").exists()
    write_staged(tmp_path / "out", "old")
    with pytest.raises(OSError, match="disk full"):
        fail()
    assert set(texts_in(tmp_path / "out").values()) == {"old"}


STAGES = ".unfinished"
HOLD = """
import sys
from continual_segment.files.atomic import staged
with staged(sys.argv[1], "done") as stage:
    (stage / "done").write_text("patient")
    print(stage, flush=True)
    sys.stdin.readline()
"""


def hidden_in(folder):
    return sorted(path.name for path in (folder / STAGES).glob("*"))


def test_what_a_killed_process_left_is_removed_by_the_next_and_what_one_needs_that_lives_is_not(
    tmp_path, python
):
    """As in shards of a batch, which write into one folder."""
    killed, living = (python("-c", HOLD, tmp_path, stdin=subprocess.PIPE) for _ in range(2))
    stages = [Path(process.stdout.readline().strip()) for process in (killed, living)]
    killed.kill()
    killed.wait()
    assert len(hidden_in(tmp_path)) == 2
    write_staged(tmp_path, "text")
    assert hidden_in(tmp_path) == [stages[1].parent.name]
    _, problems = living.communicate("\n")
    assert living.returncode == 0, problems
    assert (tmp_path / "done").read_text() == "patient"
    assert not (tmp_path / STAGES).exists()


def test_a_stage_of_this_process_is_not_taken_for_abandoned(tmp_path):
    with staged(tmp_path, "first") as stage:
        (stage / "first").write_text("1")
        with staged(tmp_path, "second") as other:
            (other / "second").write_text("2")
    assert texts_in(tmp_path) == {"first": "1", "second": "2"}


def test_a_stage_of_another_machine_is_left_alone_for_a_day(tmp_path, monkeypatch):
    """Its lock may not be seen here."""
    with monkeypatch.context() as patched, suppress(Killed):
        patched.setattr("platform.node", lambda: "elsewhere")
        patched.setattr("continual_segment.files.atomic._remove", lambda path: None)
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        with staged(tmp_path, "done") as stage:
            raise Killed
    write_staged(tmp_path, "text")
    assert stage.is_dir()
    yesterday = time.time() - 25 * 3600
    os.utime(stage.parent, (yesterday, yesterday))
    write_staged(tmp_path, "text")
    assert not (tmp_path / STAGES).exists()


def test_without_locks_results_are_written_as_well(tmp_path, monkeypatch):
    def no_locks(lock):
        raise NotImplementedError("FileSystem does not appear to support flock")

    monkeypatch.setattr(FileLock, "acquire", no_locks)
    with staged(tmp_path, "done") as stage:
        (stage / "done").write_text("1")
        write_staged(tmp_path, "text")  # another process would do the same
    assert (tmp_path / "done").read_text() == "1"
    assert not (tmp_path / STAGES).exists()


def test_a_stage_that_is_taken_for_abandoned_before_it_is_locked_costs_nothing(tmp_path, monkeypatch):
    acquire, removed = FileLock.acquire, []

    def late(lock):
        if not removed:
            removed.append(Path(lock.lock_file).parent)
            shutil.rmtree(removed[0])
        return acquire(lock)

    monkeypatch.setattr(FileLock, "acquire", late)
    write_staged(tmp_path, "text")
    assert removed
    assert texts_in(tmp_path)["a"] == "text"
    assert not (tmp_path / STAGES).exists()


def test_a_folder_of_a_stranger_does_not_make_a_stage_of_files_elsewhere(tmp_path):
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    (elsewhere / "deadbeef").mkdir(parents=True)
    (elsewhere / "deadbeef" / "mine").touch()
    os.utime(elsewhere / "deadbeef", (0, 0))
    out.mkdir()
    (out / STAGES).symlink_to(elsewhere)
    write_staged(out, "text")
    (out / STAGES).unlink()
    (out / STAGES).mkdir()
    (out / STAGES / "deadbeef").symlink_to(elsewhere / "deadbeef")
    write_staged(out, "text")
    assert (elsewhere / "deadbeef" / "mine").exists()
