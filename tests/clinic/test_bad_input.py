"""Bad input of every kind: one clear sentence, an exit code that is not 0, and nothing left behind."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import bad_files
import bad_series  # noqa: F401, both name their kinds in BAD
import numpy as np
import pytest
from bad_inputs import BAD
from made_scans import write_nifti, write_series

from continual_segment.cli.main import main
from continual_segment.clinic import segment as clinic_segment
from continual_segment.files import atomic
from continual_segment.model import Model
from continual_segment.segmentation import Segmenter


@pytest.fixture(scope="module")
def one_segmenter(shared_model_folder):
    return Segmenter(Model.open(shared_model_folder))


@pytest.fixture
def conseg(one_segmenter, shared_model_folder, monkeypatch, capsys):
    """Run the command with a model that is loaded once; give exit code and what was said."""
    monkeypatch.setattr(clinic_segment, "open_segmenter", lambda *_, **__: one_segmenter)

    def run(source, out, *options):
        code = main(["segment", str(source), "-m", str(shared_model_folder), "-o", str(out), *options])
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def test_there_are_more_than_forty_kinds():
    assert len(BAD) > 40


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_sentence_and_leaves_nothing(name, conseg, tmp_path):
    make, sentence = BAD[name]
    (tmp_path / "in").mkdir()
    code, said = conseg(make(tmp_path / "in"), tmp_path / "out")
    assert code in (1, 2)
    assert re.search(sentence, said, re.DOTALL), said
    assert "Traceback" not in said
    assert "unexpected" not in said
    assert len(re.findall(sentence, said)) <= 1  # said once
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_told_and_leaves_nothing(conseg, tmp_path, monkeypatch):
    def full(path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(atomic, "_force_to_disk", full)
    code, said = conseg(write_nifti(tmp_path / "a.nii"), tmp_path / "out")
    assert code == 1
    assert "No space left on device" in said
    assert not (tmp_path / "out").exists()


@pytest.fixture
def refuse(monkeypatch):
    """Take the right to read a file away; root, who may run tests, reads whatever the file system says."""
    opened = Path.open

    def forbid(path):
        def open_others(self, *arguments, **options):
            if self == path:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return opened(self, *arguments, **options)

        monkeypatch.setattr(Path, "open", open_others)
        monkeypatch.setattr(Path, "read_bytes", lambda self: self.open("rb").read())

    return forbid


def test_a_file_without_rights_is_reported(conseg, refuse, tmp_path):
    path = write_nifti(tmp_path / "a.nii")
    refuse(path)
    code, said = conseg(path, tmp_path / "out")
    assert code == 1
    assert f"{path}: the file cannot be read (Permission denied). Check its rights." in said


def test_one_slice_without_rights_is_told_and_not_left_out(conseg, refuse, tmp_path):
    path = write_series(tmp_path / "series")[9]
    refuse(path)
    code, said = conseg(tmp_path / "series", tmp_path / "out")
    assert code == 1
    assert f"{path}: Permission denied. Make all of the folder readable." in said
    assert not (tmp_path / "out").exists()


def test_an_output_on_a_read_only_disk_is_reported(conseg, tmp_path, monkeypatch):
    def read_only(self, *_, **__):
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    monkeypatch.setattr(Path, "mkdir", read_only)
    code, said = conseg(write_nifti(tmp_path / "a.nii"), tmp_path / "out")
    assert code == 1
    assert re.search("Read-only file system: '.*out'", said)
    assert [path.name for path in tmp_path.iterdir()] == ["a.nii"]


@pytest.mark.parametrize("out", ["file/out", "/proc/nowhere/out"])
def test_an_output_that_cannot_be_made_is_reported(out, conseg, tmp_path):
    (tmp_path / "file").write_text("in the way")
    code, said = conseg(write_nifti(tmp_path / "a.nii"), tmp_path / out)
    assert code in (1, 2)
    assert "out" in said
    assert "Traceback" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.nii", "file"]


def test_force_segments_what_does_not_look_like_a_ct(conseg, tmp_path):
    path = bad_files.nifti((bad_files.XYZ + 1024).astype(np.int16))(tmp_path)
    code, said = conseg(path, tmp_path / "out", "--force")
    assert (code, (tmp_path / "out" / "scan.nii.gz").is_file()) == (0, True), said
