"""Without a GPU the `meta` device takes its place: a tensor that is left on the CPU is an error there, too.

It has no values: what is tested is that every tensor of a loss is on the device of the training.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from continual_segment.learning.train_decoder import supervised_objective
from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder
from continual_segment.training import LossConfig
from continual_segment.training.update import Update

ORGANS = 3


def batch(size):
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 1, *size, generator=generator)
    return images, torch.randint(0, ORGANS + 1, (2, *size), generator=generator)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(
    "loss", [LossConfig(), LossConfig(dice_over="present"), LossConfig(balance=0.5)], ids=str
)
@pytest.mark.parametrize("encoder_kind", ["plain", "residual"])
def test_all_tensors_of_an_update_are_on_the_device_of_the_training(preset, frozen, loss, encoder_kind):
    network = replace(preset.network, encoder=encoder_kind)
    config = replace(preset.first, device="meta", loss=loss)
    encoder = GeneralEncoder(network)
    if frozen:
        encoder.freeze()
    decoder = Decoder(network, DecoderPlan.nnunet(network), ORGANS)
    objective = supervised_objective(encoder, decoder, config).to("meta")
    encoder.to("meta")
    update = Update(objective, config)
    update.loss(objective, *batch(preset.patches.size)).backward()
    gradients = [parameter.grad for parameter in objective.parameters() if parameter.grad is not None]
    assert {gradient.device.type for gradient in gradients} == {"meta"}
    update.optimiser.step()


def test_a_tensor_that_is_left_on_the_cpu_is_found_in_this_way(preset):
    encoder = GeneralEncoder(preset.network).to("meta")
    with pytest.raises(RuntimeError, match="meta"):
        encoder(batch(preset.patches.size)[0])
