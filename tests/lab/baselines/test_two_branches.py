"""RCIL's convolutions: two branches, one frozen, merged exactly."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from continual_segment.lab.baselines.rcil import merge_branches, split_branches
from continual_segment.networks import Decoder, DecoderPlan, NetworkConfig, true_count
from continual_segment.networks.segmentation_network import SegmentationNetwork
from continual_segment.networks.two_branch_conv import TwoBranchConv

NETWORK = NetworkConfig((4, 6), ((1, 3, 3), (3, 3, 3)), ((1, 1, 1), (1, 2, 2)))


@pytest.fixture(params=["plain", "residual"])
def network(request):
    torch.manual_seed(0)
    network = replace(NETWORK, encoder=request.param)
    whole = SegmentationNetwork(network.build_encoder(), Decoder(network, DecoderPlan.nnunet(network), 2))
    for parameter in whole.parameters():  # residual blocks begin as identities
        nn.init.normal_(parameter, std=0.3)
    return whole


@pytest.fixture
def window():
    return torch.randn(2, 1, 4, 8, 8, generator=torch.Generator().manual_seed(1))


def shaken(branches):
    for branch in branches.values():
        nn.init.normal_(branch.weight, std=0.3)


def test_merged_branches_answer_as_both_did(network, window):  # T14
    size = true_count(network)
    shaken(split_branches(network, seed=0))
    before = network.eval()(window)
    merge_branches(network)
    assert (network(window) - before).abs().max() < 1e-5
    assert true_count(network) == size
    assert not any(isinstance(module, TwoBranchConv) for module in network.modules())


def test_branches_with_a_norm_each_could_not_be_merged(network, window):  # T14
    """Why both meet before one norm: the mean of two normed maps is no normed map of the mean."""
    torch.manual_seed(1)
    first, second = (nn.Conv3d(1, 3, 3) for _ in range(2))
    norm = nn.InstanceNorm3d(3)
    merged = TwoBranchConv(first)
    merged.load_new(second.weight, second.bias)
    each = (norm(first(window)) + norm(second(window))) / 2
    assert (norm(merged.merged()(window)) - each).abs().max() > 0.01


def test_a_step_begins_with_the_function_of_the_one_before(network, window):  # T15
    before = network.eval()(window)
    branches = split_branches(network, seed=0)
    torch.testing.assert_close(network.eval()(window), before, rtol=0, atol=1e-5)
    torch.testing.assert_close(network.train()(window), before, rtol=0, atol=1e-5)
    shaken(branches)  # what keeping the branch of the step before amounts to
    assert (network.eval()(window) - before).abs().max() > 0.01


def test_the_mean_over_draws_is_the_answer_in_evaluation():  # T16
    torch.manual_seed(0)
    conv = TwoBranchConv(nn.Conv3d(1, 2, 1))
    nn.init.normal_(conv.weight)
    x = torch.randn(1, 1, 2, 2, 2)
    draws = torch.stack([conv.train()(x) for _ in range(4000)])
    assert (draws.mean(0) - conv.eval()(x)).abs().max() < 0.05
    assert len({tuple(draw.flatten().tolist()) for draw in draws}) == 9  # three choices per channel


def test_draws_follow_from_the_state_alone(network, window):
    split_branches(network, seed=0)
    shaken({name: m for name, m in network.named_modules() if isinstance(m, TwoBranchConv)})
    network.train()(window)
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    expected = network(window)
    assert not torch.equal(network(window), expected)
    network.load_state_dict(state)
    assert torch.equal(network(window), expected)


def test_only_the_new_branch_learns(network, window):
    branches = split_branches(network, seed=0)
    names = {name for name, _ in network.named_parameters()}
    assert not any("old_" in name for name in names)
    network.train()(window).sum().backward()
    assert all(branch.weight.grad is not None for branch in branches.values())
