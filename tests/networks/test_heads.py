"""Heads: small beside a decoder, and able to learn."""

import pytest
import torch
from torch.nn import functional

from continual_segment.config import PRESETS, load_preset
from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder, true_count
from continual_segment.networks.heads import ProjectionHead


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("classes", [1, 4])
def test_a_head_is_at_most_a_twenty_fifth_of_a_decoder(name, classes):
    network = load_preset(name).network
    decoder = Decoder(network, DecoderPlan.nnunet(network), classes)
    assert 0 < true_count(ProjectionHead(network, classes)) <= 0.04 * true_count(decoder)


def test_a_head_answers_at_every_voxel_and_its_last_layer_is_linear(preset):
    encoder, head = GeneralEncoder(preset.network), ProjectionHead(preset.network, 1)
    features = encoder(torch.randn(2, 1, *preset.patches.size))
    logits = head(features)
    assert logits.shape == (2, 2, *preset.patches.size)
    torch.testing.assert_close(head.head(head.finest(features)), logits)


def test_a_head_learns_what_the_features_show(preset):
    torch.manual_seed(0)
    encoder, head = GeneralEncoder(preset.network).freeze(), ProjectionHead(preset.network, 1)
    images = torch.randn(2, 1, *preset.patches.size)
    wanted = (images[:, 0] > 0.5).long()
    optimiser = torch.optim.Adam(head.parameters(), 0.02)
    losses = []
    for _ in range(40):
        loss = functional.cross_entropy(head(encoder(images)), wanted)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.7 * losses[0]
