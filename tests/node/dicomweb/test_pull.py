"""What is on the disk while series are pulled from an archive."""

from __future__ import annotations

import json
import time

import pytest
from filelock import FileLock
from made_archive import Reply, made_up
from made_node import IDS, SHORT
from made_scans import ball_labels, write_series

from continual_segment.clinic.outputs import OutputConfig, Result
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
from continual_segment.node.dicomweb.services import JSON, FoundSeries, RetrieveLimits

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
    def segment_case(case, *given):
        volume = case.source.volume
        labels = ball_labels(volume.voxels, volume.grid, IDS)
        return Result(case, labels, None, None, False, 0.0)

    monkeypatch.setattr(pull, "request_of", lambda *given: {})
    monkeypatch.setattr(pull, "segment_case", segment_case)


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


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """An object of the series that is no CT image."""
    folder = tmp_path_factory.mktemp("report")
    dose_report = {"SOPClassUID": "1.2.840.10008.5.1.4.1.1.88.67", "SOPInstanceUID": "1.2.3.4.5"}
    one = SHORT.without(*range(1, 9))
    return write_series(folder, one, SeriesInstanceUID=UID, **dose_report)[0].read_bytes()


def segment_from(folder, *files, count):
    """Search the archive, which states this number of objects, and segment; return how often it retrieved."""
    values = {"0020000D": "1.2.3", "0020000E": UID, "00080060": "CT"}
    row = {tag: {"vr": "UI", "Value": [value]} for tag, value in values.items()}
    if count is not None:
        row["00201209"] = {"vr": "IS", "Value": [count]}
    pages = [Reply(json.dumps(each).encode(), JSON) for each in ([row], [])]
    with made_up(*pages, related(*files)) as (address, asked):
        assert segment_archive(pull_from(address), None, folder, OutputConfig()) == {}
    return sum("/studies/" in line for line, _, _ in asked)


def test_a_series_with_other_objects_than_images_is_retrieved_once(tmp_path, images, report):
    assert segment_from(tmp_path, *images, report, count=10) == 1
    assert (tmp_path / f"{UID}.nii.gz").exists()
    assert segment_from(tmp_path, *images, report, count=10) == 0
    assert segment_from(tmp_path, *images, report, count=None) == 0
    for path in (tmp_path / "pulled").iterdir():
        assert UID not in path.name + path.read_text()


def test_a_series_that_has_grown_is_retrieved_again(tmp_path, images, report):
    assert segment_from(tmp_path, *images[:-1], report, count=9) == 1
    assert segment_from(tmp_path, *images, report, count=10) == 1
    assert segment_from(tmp_path, *images, report, count=10) == 0


def test_results_without_a_record_count_by_their_images(tmp_path, images):
    """Of an earlier version, or of a run that was killed before the record."""
    segment_from(tmp_path, *images, count=9)
    (path,) = (tmp_path / "pulled").iterdir()
    path.unlink()
    assert segment_from(tmp_path, *images, count=9) == 0
    for damaged in ("{", '{"instances": "many"}'):
        path.write_text(damaged)
        assert segment_from(tmp_path, *images, count=9) == 0


def test_a_localiser_is_retrieved_once_until_it_has_more_slices(tmp_path, images):
    assert segment_from(tmp_path, *images[:2], count=2) == 1
    assert segment_from(tmp_path, *images[:2], count=2) == 0
    assert segment_from(tmp_path, *images, count=9) == 1
    assert (tmp_path / f"{UID}.nii.gz").exists()
    assert segment_from(tmp_path, *images, count=9) == 0


def test_a_localiser_of_an_archive_that_states_no_number_may_have_grown(tmp_path, images):
    assert segment_from(tmp_path, *images[:2], count=None) == 1
    assert segment_from(tmp_path, *images[:2], count=None) == 1
