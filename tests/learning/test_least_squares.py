"""Smaller blocks fitted to the blocks of a trained decoder."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from continual_segment.learning.least_squares import FitConfig, NormalEquations, fit_blocks
from continual_segment.networks import Decoder, DecoderPlan
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
    fit_blocks(step, tree, [()], FIT)
    assert explained(tree, step, ("2d", "nnunet")) > 0.9999
    assert explained(tree, step, ("projection", "nnunet")) < 0.95


def test_larger_kernels_fit_better(step, decoder):
    tree = BlockTree(decoder)
    fit_blocks(step, tree, [()], FIT)
    found = [explained(tree, step, (name, "nnunet")) for name in ("projection", "2d", "nnunet")]
    assert 0.1 < found[0] < found[1] < found[2] == 1


def test_a_block_behind_a_smaller_one_is_fitted_to_what_it_reads_there(step, decoder):
    tree = BlockTree(decoder)
    fit_blocks(step, tree, [()], FIT)
    fit_blocks(step, tree, [("nnunet",), ("projection",)], FIT)
    behind_trained, behind_small = (
        tree.block((name, "2d")).state_dict() for name in ("nnunet", "projection")
    )
    assert not torch.equal(behind_trained["convs.0.conv.weight"], behind_small["convs.0.conv.weight"])
    assert torch.equal(behind_trained["convs.0.norm.weight"], behind_small["convs.0.norm.weight"])


def test_fitting_changes_neither_encoder_nor_trained_decoder_and_is_repeatable(step, decoder):
    before = {name: value.clone() for name, value in decoder.state_dict().items()}
    trees = [BlockTree(decoder), BlockTree(decoder)]
    for tree in trees:
        fit_blocks(step, tree, [()], FIT)
    assert all(torch.equal(value, before[name]) for name, value in decoder.state_dict().items())
    first, second = (tree.blocks.state_dict() for tree in trees)
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_kernels_with_as_many_weights_as_the_block_has_are_not_offered(make_step, pointwise):
    flat = replace(pointwise, kernels=((1, 3, 3), (1, 3, 3)))
    tree = BlockTree(Decoder(flat, DecoderPlan.nnunet(flat), 1))
    assert tree.choices(0) == ["nnunet", "projection"]


def test_an_assembled_decoder_answers_as_its_plan_in_the_tree(step, decoder):
    tree, plan = BlockTree(decoder), ("2d", "projection")
    fit_blocks(step, tree, [()], FIT)
    fit_blocks(step, tree, [("2d",)], FIT)
    features = step.features(step.source.validation(step.settings)[0][0])
    with torch.no_grad():
        (_, expected), *others = tree.logits(features, {plan})
        assert not others
        torch.testing.assert_close(tree.assembled(plan)(features), expected)
        torch.testing.assert_close(tree.assembled(tree.whole)(features), decoder(features))
