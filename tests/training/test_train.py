"""The training loop: what it learns, in which order, and how fast."""

import signal

import pytest
import torch
from torch import nn

from continual_segment.errors import ContinualSegmentError
from continual_segment.training import Objective, TrainConfig
from continual_segment.training.history import read_history
from continual_segment.training.train import numbered_batches as load_batches
from continual_segment.training.update import Update, make_optimiser


def test_the_loss_falls(make_run):
    rows = make_run(iterations=40).go()
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.3


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_the_same_seed_ends_with_the_same_weights_to_the_bit(optimiser, make_run):
    runs = [make_run(name, optimiser=optimiser) for name in ("one", "two")]
    for run in runs:
        run.go()
    assert torch.equal(runs[0].weights, runs[1].weights)


def test_another_seed_ends_with_other_weights(make_run):
    one, other = make_run("one"), make_run("other", seed=1)
    one.go()
    other.go()
    assert not torch.equal(one.weights, other.weights)


def test_no_random_number_of_the_caller_is_drawn(make_run):
    run = make_run()
    before = torch.get_rng_state()
    run.go()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_learning_rate_falls_as_a_power_of_what_remains(make_run):
    run, seen = make_run(iterations=5, learning_rate=0.3), []
    update = Update(run.objective(), run.config)
    step = update.optimiser.step
    update.optimiser.step = lambda *args: (seen.append(update.optimiser.param_groups[0]["lr"]), step(*args))
    images, labels = torch.zeros(1, 1, 2, 2, 2), torch.zeros(1, 2, 2, 2, dtype=torch.int64)
    for iteration in range(5):
        update(images, labels, iteration)
    assert seen == pytest.approx([0.3 * (1 - i / 5) ** 0.9 for i in range(5)])


def test_the_log_holds_the_rate_of_the_last_iteration_it_tells_of(make_run):
    rows = make_run(iterations=10, report_every=4, learning_rate=0.1).go()
    assert [row["iteration"] for row in rows] == [4, 8, 10]
    assert [row["learning_rate"] for row in rows] == pytest.approx(
        [0.1 * (1 - i / 10) ** 0.9 for i in (3, 7, 9)]
    )


def test_the_loop_calls_the_forward_pass_of_the_module_it_is_given(make_run):
    """What DistributedDataParallel relies on: its hooks run around the forward pass of the whole module."""
    run = make_run(iterations=3)
    objective, passes = run.objective(), []
    objective.register_forward_hook(lambda module, inputs, loss: passes.append((len(inputs), loss.ndim)))
    wrapped = Wrapped(objective)
    run.objective = lambda loss_of: wrapped
    run.go()
    assert passes == [(2, 0)] * 3
    assert wrapped.passes == 3


class Wrapped(nn.Module):
    """In place of DistributedDataParallel."""

    def __init__(self, module):
        super().__init__()
        self.module, self.passes = module, 0

    def forward(self, *inputs):
        self.passes += 1
        return self.module(*inputs)


def test_what_an_objective_only_reads_is_not_trained_and_not_stored():
    frozen, trained = nn.Linear(2, 2), nn.Linear(2, 1)
    objective = Objective(lambda images, labels: trained(frozen(images)).sum(), head=trained)
    assert set(objective.state_dict()) == {"trained.head.weight", "trained.head.bias"}
    assert len(list(objective.parameters())) == 2


def test_sgd_is_nesterovs_with_the_papers_momentum():
    optimiser = make_optimiser(nn.Linear(2, 2), TrainConfig(iterations=1))
    assert isinstance(optimiser, torch.optim.SGD)
    assert optimiser.defaults["nesterov"]
    assert optimiser.defaults["momentum"] == 0.99
    assert optimiser.defaults["weight_decay"] == 3e-5


def test_long_gradients_are_shortened(make_run):
    run = make_run(optimiser="sgd", learning_rate=1.0, weight_decay=0.0, gradient_norm=0.5)
    before = run.weights.clone()
    steep = run.objective(lambda images, labels: 1e4 * run.module(images).square().mean())
    update = Update(steep, run.config)
    update(torch.randn(1, 1, 4, 4, 4), torch.zeros(1, 4, 4, 4), iteration=0)
    # the first Nesterov step is (1 + momentum) times the gradient
    assert (run.weights - before).norm().item() == pytest.approx(1.99 * 0.5, rel=1e-3)


def test_what_is_frozen_is_not_in_the_optimiser():
    module = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 3))
    optimiser = make_optimiser(module, TrainConfig(iterations=1))
    held = {id(parameter) for group in optimiser.param_groups for parameter in group["params"]}
    assert held == {id(parameter) for parameter in module[1].parameters()}


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_order_whatever_the_number_of_workers(workers, numbered_batches):
    config = TrainConfig(iterations=7, workers=workers)
    for number, (images, labels) in enumerate(load_batches(numbered_batches, 3, config), start=3):
        expected_images, expected_labels = numbered_batches[number]
        assert torch.equal(images, expected_images)
        assert torch.equal(labels, expected_labels)
    assert number == 6


def test_a_run_leaves_a_log_and_a_picture_of_its_curves(make_run, monkeypatch):
    run = make_run(iterations=7, report_every=5)
    monkeypatch.undo()  # draw for real
    rows = run.go(validate=lambda: 0.25)
    assert read_history(run.folder) == rows
    assert [row["validation_dice"] for row in rows] == [0.25, 0.25]
    assert (run.folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_bfloat16_learns_too_and_leaves_weights_in_full_precision(make_run):
    run = make_run(precision="bfloat16", iterations=30)
    rows = run.go()
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert run.weights.dtype == torch.float32
    assert torch.isfinite(run.weights).all()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"iterations": 0}, "at least 1"),
        ({"report_every": 0}, "at least 1"),
        ({"learning_rate": 0.0}, "above 0"),
        ({"optimiser": "adam"}, "optimiser is one of sgd, adamw, muon, not 'adam'"),
        ({"precision": "float8"}, "precision is one of"),
        ({"workers": -1}, "at least 0"),
        ({"seed": -1}, "at least 0"),
    ],
)
def test_wrong_settings_fail_on_construction(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        TrainConfig(**{"iterations": 5} | settings)


def test_a_run_that_diverges_says_so_and_keeps_the_checkpoint_before(make_run):
    run = make_run()

    def diverges(images, labels):
        return run.loss_of(images, labels) * (float("nan") if run.batches_seen > 5 else 1.0)

    with pytest.raises(ContinualSegmentError, match="the loss is nan after 8 iterations"):
        run.go(diverges)
    assert torch.load(run.folder / "checkpoint.pt", weights_only=True)["iteration"] == 4


def test_the_callers_handling_of_ctrl_c_is_restored(make_run):
    before = signal.getsignal(signal.SIGINT)
    make_run(iterations=1).go()
    assert signal.getsignal(signal.SIGINT) is before
