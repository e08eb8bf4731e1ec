"""Heads of version 0.1, which are read and run and no longer learned."""

import torch

from continual_segment.networks import GeneralEncoder
from continual_segment.networks.heads import ProjectionHead


def test_a_head_answers_at_every_voxel_and_its_last_layer_is_linear(preset):
    encoder, head = GeneralEncoder(preset.network), ProjectionHead(preset.network, 1)
    features = encoder(torch.randn(2, 1, *preset.patches.size))
    logits = head(features)
    assert logits.shape == (2, 2, *preset.patches.size)
    torch.testing.assert_close(head.head(head.finest(features)), logits)
