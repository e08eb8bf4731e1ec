"""kill -9 in the middle of learning costs no more than the time since the last checkpoint."""

import signal
import time

import pytest
import torch

from continual_segment.learning.step import run_folder

SLOW_STEP = """
[prepare]
spacing_mm = [12.0, 12.0, 12.0]
[network]
features = [4, 6]
kernels = [[1, 3, 3], [3, 3, 3]]
strides = [[1, 1, 1], [2, 2, 2]]
[patches]
size = [8, 16, 16]
[first]
iterations = 60
report_every = 20
optimiser = "adamw"
validation_batches = 1
[later]
iterations = 60
"""


@pytest.fixture
def learn_at_the_terminal(datasets, tmp_path, python):
    (tmp_path / "slow.toml").write_text(SLOW_STEP)

    def start(folder):
        return python(
            "-m", "continual_segment.cli.main", "learn", datasets["totalseg"].folder, "-m", folder,
            "--preset", tmp_path / "slow.toml", "--name", "base",
        )  # fmt: skip

    return start


def wait_until(happened, process, seconds=300):
    end = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_killed_step_ends_with_the_same_bytes_as_an_unstopped_one(
    learn_at_the_terminal, tmp_path, contents
):
    killed, whole = tmp_path / "killed" / "model", tmp_path / "whole" / "model"
    checkpoint = run_folder(killed, "base") / "checkpoint.pt"
    unstopped = learn_at_the_terminal(whole)
    process = learn_at_the_terminal(killed)
    wait_until(checkpoint.exists, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    assert not killed.exists()
    done = torch.load(checkpoint, weights_only=True)["iteration"]
    assert 0 < done < 60

    resumed = learn_at_the_terminal(killed)
    _, said = resumed.communicate(timeout=300)
    assert resumed.returncode == 0, said
    assert f"goes on after iteration {done} of 60" in said
    _, said = unstopped.communicate(timeout=300)
    assert unstopped.returncode == 0, said
    assert contents(killed) == contents(whole)


def test_ctrl_c_says_how_to_go_on(learn_at_the_terminal, tmp_path):
    folder = tmp_path / "stopped" / "model"
    process = learn_at_the_terminal(folder)
    wait_until((run_folder(folder, "base") / "log.csv").exists, process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "the same command goes on from there" in said
    assert "Traceback" not in said
    assert (run_folder(folder, "base") / "checkpoint.pt").exists()
