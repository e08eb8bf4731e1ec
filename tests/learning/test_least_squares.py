"""Smaller blocks fitted to the blocks of a trained decoder."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from continual_segment.learning.least_squares import (
    FitConfig,
    NormalEquations,
    find_directions,
    fit_blocks,
)
from continual_segment.networks import Decoder, DecoderPlan
from continual_segment.networks.block_form import BlockForm
from continual_segment.networks.block_tree import BlockTree

FIT = FitConfig(batches=3, samples=400, ridge=1e-9)


@pytest.fixture
def step(make_step, pointwise):
    """Three stages without context in the encoder; decoder blocks of two 3x3x3 convolutions."""
    network = replace(
        pointwise,
        features=(6, 8, 8),
        kernels=((3, 3, 3),) * 3,
        strides=((1, 1, 1), (1, 2, 2), (2, 2, 2)),
        encoder_convs=(1, 1, 1),
        decoder_convs=(2, 2),
    )
    return make_step(network=network)


@pytest.fixture
def decoder(step):
    torch.manual_seed(3)
    return Decoder(step.encoder.config, DecoderPlan.nnunet(step.encoder.config), 2)


@pytest.mark.parametrize("kernel", [(1, 1, 1), (1, 3, 3), (3, 1, 1), (3, 3, 3)])
def test_a_convolution_is_recovered_from_what_it_reads_and_writes(kernel):
    torch.manual_seed(0)
    weight, bias, read = torch.randn(4, 3, *kernel), torch.randn(4), torch.randn(2, 3, 7, 8, 9)
    written = functional.conv3d(read, weight, bias, padding=[side // 2 for side in kernel])
    equations = NormalEquations(kernel)
    for _ in range(2):
        voxels = torch.stack([torch.randint(size, (500,)) for size in (2, 7, 8, 9)], dim=1)
        equations.add(read, written, voxels)
    found = equations.solve(ridge=1e-9)
    torch.testing.assert_close(found[0], weight, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found[1], bias, rtol=1e-3, atol=1e-3)


def fit(step, tree, *blocks):
    """Fit the last blocks of these beginnings of plans."""
    fit_blocks(step, tree, blocks, find_directions(step, tree.decoder, FIT), FIT)


def explained(tree, step, plan):
    """Share of the variance of the trained decoder's finest features that a plan reproduces."""
    features = step.features(step.source.validation(step.settings)[0][0])
    with torch.no_grad():
        found = dict(tree.outputs(features, {plan, tree.whole}))
    return 1 - float((found[plan] - found[tree.whole]).var() / found[tree.whole].var())


def test_a_block_whose_weights_are_in_one_plane_is_fitted_by_a_2d_block_exactly(step, decoder):
    for conv in decoder.stages[0].convs:
        conv.conv.weight.data[:, :, [0, 2]] = 0
    tree = BlockTree(decoder)
    fit(step, tree, ("2d",), ("projection",))
    assert explained(tree, step, ("2d", "nnunet")) > 0.9999
    assert explained(tree, step, ("projection", "nnunet")) < 0.95


def test_larger_kernels_fit_better(step, decoder):
    tree = BlockTree(decoder)
    fit(step, tree, ("2d",), ("projection",))
    found = [explained(tree, step, (name, "nnunet")) for name in ("projection", "2d", "nnunet")]
    assert 0.1 < found[0] < found[1] < found[2] == 1


def test_a_block_behind_a_smaller_one_is_fitted_to_what_it_reads_there(step, decoder):
    tree = BlockTree(decoder)
    fit(step, tree, ("projection",))
    fit(step, tree, ("nnunet", "2d"), ("projection", "2d"))
    behind_trained, behind_small = (
        tree.block((name, "2d")).state_dict() for name in ("nnunet", "projection")
    )
    assert not torch.equal(behind_trained["convs.0.conv.weight"], behind_small["convs.0.conv.weight"])
    assert torch.equal(behind_trained["convs.0.norm.weight"], behind_small["convs.0.norm.weight"])


