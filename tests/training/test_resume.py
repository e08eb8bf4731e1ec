"""Stopped runs go on and end as if they had not been stopped."""

import errno
import os
import signal
import subprocess
import time

import pytest
import torch

from continual_segment.errors import ContinualSegmentError
from continual_segment.training import TrainConfig
from continual_segment.training.checkpoint import load_checkpoint, save_checkpoint
from continual_segment.training.train import numbered_batches


class Asked:
    """A loss that sends this process a signal at some batch, as Ctrl-C does."""

    def __init__(self, run, at, number=signal.SIGINT):
        self.run, self.at, self.number = run, at, number

    def __call__(self, images, labels):
        loss = self.run.loss_of(images, labels)
        if self.run.batches_seen == self.at:
            os.kill(os.getpid(), self.number)
        return loss


@pytest.fixture
def unstopped(make_run):
    run = make_run("unstopped")
    run.go()
    return run


@pytest.mark.parametrize("at", [1, 4, 7])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_stopped_by_a_signal_ends_as_an_unstopped_one(number, at, make_run, unstopped):
    stopped = make_run("stopped")
    with pytest.raises(KeyboardInterrupt, match=f"stopped after iteration {at}"):
        stopped.go(Asked(stopped, at, number))
    resumed = make_run("stopped")
    rows = resumed.go()
    assert resumed.batches_seen == 10 - at  # nothing is done twice
    assert torch.equal(resumed.weights, unstopped.weights)
    assert [row["iteration"] for row in rows] == [4, 8, 10]


def test_a_resumed_run_counts_all_its_time(make_run):
    stopped = make_run("stopped")

    def slow(images, labels):
        time.sleep(0.1)
        return Asked(stopped, at=3)(images, labels)

    with pytest.raises(KeyboardInterrupt):
        stopped.go(slow)  # before its first report
    rows = make_run("stopped").go()
    assert rows[0]["seconds"] >= 0.3


def test_a_run_that_dies_repeats_only_what_came_after_its_last_checkpoint(make_run, unstopped):
    dying = make_run("dying")

    def die(images, labels):
        if dying.batches_seen == 6:
            raise RuntimeError("the power went")
        return dying.loss_of(images, labels)

    with pytest.raises(RuntimeError):
        dying.go(die)
    resumed = make_run("dying")
    resumed.go()
    assert resumed.batches_seen == 6  # iterations 5 to 10
    assert torch.equal(resumed.weights, unstopped.weights)


def test_a_signal_in_the_last_iteration_stops_nothing(make_run, unstopped):
    run = make_run("last")
    run.go(Asked(run, 10))
    assert torch.equal(run.weights, unstopped.weights)


def test_a_finished_run_is_not_run_again(make_run, unstopped):
    again = make_run("unstopped")
    rows = again.go()
    assert again.batches_seen == 0
    assert torch.equal(again.weights, unstopped.weights)
    assert rows[-1]["iteration"] == 10


def test_a_checkpoint_of_other_settings_is_refused(make_run, unstopped):
    other = make_run("unstopped", signature="other settings")
    with pytest.raises(ContinualSegmentError, match=r"checkpoint\.pt: ") as caught:
        other.go()
    assert f"delete {unstopped.folder} to start anew" in str(caught.value)


def full_disk(state, path):
    path.write_bytes(b"half a checkpoint")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_the_earlier_checkpoint_whole(make_run, monkeypatch, unstopped):
    run = make_run("full")

    def fill_disk_after_the_first_checkpoint(images, labels):
        if run.batches_seen == 5:
            monkeypatch.setattr(torch, "save", full_disk)
        return run.loss_of(images, labels)

    with pytest.raises(ContinualSegmentError, match=r"8 iterations.*No space") as full:
        run.go(fill_disk_after_the_first_checkpoint)
    assert "run the same command again" in str(full.value)
    monkeypatch.undo()
    files = {path.name for path in run.folder.iterdir()}
    assert files == {"checkpoint.pt", "log.csv", "curves.png"}  # no half-written neighbour
    assert load_checkpoint(run.folder / "checkpoint.pt", run.signature)["iteration"] == 4
    resumed = make_run("full")
    resumed.go()
    assert torch.equal(resumed.weights, unstopped.weights)


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small file system cannot be mounted here: that needs the rights of root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_is_really_full_gives_the_same_sentence(tiny_disk):
    path = tiny_disk / "checkpoint.pt"
    save_checkpoint(path, {"signature": "s", "iteration": 4, "weights": torch.zeros(20_000)})
    with pytest.raises(ContinualSegmentError, match="after 8 iterations could not be written"):
        save_checkpoint(path, {"signature": "s", "iteration": 8, "weights": torch.ones(80_000)})
    assert load_checkpoint(path, "s")["iteration"] == 4
    assert [each.name for each in tiny_disk.iterdir()] == ["checkpoint.pt"]


class Handlers:
    """Batches that tell what their process does with a stop."""

    def __getitem__(self, number):
        ignored = [signal.getsignal(each) is signal.SIG_IGN for each in (signal.SIGINT, signal.SIGTERM)]
        return torch.tensor(ignored), torch.zeros(1)


def test_workers_leave_it_to_the_loop_when_to_stop():
    """A batch system and Ctrl-C signal all processes: a worker that ends takes the checkpoint with it."""
    config = TrainConfig(iterations=1, workers=1)
    ((ignored, _),) = numbered_batches(Handlers(), 0, config)
    assert ignored.all()
