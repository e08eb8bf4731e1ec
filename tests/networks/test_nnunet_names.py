"""Checkpoints of stock nnU-Net split into encoder and first decoder."""

import json
from pathlib import Path

import pytest
import torch

from continual_segment.networks import Decoder, DecoderPlan, NetworkConfig, split_nnunet_state

# Names and shapes of the state dicts of nnU-Net's networks with these sizes and 5 classes.
NAMES = {"plain": "plain_conv_unet_names.json", "residual": "residual_encoder_unet_names.json"}
NETWORKS = {
    "plain": NetworkConfig(
        features=(4, 6, 8),
        kernels=((1, 3, 3), (3, 3, 3), (3, 3, 3)),
        strides=((1, 1, 1), (1, 2, 2), (2, 2, 2)),
    ),
    "residual": NetworkConfig(
        features=(4, 6, 8, 8),  # the last stage pools its skip connection and does not project it
        kernels=((1, 3, 3), (3, 3, 3), (3, 3, 3), (3, 3, 3)),
        strides=((1, 1, 1), (1, 2, 2), (2, 2, 2), (2, 2, 2)),
        encoder_convs=(1, 3, 2, 1),
        decoder_convs=(1, 2, 1),
        encoder="residual",
        input_channels=2,
    ),
}
ORGANS = 4


@pytest.fixture(params=NETWORKS)
def network(request):
    return NETWORKS[request.param]


@pytest.fixture
def names(network):
    return json.loads(Path(__file__).with_name(NAMES[network.encoder]).read_text())


@pytest.fixture
def nnunet_state(names):
    """Random tensors; where nnU-Net holds one layer under two names, both have the same."""
    torch.manual_seed(0)
    state = {name: torch.randn(shape) for name, shape in names.items()}
    for name in state:
        own = name.replace("decoder.encoder.", "encoder.")
        own = own.replace("all_modules.0", "conv").replace("all_modules.1", "norm")
        state[name] = state[own]
    return state


@pytest.fixture
def ours(network):
    return network.build_encoder(), Decoder(network, DecoderPlan.nnunet(network), ORGANS)


def test_a_split_checkpoint_has_our_names_and_shapes(nnunet_state, ours):
    for state, module in zip(split_nnunet_state(nnunet_state), ours, strict=True):
        expected = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
        assert {name: tuple(tensor.shape) for name, tensor in state.items()} == expected
        module.load_state_dict(state, strict=True)


def test_no_weight_of_the_checkpoint_is_left_out(nnunet_state):
    encoder, decoder = split_nnunet_state(nnunet_state)
    kept = {tensor.data_ptr() for tensor in (*encoder.values(), *decoder.values())}
    assert kept == {tensor.data_ptr() for tensor in nnunet_state.values()}
    assert len(kept) == len(encoder) + len(decoder)


def test_a_split_checkpoint_answers_as_nnunet_itself(network, names, ours):
    unet = pytest.importorskip(
        "dynamic_network_architectures.architectures.unet",
        reason="dynamic-network-architectures, nnU-Net's own networks, is not installed",
    )
    make = unet.PlainConvUNet if network.encoder == "plain" else unet.ResidualEncoderUNet
    torch.manual_seed(0)
    theirs = make(
        network.input_channels,
        len(network.features),
        network.features,
        torch.nn.Conv3d,
        network.kernels,
        network.strides,
        network.encoder_depths,
        ORGANS + 1,
        network.decoder_depths,
        conv_bias=True,
        norm_op=torch.nn.InstanceNorm3d,
        norm_op_kwargs={"eps": 1e-5, "affine": True},
        nonlin=torch.nn.LeakyReLU,
        nonlin_kwargs={"inplace": True},
        deep_supervision=False,
    )
    assert {name: list(tensor.shape) for name, tensor in theirs.state_dict().items()} == names
    for state, module in zip(split_nnunet_state(theirs.state_dict()), ours, strict=True):
        module.load_state_dict(state)
    encoder, decoder = ours
    window = torch.randn(1, network.input_channels, 8, 16, 16)
    torch.testing.assert_close(decoder(encoder(window)), theirs(window), rtol=0, atol=1e-5)