def test_fitting_changes_neither_encoder_nor_trained_decoder_and_is_repeatable(step, decoder):
    before = {name: value.clone() for name, value in decoder.state_dict().items()}
    trees = [BlockTree(decoder), BlockTree(decoder)]
    for tree in trees:
        fit(step, tree, ("2d",), ("nnunet@4",))
    assert all(torch.equal(value, before[name]) for name, value in decoder.state_dict().items())
    first, second = (tree.blocks.state_dict() for tree in trees)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def low_rank(decoder, number, rank):
    """Let the convolutions of a block use no more than so many directions of what they read."""
    for conv in decoder.stages[number].convs:
        outputs, channels = conv.conv.weight.shape[:2]
        kernels = torch.randn(outputs, rank, *conv.conv.kernel_size)
        conv.conv.weight.data = (
            torch.einsum("orzyx,rc->oczyx", kernels, torch.randn(rank, channels)) / channels
        )


@pytest.mark.parametrize("number", [0, 1])
def test_a_block_that_uses_few_directions_of_its_input_is_fitted_by_that_width_exactly(step, decoder, number):
    low_rank(decoder, number, rank=3)
    tree, whole = BlockTree(decoder), decoder.plan.kernels
    exact, fewer = ((*whole[:number], name, *whole[number + 1 :]) for name in ("nnunet@3", "nnunet@2"))
    fit(step, tree, exact[: number + 1], fewer[: number + 1])
    assert explained(tree, step, exact) > 0.9999
    assert explained(tree, step, fewer) < 0.99


def test_a_p3d_block_of_reduced_width_reproduces_a_separable_one(step, decoder):
    for conv in decoder.stages[0].convs:
        outputs, channels = conv.conv.weight.shape[:2]
        across, plane = torch.randn(outputs, 2, 3), torch.randn(2, channels, 3, 3)
        mixed = torch.einsum("orz,rcyx->oczyx", across, plane)
        conv.conv.weight.data = mixed / mixed.std() / channels
    low = decoder.stages[0].convs
    for conv in low:  # in plane one direction of the input each
        first = conv.conv.weight.data[:, :1]
        conv.conv.weight.data = torch.cat([first, torch.zeros_like(conv.conv.weight.data[:, 1:])], dim=1)
    tree = BlockTree(decoder)
    fit(step, tree, ("p3d@3",))
    assert explained(tree, step, ("p3d@3", "nnunet")) > 0.999


def test_wider_blocks_fit_better(step, decoder):
    tree = BlockTree(decoder)
    names = ("nnunet@1", "nnunet@4", "nnunet@8")
    fit(step, tree, *((name,) for name in names))
    found = [explained(tree, step, (name, "nnunet")) for name in names]
    assert found[0] < found[1] < found[2] < 1


def test_only_forms_with_fewer_weights_than_the_block_has_are_offered(pointwise):
    flat = replace(pointwise, kernels=((1, 3, 3), (1, 3, 3)))
    tree = BlockTree(Decoder(flat, DecoderPlan.nnunet(flat), 1))
    offered = [BlockForm.of(name) for name in ("projection", "2d", "3d", "nnunet@4", "3d@64")]
    assert tree.smaller_forms(0, offered) == ["projection", "nnunet@4"]


@pytest.mark.parametrize("plan", [("2d", "projection"), ("nnunet@4", "2d@2"), ("p3d@3", "nnunet")])
def test_an_assembled_decoder_answers_as_its_plan_in_the_tree(step, decoder, plan):
    tree = BlockTree(decoder)
    for length in (1, 2):
        if not tree.has(plan[:length]):
            fit(step, tree, plan[:length])
    features = step.features(step.source.validation(step.settings)[0][0])
    with torch.no_grad():
        (_, expected), *others = tree.logits(features, {plan})
        assert not others
        torch.testing.assert_close(tree.assembled(plan)(features), expected)
        torch.testing.assert_close(tree.assembled(tree.whole)(features), decoder(features))
