"""What is on the disk while series are pulled from an archive."""

from __future__ import annotations

import pytest
from filelock import FileLock

from continual_segment.clinic.outputs import OutputConfig
from continual_segment.errors import ConfigError
from continual_segment.node.dicomweb.open import open_pull
from continual_segment.node.dicomweb.pull import LOCK, PULLED, pulled_folder, segment_archive


def test_what_a_killed_run_left_is_deleted_and_what_another_run_uses_is_not(tmp_path):
    left, used = tmp_path / f"{PULLED}left", tmp_path / f"{PULLED}used"
    for folder in (left, used):
        folder.mkdir()
        (folder / "slice.dcm").write_bytes(b"x")
    with FileLock(used / LOCK), pulled_folder(tmp_path) as own:
        assert not left.exists()
        assert (used / "slice.dcm").exists()
        (own / "slice.dcm").write_bytes(b"x")
    assert not own.exists()


@pytest.mark.parametrize(
    ("out", "settings", "stow", "reason"),
    [
        ("out.nii.gz", {}, None, "folder"),
        ("out", {"series": "2"}, None, "address"),
        ("out", {"pick": "all"}, None, "address"),
        ("out", {"formats": ("nifti",)}, "", "dicom_seg"),
    ],
)
def test_options_that_an_archive_cannot_have_are_refused_at_once(tmp_path, out, settings, stow, reason):
    pull = open_pull("dicomweb://archive.invalid/root", stow, None)
    with pytest.raises(ConfigError, match=reason):
        segment_archive(pull, None, tmp_path / out, OutputConfig(**settings))
