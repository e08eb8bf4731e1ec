"""Encoder and decoder as modules."""

from typing import get_args

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder, NetworkConfig
from continual_segment.networks.decoder_plan import KernelName

ORGANS = 3


@pytest.fixture
def network(preset):
    return preset.network


@pytest.fixture
def encoder(network):
    torch.manual_seed(0)
    return GeneralEncoder(network)


@pytest.fixture
def window():
    return torch.randn(2, 1, 8, 16, 12, generator=torch.Generator().manual_seed(0))


def test_the_encoder_gives_one_feature_map_per_stage_finest_first(encoder, window):
    shapes = [tuple(feature.shape) for feature in encoder(window)]
    assert shapes == [(2, 4, 8, 16, 12), (2, 6, 8, 8, 6), (2, 8, 4, 4, 3)]


@pytest.mark.parametrize("kernel", get_args(KernelName))
def test_every_kernel_gives_a_channel_per_organ_and_background_at_the_windows_size(
    kernel, encoder, network, window
):
    decoder = Decoder(network, DecoderPlan((kernel, kernel)), ORGANS)
    outputs = decoder.forward_supervised(encoder(window))
    assert outputs[0].shape == (2, ORGANS + 1, 8, 16, 12)
    assert outputs[1].shape == (2, ORGANS + 1, 8, 8, 6)
    assert len(outputs) == 2


def test_the_answer_is_the_finest_of_the_supervised_ones(encoder, network, window):
    decoder = Decoder(network, DecoderPlan(("p3d", "2d")), ORGANS)
    features = encoder(window)
    assert torch.equal(decoder(features), decoder.forward_supervised(features)[0])


def test_every_parameter_learns_from_the_supervised_answers(encoder, network, window):
    decoder = Decoder(network, DecoderPlan.nnunet(network), ORGANS)
    sum(output.square().mean() for output in decoder.forward_supervised(encoder(window))).backward()
    without = [name for name, each in decoder.named_parameters() if each.grad is None]
    assert without == []


def test_a_frozen_encoder_takes_no_gradient_and_is_in_evaluation_mode(encoder, window):
    frozen = encoder.freeze()
    assert frozen is encoder
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert not any(module.training for module in encoder.modules())
    assert not any(feature.requires_grad for feature in encoder(window))


def test_no_gradient_is_computed_for_a_frozen_encoders_features(encoder, network, window):
    """The first convolution of a block costs a sixth of its multiply-adds less, forward and backward."""
    decoder, features = Decoder(network, DecoderPlan.nnunet(network), ORGANS), encoder.freeze()(window)

    def work(features):
        with FlopCounterMode(display=False) as counter:
            decoder(features).mean().backward()
        return counter.get_total_flops()

    as_if_learned = work([feature.detach().requires_grad_() for feature in features])
    first_convs = [stage.convs[0].conv.weight for stage in decoder.stages]
    voxels = [feature[:, 0].numel() for feature in features[-2::-1]]
    spared = sum(weight.numel() * n for weight, n in zip(first_convs, voxels, strict=True))
    deepest = decoder.transpconvs[0].weight.numel() * features[-1][:, 0].numel() * 2
    assert as_if_learned - work(features) == spared + deepest


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"features": (4, 6)}, "one entry per stage"),
        ({"features": (4,), "kernels": ((3, 3, 3),), "strides": ((1, 1, 1),)}, "2 to 12 stages"),
        ({"kernels": ((1, 2, 3), (3, 3, 3), (3, 3, 3))}, "odd sizes"),
        ({"kernels": ((3, 3), (3, 3, 3), (3, 3, 3))}, "three sizes"),
        ({"features": (4, 6, 10**6)}, "features"),
        ({"features": (4, 6, 8.0)}, "features"),
        ({"features": (4, 6, True)}, "features"),
        ({"convs_per_stage": 10**7}, "convs_per_stage"),
        ({"convs_per_stage": 0}, "convs_per_stage"),
        ({"strides": ((1, 1, 1), (1, 0, 2), (2, 2, 2))}, "strides"),
        ({"strides": ((2, 1, 1), (1, 2, 2), (2, 2, 2))}, "first stage"),
        ({"features": (4096,) * 3, "kernels": ((15, 15, 15),) * 3}, "weights"),
    ],
)
def test_bad_sizes_fail_on_construction(changes, sentence, network):
    good = {"features": network.features, "kernels": network.kernels, "strides": network.strides}
    with pytest.raises(ValueError, match=sentence):
        NetworkConfig(**good | changes)


def test_a_window_must_be_a_multiple_of_all_strides_together(network):
    assert network.total_stride == (2, 4, 4)
    network.check_window((8, 16, 12))
    with pytest.raises(ValueError, match=r"\(8, 16, 10\) voxels is no multiple of \(2, 4, 4\)"):
        network.check_window((8, 16, 10))
