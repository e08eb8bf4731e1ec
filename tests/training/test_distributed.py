"""Several processes that train one network: gloo on the CPU, as torchrun starts them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import together
import torch
from several_processes import SOURCE, run_together

from continual_segment.errors import ContinualSegmentError
from continual_segment.training import distributed, interrupt
from continual_segment.training.checkpoint import load_checkpoint, save_checkpoint

SCRIPT = Path(together.__file__)
OWN = {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module", params=[2, 3])
def trained(request, tmp_path_factory):
    """How many processes, and where each of them left its weights."""
    folder = tmp_path_factory.mktemp("together")
    codes, errors = run_together(request.param, SCRIPT, "all_trainings", folder)
    assert codes == [0] * request.param, errors
    return request.param, folder


@pytest.mark.parametrize("name", together.TRAININGS)
def test_updates_of_several_processes_are_those_of_one_with_all_their_patches(name, trained, tmp_path):
    processes, folder = trained
    alone = together.TRAININGS[name](tmp_path / "alone", ranks=range(processes))
    found = torch.load(folder / f"{name}_0.pt", weights_only=True)
    assert found.keys() == alone.keys()
    for key, tensor in alone.items():
        # AdamW enlarges the rounding of a gradient of 0, that of a bias before a norm, to 1e-9 per update
        torch.testing.assert_close(found[key], tensor, rtol=1e-7, atol=1e-8, msg=key)


@pytest.mark.parametrize("name", together.TRAININGS)
def test_all_processes_end_with_the_same_bits(name, trained):
    processes, folder = trained
    first, *others = (
        torch.load(folder / f"{name}_{rank}.pt", weights_only=True) for rank in range(processes)
    )
    for other in others:
        assert all(torch.equal(first[key], other[key]) for key in first)


def test_one_process_writes(trained):
    processes, folder = trained
    written = {path.name for path in (folder / "runs_0" / "plain").iterdir()}
    assert written == {"checkpoint.pt", "log.csv", "curves.png"}
    assert not any((folder / f"runs_{rank}").exists() for rank in range(1, processes))


def test_a_run_of_which_one_process_is_stopped_ends_as_an_unstopped_one(tmp_path):
    codes, errors = run_together(2, SCRIPT, "stop_and_resume", tmp_path)
    assert codes == [0, 0], errors
    for rank in range(2):
        assert "stopped after iteration 3" in (tmp_path / f"message_{rank}.txt").read_text()
        unstopped, resumed = (
            torch.load(tmp_path / f"{name}_{rank}.pt", weights_only=True) for name in ("unstopped", "resumed")
        )
        unstopped.pop("losses")  # a report's mean begins anew where a run resumes
        assert all(torch.equal(unstopped[key], resumed[key]) for key in unstopped)


def test_a_process_that_dies_ends_the_others_with_an_error(tmp_path):
    codes, errors = run_together(3, SCRIPT, "die", tmp_path)
    assert codes[2] == -signal.SIGKILL
    assert all(code not in (0, -signal.SIGKILL) for code in codes[:2])
    for rank in range(2):
        assert f"ContinualSegmentError: Process {rank} of 3 has lost the connection" in errors[rank]


def test_processes_may_train_together_again(tmp_path):
    """As a script does that learns two datasets; torchrun remembers the addresses of the first group."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [*torchrun, SCRIPT, "again_and_again", tmp_path]
    done = subprocess.run(list(map(str, words)), env=os.environ | OWN, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_processes_without_common_storage_are_refused(tmp_path):
    codes, errors = run_together(2, SCRIPT, "separate_storage", tmp_path)
    assert 0 not in codes
    assert "process 1 resumes after iteration 0" in errors[1]


def test_a_checkpoint_of_more_processes_is_refused(tmp_path):
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"signature": "s", "processes": 4, "iteration": 1})
    with pytest.raises(ContinualSegmentError, match="a run of 4 processes") as refused:
        load_checkpoint(path, "s")
    assert str(path) in str(refused.value)


@pytest.mark.parametrize("others_wait", [False, True])
def test_a_signal_that_comes_twice_stops_several_processes_after_the_update(others_wait, monkeypatch):
    monkeypatch.setattr(distributed, "_store", object())
    monkeypatch.setattr(distributed, "_alone", others_wait)  # while the first one validates
    with interrupt.StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert stop.requested


def test_a_single_process_is_its_own_group():
    values = torch.ones(2)
    assert (distributed.world_size(), distributed.rank(), distributed.is_main()) == (1, 0, True)
    assert distributed.on_main(lambda: values) is values
    assert distributed.mean_over_processes(values) is values
    assert distributed.agree(0.5, True) == (0.5, True)
    assert distributed.parallel(torch.nn.Linear(1, 1)).__class__ is torch.nn.Linear
    assert distributed.first_to_fail()
