"""Muon: which weights it takes, and what its step does to them."""

import pytest
import torch

from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder, NetworkConfig
from continual_segment.training import Objective, TrainConfig, supervised_loss
from continual_segment.training.muon import RMS, Muon, hidden_convolutions, orthogonalise
from continual_segment.training.update import Update

NETWORK = NetworkConfig((4, 8), ((3, 3, 3), (3, 3, 3)), ((1, 1, 1), (2, 2, 2)))


class Run:
    """A tiny network and its optimiser on one batch."""

    def __init__(self, **settings):
        torch.manual_seed(0)
        self.encoder = GeneralEncoder(NETWORK)
        self.decoder = Decoder(NETWORK, DecoderPlan.nnunet(NETWORK), organs=2)
        self.module = torch.nn.ModuleDict({"encoder": self.encoder, "decoder": self.decoder})
        self.config = TrainConfig(**{"iterations": 8, "optimiser": "muon"} | settings)
        self.update = Update(Objective(self.loss_of, **self.module), self.config)
        self.images = torch.randn(2, 1, 8, 8, 8, generator=torch.Generator().manual_seed(1))
        self.labels = (self.images[:, 0] > 0).long() + (self.images[:, 0] > 1).long()

    def loss_of(self, images, labels):
        return supervised_loss(self.decoder.forward_supervised(self.encoder(images)), labels)

    def go(self, first, last):
        return [self.update(self.images, self.labels, iteration) for iteration in range(first, last)]


@pytest.mark.parametrize("shape", [(8, 30), (30, 8), (16, 16)])
def test_an_orthogonalised_matrix_keeps_its_directions_and_evens_their_lengths(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    u, lengths, v = torch.linalg.svd(matrix, full_matrices=False)
    found = orthogonalise(matrix)
    along = (u.T @ found @ v.T).diagonal()
    assert lengths.max() / lengths.min() > 2
    assert along.min() > 0.6
    assert along.max() < 1.3
    torch.testing.assert_close(u @ along.diag() @ v, found, atol=1e-4, rtol=0)


def test_a_gradient_of_zeros_moves_nothing():
    assert not orthogonalise(torch.zeros(4, 9)).any()


def test_only_convolutions_between_features_are_orthogonalised():
    run = Run()
    hidden = {id(weight) for weight in hidden_convolutions(run.module)}
    names = {name for name, weight in run.module.named_parameters() if id(weight) in hidden}
    assert names == {
        "encoder.stages.0.0.convs.1.conv.weight",  # the very first convolution reads the image
        "encoder.stages.1.0.convs.0.conv.weight",
        "encoder.stages.1.0.convs.1.conv.weight",
        "decoder.stages.0.convs.0.conv.weight",
        "decoder.stages.0.convs.1.conv.weight",
    }


def test_the_kernels_of_reduced_blocks_are_orthogonalised():
    decoder = Decoder(NETWORK, DecoderPlan(("p3d@3",)), organs=2)
    hidden = {id(weight) for weight in hidden_convolutions(decoder)}
    names = {name for name, weight in decoder.named_parameters() if id(weight) in hidden}
    kernels = [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert names == {f"stages.0.convs.{step}.convs.{place}.weight" for step, place in kernels}


def test_every_parameter_is_in_one_group_and_the_frozen_ones_are_in_none():
    run = Run()
    run.encoder.freeze()
    groups = Muon(run.module, lr=0.1).param_groups
    held = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(held) == sorted(id(parameter) for parameter in run.decoder.parameters())


def test_an_update_has_the_length_of_adams():
    run = Run(learning_rate=0.01, weight_decay=0.0)
    (weight, *_) = hidden_convolutions(run.decoder)
    before = weight.detach().clone()
    run.go(0, 1)
    rms = (weight.detach() - before).square().mean().sqrt().item()
    assert rms == pytest.approx(0.01 * RMS, rel=0.3)


def test_the_loss_falls():
    losses = Run(learning_rate=0.01).go(0, 8)
    assert losses[-1] < losses[0] - 0.1


def test_a_run_that_goes_on_from_a_checkpoint_ends_as_an_unstopped_one():
    whole, first, second = Run(), Run(), Run()
    whole.go(0, 8)
    first.go(0, 5)
    second.update.load_state_dict(first.update.state_dict())
    second.go(5, 8)
    for one, other in zip(whole.module.parameters(), second.module.parameters(), strict=True):
        assert torch.equal(one, other)
