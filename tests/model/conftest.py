"""Packs made without training: a decoder with random weights is as good to a model folder."""

import pytest
import torch

from continual_segment.model import Model, OrganPack
from continual_segment.networks import Decoder, DecoderPlan
from continual_segment.organs import find_organ


@pytest.fixture
def make_pack(base_folder):
    """make_pack("lungs", ["lung"], seed=1) fits the base model."""
    model = Model.open(base_folder)
    encoder = model.load_encoder()

    def make(name, organs=("esophagus", "trachea"), seed=0, background=True, plan=("p3d", "2d"), **known):
        torch.manual_seed(seed)
        decoder = Decoder(model.network, DecoderPlan(plan), len(organs), background)
        found = tuple(find_organ(organ) for organ in organs)
        return OrganPack.of(name, found, encoder, decoder, model.encoder_fingerprint, **known)

    return make
