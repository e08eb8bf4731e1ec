"""Encoder and decoder as modules."""

from dataclasses import asdict, replace
from typing import get_args

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from continual_segment.errors import ModelError
from continual_segment.files.records import as_record
from continual_segment.networks import Decoder, DecoderPlan, NetworkConfig
from continual_segment.networks.block_form import KernelName
from continual_segment.networks.segmentation_network import SegmentationNetwork, tapped

ORGANS = 3


@pytest.fixture(params=["plain", "residual"])
def network(preset, request):
    return replace(preset.network, encoder=request.param)


@pytest.fixture
def encoder(network):
    torch.manual_seed(0)
    return network.build_encoder()


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


def test_every_stage_has_as_many_convolutions_as_the_config_names(network):
    deep = replace(network, encoder_convs=(1, 2, 3), decoder_convs=(3, 1))
    encoder, decoder = deep.build_encoder(), Decoder(deep, DecoderPlan(("p3d", "2d")), ORGANS)
    stages = [stage.blocks if deep.encoder == "residual" else stage[0].convs for stage in encoder.stages]
    assert [len(stage) for stage in stages] == [1, 2, 3]
    assert [len(stage.convs) for stage in decoder.stages] == [6, 1]  # a P3D convolution is two


def test_taps_read_what_enters_the_last_activation_of_every_stage_and_block(encoder, network, window):
    whole = SegmentationNetwork(encoder, Decoder(network, DecoderPlan.nnunet(network), ORGANS))
    with tapped(whole) as caught:
        features = encoder(window)
        outputs = whole.decoder(features)
    activated = [torch.nn.functional.leaky_relu(each, 0.01) for each in caught]
    assert len(caught) == 5  # three stages, two blocks
    assert all(torch.equal(one, other) for one, other in zip(activated[:3], features, strict=True))
    assert torch.equal(whole.decoder.head(activated[-1]), outputs)


def test_a_residual_block_begins_as_its_skip_connection(preset, window):
    block = replace(preset.network, encoder="residual").build_encoder().stages[0].blocks[1]
    x = torch.rand(1, 4, 4, 4, 4)
    assert torch.equal(block(x), x)


@pytest.mark.parametrize("convs", [1, 3])
def test_one_number_is_the_same_for_every_stage(convs, network):
    long = replace(network, encoder_convs=(convs,) * 3, decoder_convs=(convs,) * 2)
    assert replace(network, encoder_convs=convs, decoder_convs=convs) == long
    assert replace(network, convs_per_stage=convs) == long
    assert replace(long, convs_per_stage=None) == long


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"convs_per_stage": 1},
        {"encoder_convs": (1, 2, 3)},
        {"decoder_convs": (1, 2)},
        {"input_channels": 2},
    ],
)
def test_a_described_network_reads_as_it_was(changes, network):
    config = replace(network, **changes)
    data = config.described()
    assert as_record(data, NetworkConfig, "model.json", ModelError, "") == config
    expressible = config.encoder == "plain" and changes.keys() <= {"convs_per_stage"}
    assert ("convs_per_stage" in data) == expressible  # what format 1 can express keeps its form
    assert data.keys() <= asdict(config).keys()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"encoder_convs": (2, 2)}, "encoder_convs is one number of 1 or more, or 3 of them"),
        ({"decoder_convs": (2, 2, 2)}, "decoder_convs is one number of 1 or more, or 2 of them"),
        ({"encoder_convs": 0}, "encoder_convs .* from 1 to 16"),
        ({"encoder": "dense"}, "encoder is one of plain, residual"),
        ({"input_channels": 0}, "input_channels .* from 1 to 16"),
        ({"features": (4, 6)}, "one entry per stage"),
        ({"features": (4,), "kernels": ((3, 3, 3),), "strides": ((1, 1, 1),)}, "2 to 12 stages"),
        ({"kernels": ((1, 2, 3), (3, 3, 3), (3, 3, 3))}, "odd sizes"),
        ({"kernels": ((3, 3), (3, 3, 3), (3, 3, 3))}, "three sizes"),
        ({"features": (4, 6, 10**6)}, "features"),
        ({"features": (4, 6, 8.0)}, "features"),
        ({"features": (4, 6, True)}, "features"),
        ({"convs_per_stage": 10**7}, "encoder_convs"),
        ({"convs_per_stage": 0}, "encoder_convs"),
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
    with pytest.raises(ValueError, match=r"\(8, 16, 10\).*\(2, 4, 4\)"):
        network.check_window((8, 16, 10))
