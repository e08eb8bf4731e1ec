"""Searching a kernel for every block."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from continual_segment.errors import DatasetError
from continual_segment.learning.search import (
    AlternatingPatches,
    CaseSplit,
    SearchConfig,
    SearchUpdate,
    search_batches,
    search_decoder,
    search_kernels,
    warm_up_iterations,
)
from continual_segment.networks import MixedDecoder
from continual_segment.training import LossConfig, Objective

from .conftest import SIZE, MadeUp, bright, bright_below


class MadeUpSearch:
    """A search on made-up batches."""

    def __init__(self, step, rule, **settings):
        self.config = step.settings
        self.search = SearchConfig(**{"alpha_learning_rate": 0.05, "warm_up_share": 0.25} | settings)
        torch.manual_seed(0)
        self.mixed = MixedDecoder(step.encoder.config, 1)
        self.weights, self.kernels = MadeUp(rule, 1), MadeUp(rule, 2)
        self.warm_up = warm_up_iterations(self.config, self.search)
        self.batches = AlternatingPatches(self.weights, self.kernels, self.warm_up)
        loss = LossConfig().build()
        objective = Objective(
            lambda images, labels: loss(self.mixed.forward_supervised(step.features(images)), labels),
            decoder=self.mixed,
        )
        self.update = SearchUpdate(objective, self.config, self.mixed, self.search, SIZE)

    def go(self, iterations=None):
        for iteration in range(iterations or self.config.iterations):
            self.update(*self.batches[iteration], iteration)
        return self


@pytest.fixture
def search(make_step):
    return lambda rule=bright, iterations=80, **settings: MadeUpSearch(
        make_step(rule, iterations=iterations), rule, **settings
    )


def test_in_the_warm_up_every_kernel_counts_a_quarter_and_no_batch_for_kernels_is_read(search):
    begun = search()
    before = begun.mixed.stages[0].kernels[0].convs[0].conv.weight.clone()
    begun.go(begun.warm_up)
    assert begun.mixed.kernel_weights == [[0.25] * 4]
    assert begun.kernels.read == []
    assert not torch.equal(begun.mixed.stages[0].kernels[0].convs[0].conv.weight, before)


def test_after_the_warm_up_shares_move(search):
    begun = search()
    begun.go(begun.warm_up + 1)
    assert begun.kernels.read == [begun.warm_up]
    assert begun.mixed.kernel_weights != [[0.25] * 4]
    assert sum(begun.mixed.kernel_weights[0]) == pytest.approx(1)


def test_a_step_of_shares_leaves_every_weight_as_it_is(search):
    begun = search()
    before = {name: tensor.clone() for name, tensor in begun.mixed.state_dict().items()}
    begun.update.update_alpha(*begun.kernels[0])
    changed = {
        name for name, tensor in begun.mixed.state_dict().items() if not torch.equal(tensor, before[name])
    }
    assert changed == {"alpha"}
    assert all(parameter.grad is None for parameter in begun.mixed.parameters())


def test_weights_learn_from_one_half_of_a_batch_and_shares_from_the_other(search):
    ends = []
    for kernel_seed, weight_seed in ((2, 1), (3, 1), (2, 4)):
        one = search(alpha_learning_rate=1e-9)  # shares that move this little change no weight
        one.batches.kernels, one.batches.weights = MadeUp(bright, kernel_seed), MadeUp(bright, weight_seed)
        one.go(one.warm_up + 1)
        gradient = one.update.alpha_optimiser.state[one.mixed.alpha]["exp_avg"]
        ends.append((one.mixed.stages[0].kernels[3].convs[0].conv.weight, gradient))
    (weights, gradient), (other_kernels, other_gradient), (other_weights, _) = ends
    assert torch.allclose(weights, other_kernels, atol=1e-6)
    assert not torch.allclose(weights, other_weights, atol=1e-3)
    assert not torch.allclose(gradient, other_gradient)


def test_where_slices_matter_a_kernel_that_crosses_them_is_found(search):
    found = search(bright_below).go().mixed
    projection, in_plane, p3d, all_around = found.kernel_weights[0]
    assert found.plan.kernels[0] in ("p3d", "3d")
    assert min(p3d, all_around) > 2 * max(projection, in_plane)


def test_where_cost_is_all_that_counts_projections_are_found(search):
    assert search(bright_below, cost_weight=1e4).go().mixed.plan.kernels == ("projection",)


def test_a_search_that_goes_on_ends_as_one_that_was_not_stopped(search):
    whole, stopped, resumed = search(), search(), search()
    whole.go(30)
    stopped.go(25)
    resumed.update.load_state_dict(stopped.update.state_dict())
    for iteration in range(25, 30):
        resumed.update(*resumed.batches[iteration], iteration)
    assert torch.equal(resumed.mixed.alpha, whole.mixed.alpha)
    assert torch.equal(resumed.mixed.seg_layers[0].weight, whole.mixed.seg_layers[0].weight)


# On a dataset


def made_up_dataset(train, validation):
    names = {
        "train": tuple(f"t{n}" for n in range(train)),
        "validation": tuple(f"v{n}" for n in range(validation)),
    }
    return SimpleNamespace(case_names=names.__getitem__, folder="made up")


@pytest.mark.parametrize(
    ("train", "validation", "counts"), [(8, 2, (6, 3, 1)), (80, 20, (60, 30, 10)), (2, 1, (1, 1, 1))]
)
def test_cases_are_split_60_30_10(train, validation, counts):
    split = CaseSplit.of(made_up_dataset(train, validation))
    groups = (split.weights, split.kernels, split.monitor)
    assert tuple(map(len, groups)) == counts
    assert len({name for group in groups for name in group}) == train + validation  # no case in two groups
    assert split == CaseSplit.of(made_up_dataset(train, validation))


def test_cases_that_are_only_looked_at_come_from_validation(datasets):
    split = CaseSplit.of(made_up_dataset(80, 20))
    assert all(name.startswith("v") for name in split.monitor)
    assert all(name.startswith("t") for name in split.weights)


def test_two_cases_are_too_few_to_search_with():
    with pytest.raises(DatasetError, match="a search needs three at least"):
        CaseSplit.of(made_up_dataset(1, 1))


def test_weights_and_kernels_learn_from_different_cases_and_never_from_the_test_split(phantom_step):
    search, dataset = SearchConfig(batch_factor=2), phantom_step.source.dataset
    split = CaseSplit.of(dataset)
    batches = search_batches(phantom_step.source, split, phantom_step.settings, search)
    weights, kernels = ({case.name for case in part.cases} for part in (batches.weights, batches.kernels))
    assert not weights & kernels
    assert not (weights | kernels) & set(dataset.case_names("test"))
    first, last = batches[0][0], batches[phantom_step.settings.iterations - 1][0]
    assert len(first) == 2 * phantom_step.source.patches.batch
    assert len(last) == 2 * len(first)  # as many for kernels


def test_a_search_ends_with_a_trained_decoder_of_its_plan(phantom_step):
    searched = search_decoder(phantom_step, SearchConfig())
    assert searched.decoder.plan.kernels == searched.card["plan"]
    assert len(searched.rows) == 2
    assert [len(shares) for shares in searched.card["shares"]] == [4, 4]
    assert searched.seconds > 0


def test_training_the_found_decoder_longer_does_not_ask_for_another_search(phantom_step):
    short = SearchConfig(iterations_share=0.5, retrain_share=0.5)
    plan = search_kernels(phantom_step, short)[0].plan
    written = (phantom_step.run / "search" / "checkpoint.pt").stat().st_mtime_ns
    assert search_kernels(phantom_step, replace(short, retrain_share=2.0))[0].plan == plan
    assert (phantom_step.run / "search" / "checkpoint.pt").stat().st_mtime_ns == written


def test_lengths_are_shares_of_the_first_training(phantom_step):
    search = SearchConfig(iterations_share=0.5, retrain_share=2.0)
    _, rows = search_kernels(phantom_step, search)
    assert rows[-1]["iteration"] == 3
    half = replace(phantom_step, run=phantom_step.run / "half", length=0.5)
    assert search_decoder(half, search).rows[-1]["iteration"] == 6


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"iterations_share": 0.0}, "above 0"),
        ({"warm_up_share": 1.0}, "warm_up_share is a share"),
        ({"batch_factor": 0}, "batch_factor is at least 1"),
        ({"case_shares": (0.7, 0.3)}, "sum below 1"),
    ],
)
def test_wrong_settings_fail_on_construction(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        SearchConfig(**settings)
