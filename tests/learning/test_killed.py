"""kill -9 in the middle of learning costs no more than the time since the last checkpoint."""

import signal
import time

import pytest
import torch

from continual_segment.cli.main import main
from continual_segment.learning.step import run_folder

SLOW_STEP = """
[prepare]
spacing_mm = [16.0, 16.0, 16.0]
[network]
features = [4, 6]
kernels = [[1, 3, 3], [3, 3, 3]]
strides = [[1, 1, 1], [2, 2, 2]]
[patches]
size = [8, 16, 16]
[first]
iterations = 48
report_every = 12
optimiser = "adamw"
validation_batches = 1
[later]
iterations = 48
[body_parts.train]
iterations = 4
"""


@pytest.fixture
def command(datasets, tmp_path):
    """The words of `conseg learn` for a model folder."""
    (tmp_path / "slow.toml").write_text(SLOW_STEP)

    def words(folder):
        options = ["--preset", tmp_path / "slow.toml", "--name", "base"]
        return [str(word) for word in ("learn", datasets["totalseg"].folder, "-m", folder, *options)]

    return words


@pytest.fixture
def learn_in_a_process(command, python):
    return lambda folder: python("-m", "continual_segment.cli.main", *command(folder))


def wait_for(path, process, seconds=300):
    end = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, f"{path} did not appear in {seconds} s"
        time.sleep(0.02)


def test_a_killed_step_ends_with_the_same_bytes_as_an_unstopped_one(
    command, learn_in_a_process, tmp_path, contents, caplog
):
    killed, whole = tmp_path / "killed" / "model", tmp_path / "whole" / "model"
    checkpoint = run_folder(killed, "base") / "checkpoint.pt"
    process = learn_in_a_process(killed)
    wait_for(checkpoint, process)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    assert not killed.exists()
    done = torch.load(checkpoint, weights_only=True)["iteration"]
    assert 0 < done < 48

    with caplog.at_level("INFO"):
        assert main(command(killed)) == 0
    assert f"resumes after iteration {done} of 48" in caplog.text
    assert main(command(whole)) == 0
    assert contents(killed) == contents(whole)


def test_ctrl_c_says_how_to_go_on(learn_in_a_process, tmp_path):
    run = run_folder(tmp_path / "model", "base")
    process = learn_in_a_process(tmp_path / "model")
    wait_for(run / "checkpoint.pt", process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "run the same command again to resume" in said
    assert "Traceback" not in said
    assert torch.load(run / "checkpoint.pt", weights_only=True)["iteration"] < 48
