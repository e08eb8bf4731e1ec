"""Our layers give the answers and gradients of PyTorch's."""

import pytest
import torch
from torch import nn

from continual_segment.networks import layers
from continual_segment.networks.layers import FastInstanceNorm, FastTransposedConv, SplitInputConv


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def assert_alike(ours, theirs, *inputs):
    """Answers, and gradients of the inputs and all weights."""
    theirs.load_state_dict(ours.state_dict())
    found = []
    for layer in (ours, theirs):
        answer = layer(*inputs)
        learned = [each for each in (*inputs, *layer.parameters()) if each.requires_grad]
        weights = torch.linspace(-1, 1, answer.numel()).view_as(answer)
        found.append([answer, *torch.autograd.grad((answer * weights).sum(), learned)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


class Joined(nn.Conv3d):
    def forward(self, *parts):
        return super().forward(torch.cat(parts, dim=1))


@pytest.mark.parametrize("kernel", [(1, 1, 1), (1, 3, 3), (3, 3, 3)])
@pytest.mark.parametrize("learned", [(True, True), (True, False), (False, False)])
def test_a_convolution_of_parts_is_one_of_the_parts_joined(kernel, learned):
    padding = tuple(size // 2 for size in kernel)
    parts = [
        torch.randn(2, channels, 6, 8, 8, requires_grad=needs)
        for channels, needs in zip((3, 2), learned, strict=True)
    ]
    assert_alike(SplitInputConv(5, 4, kernel, padding=padding), Joined(5, 4, kernel, padding=padding), *parts)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [(1, 1, 1), (1, 3, 3), (3, 1, 1), (3, 3, 3), (3, 5, 7)])
@pytest.mark.parametrize("learned", [(True, True), (True, False), (False, False)])
def test_gradients_from_a_padded_input_are_those_of_a_convolution(monkeypatch, kernel, learned, stride):
    monkeypatch.setattr(layers, "has_avx2_kernels", lambda device: True)
    padding = tuple(size // 2 for size in kernel)
    parts = [torch.randn(2, 8, 4, 6, 8, requires_grad=needs) for needs in learned]
    settings = (16, 8, kernel, stride, padding)
    assert_alike(SplitInputConv(*settings), Joined(*settings), *parts)
    assert_alike(SplitInputConv(*settings, bias=False), Joined(*settings, bias=False), *parts)


def test_a_convolution_that_learns_and_one_that_is_frozen_answer_alike_bit_by_bit(monkeypatch):
    conv, x = SplitInputConv(8, 16, 3, padding=1), torch.randn(2, 8, 4, 6, 8)
    answers = []
    for has_avx2_kernels in (True, False):
        monkeypatch.setattr(layers, "has_avx2_kernels", lambda device, found=has_avx2_kernels: found)
        answers.append(conv(x).detach())
    with torch.no_grad():
        answers.append(conv(x))
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])


@pytest.mark.parametrize("changed", ["float64", "bfloat16", "five channels", "another processor"])
def test_only_what_the_kernels_are_made_for_is_padded(monkeypatch, changed):
    monkeypatch.setattr(layers, "has_avx2_kernels", lambda device: changed != "another processor")
    monkeypatch.setattr(layers._PaddedGradientConv, "apply", lambda *inputs: pytest.fail("was padded"))
    channels = 5 if changed == "five channels" else 8
    conv, x = SplitInputConv(channels, 8, 3, padding=1), torch.randn(1, channels, 4, 4, 4)
    if changed == "float64":
        conv, x = conv.double(), x.double()
    with torch.autocast("cpu", torch.bfloat16, enabled=changed == "bfloat16"):
        conv(x).float().sum().backward()
    assert conv.weight.grad is not None


@pytest.mark.parametrize("batch", [1, 3])
def test_a_channel_norm_is_an_instance_norm(batch):
    ours, theirs = (kind(5, affine=True) for kind in (FastInstanceNorm, nn.InstanceNorm3d))
    nn.init.normal_(ours.weight)
    nn.init.normal_(ours.bias)
    assert_alike(ours, theirs, (3 + 2 * torch.randn(batch, 5, 4, 6, 5)).requires_grad_())


@pytest.mark.parametrize("stride", [(1, 2, 2), (2, 2, 2), (1, 1, 3)])
@pytest.mark.parametrize("batch", [1, 3])
def test_an_enlarging_layer_is_a_transposed_convolution(batch, stride):
    x = torch.randn(batch, 5, 3, 4, 6, requires_grad=True)
    assert_alike(FastTransposedConv(5, 4, stride), nn.ConvTranspose3d(5, 4, stride, stride), x)


@pytest.mark.parametrize("stride", [(2, 2, 2), (1, 2, 2), (1, 1, 2)])
def test_a_change_of_order_by_pairs_gives_the_same_bits(stride):
    torch.manual_seed(0)
    layer, x = FastTransposedConv(3, 4, stride), torch.randn(2, 3, 3, 4, 5)
    with torch.no_grad():
        found = layer(x)
    assert torch.equal(found, layer(x))  # with gradients, by single numbers
    assert found.is_contiguous()
