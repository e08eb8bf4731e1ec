"""All kernels in every block at once."""

import pytest
import torch

from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder, MixedDecoder, multiply_adds
from continual_segment.networks.mixed_decoder import CHOICES

ORGANS = 3
WINDOW = (8, 16, 16)


@pytest.fixture
def network(preset):
    return preset.network


@pytest.fixture
def mixed(network):
    torch.manual_seed(0)
    return MixedDecoder(network, ORGANS)


@pytest.fixture
def features(network):
    torch.manual_seed(1)
    with torch.no_grad():
        return GeneralEncoder(network)(torch.randn(2, 1, *WINDOW))


def test_at_first_every_kernel_counts_a_quarter(mixed):
    assert mixed.kernel_weights == [[0.25] * 4] * 2


@pytest.mark.parametrize("kernels", [("3d", "projection"), ("2d", "p3d")])
def test_a_block_with_all_weight_on_one_kernel_is_that_kernel(kernels, mixed, network, features):
    decoder = Decoder(network, DecoderPlan(kernels), ORGANS)
    for number, name in enumerate(kernels):
        mixed.alpha[number, CHOICES.index(name)] = 100.0
        mixed.stages[number].kernels[CHOICES.index(name)].load_state_dict(decoder.stages[number].state_dict())
    mixed.transpconvs.load_state_dict(decoder.transpconvs.state_dict())
    mixed.seg_layers.load_state_dict(decoder.seg_layers.state_dict())
    assert mixed.plan.kernels == kernels
    assert torch.allclose(mixed(features), decoder(features), atol=1e-6)


def test_between_equals_the_kernel_with_fewer_parameters_is_taken(mixed):
    assert mixed.plan.kernels == ("projection", "projection")
    mixed.alpha[0] = torch.tensor([0.0, 0.0, 0.5, 0.5])
    assert mixed.plan.kernels == ("p3d", "projection")


def test_alpha_takes_no_part_in_the_update_of_weights(mixed, features):
    mixed(features).sum().backward()
    assert mixed.alpha.grad is None
    assert all(p.grad is not None for p in mixed.stages.parameters())


def test_the_expected_cost_is_that_of_the_plan_where_the_choice_is_sure(mixed, network):
    nnunet = multiply_adds(DecoderPlan.nnunet(network), network, WINDOW, ORGANS)
    mixed.alpha[:, 1] = 100.0
    dear = mixed.expected_cost(WINDOW).item()
    mixed.alpha[:, 0] = 200.0
    cheap = mixed.expected_cost(WINDOW).item()
    plans = (DecoderPlan(("2d", "2d")), DecoderPlan(("projection", "projection")))
    differ = multiply_adds(plans[0], network, WINDOW, ORGANS) - multiply_adds(
        plans[1], network, WINDOW, ORGANS
    )
    assert dear - cheap == pytest.approx(differ / nnunet, rel=1e-5)


def test_the_cost_can_be_lowered_by_alpha(mixed):
    mixed.alpha.requires_grad_(True)
    mixed.expected_cost(WINDOW).backward()
    assert (mixed.alpha.grad[:, 0] < 0).all()  # more projection costs less
    assert (mixed.alpha.grad[:, 3] > 0).all()
