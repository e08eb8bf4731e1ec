"""What is on the disk while series are pulled from an archive."""

from __future__ import annotations

import time

import pytest
from filelock import FileLock
from made_archive import Reply, made_up
from made_node import SHORT
from made_scans import write_series

from continual_segment.clinic.outputs import OutputConfig
from continual_segment.errors import ConfigError
from continual_segment.node.dicomweb import pull, services
from continual_segment.node.dicomweb.open import open_pull
from continual_segment.node.dicomweb.pull import (
    LOCK,
    PULLED,
    ArchiveRun,
    PullConfig,
    pulled_folder,
    segment_archive,
)
from continual_segment.node.dicomweb.services import FoundSeries, RetrieveLimits

UID = "1.2.3.4"
RELATED = 'multipart/related; type="application/dicom"; boundary="here"'
HEAD = b"--here\r\nContent-Type: application/dicom\r\n\r\n"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """The slices of a series, as bytes."""
    folder = tmp_path_factory.mktemp("pulled")
    return [path.read_bytes() for path in write_series(folder, SHORT, SeriesInstanceUID=UID)]


@pytest.fixture(autouse=True)
def without_a_model(monkeypatch):
    monkeypatch.setattr(pull, "request_of", lambda *given: {})


def related(*files):
    return Reply(b"".join(HEAD + each + b"\r\n" for each in files) + b"--here--\r\n", RELATED)


def pull_from(address):
    found = open_pull(address.replace("http:", "dicomweb+http:"), None, None)
    return PullConfig(found.archive, found.query, limits=RetrieveLimits(free_disk_mb=1.0))


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


SLOW = Reply(HEAD + bytes(10_000), RELATED, slow_seconds=0.05)
SILENT = Reply(HEAD, RELATED, slow_seconds=30.0)
AWAY = Reply(status=503)


@pytest.mark.parametrize("reply", [SLOW, SILENT, AWAY], ids=["slow", "silent", "away"])
def test_a_stop_does_not_wait_for_the_series_that_is_retrieved(tmp_path, images, monkeypatch, reply):
    monkeypatch.setattr(services, "FIRST_WAIT_SECONDS", 60.0)

    def interrupted(run, job):
        while len(asked) < 2:  # the next series is being retrieved
            time.sleep(0.05)
        started.append(time.monotonic())
        raise KeyboardInterrupt

    started = []
    monkeypatch.setattr(ArchiveRun, "_results", interrupted)
    every = [FoundSeries("1.2.3", uid, None) for uid in (UID, "1.2.3.5", "1.2.3.6")]
    with made_up(related(*images), reply) as (address, asked):
        run = ArchiveRun(pull_from(address), None, tmp_path / "out", OutputConfig())
        with pytest.raises(KeyboardInterrupt):
            run.segment(every)
        assert time.monotonic() - started[0] < 20
        assert len(asked) == 2
    assert list((tmp_path / "out").iterdir()) == []
