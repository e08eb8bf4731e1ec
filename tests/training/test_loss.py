"""The loss, against nnU-Net's definition written down once more and plainly."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import one_hot

from continual_segment.training.loss import (
    LossConfig,
    as_loss_config,
    dice_and_cross_entropy,
    shrink_labels,
    supervised_loss,
    weighted_dice_and_cross_entropy,
)

sizes = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 4))


def draw(batch, z, y, x, classes, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(batch, classes, z, y, x, generator=generator)
    labels = torch.randint(0, classes, (batch, z, y, x), generator=generator)
    return logits, labels


def plain_loss(logits, labels, present_only=False):
    """nnU-Net's DC_and_CE_loss without batch Dice: soft Dice per sample, background left out, smooth 1e-5."""
    truth = one_hot(labels, logits.shape[1]).movedim(-1, 1).to(logits.dtype)
    probability = logits.softmax(1)
    axes = (2, 3, 4)
    dice = (2 * (probability * truth).sum(axes) + 1e-5) / (probability.sum(axes) + truth.sum(axes) + 1e-5)
    cross_entropy = torch.nn.CrossEntropyLoss()(logits, labels)
    if not present_only:
        return cross_entropy - dice[:, 1:].mean()
    counted = [
        dice[sample, organ]
        for sample in range(len(labels))
        for organ in range(1, logits.shape[1])
        if organ in labels[sample]
    ]
    return cross_entropy - (torch.stack(counted).mean() if counted else 0)


@settings(max_examples=60, deadline=None)
@given(size=sizes, classes=st.integers(2, 6), seed=st.integers(0, 10_000))
def test_the_loss_is_nnunets(size, classes, seed):
    logits, labels = draw(*size, classes, seed)
    expected = plain_loss(logits.double(), labels)
    torch.testing.assert_close(
        dice_and_cross_entropy(logits, labels).double(), expected, rtol=1e-6, atol=1e-6
    )


@settings(max_examples=40, deadline=None)
@given(size=sizes, classes=st.integers(2, 6), seed=st.integers(0, 10_000))
def test_organs_that_a_sample_lacks_can_be_left_out_of_its_dice(size, classes, seed):
    logits, labels = draw(*size, classes, seed)
    expected = plain_loss(logits.double(), labels, present_only=True)
    found = dice_and_cross_entropy(logits, labels, "present").double()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(size=sizes, classes=st.integers(2, 6), seed=st.integers(0, 10_000))
def test_fully_balanced_every_organ_of_a_sample_counts_alike_in_the_cross_entropy(size, classes, seed):
    logits, labels = draw(*size, classes, seed)
    log_own = logits.double().log_softmax(1).gather(1, labels[:, None])[:, 0]
    means = [
        torch.stack([own[label == organ].mean() for organ in label.unique()]).mean()
        for own, label in zip(log_own, labels, strict=True)
    ]
    plain = plain_loss(logits.double(), labels) + log_own.mean()
    found = dice_and_cross_entropy(logits, labels, balance=1.0).double()
    torch.testing.assert_close(found, plain - torch.stack(means).mean(), rtol=1e-5, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(size=sizes, classes=st.integers(2, 6), seed=st.integers(0, 10_000))
def test_its_gradient_is_nnunets(size, classes, seed):
    logits, labels = draw(*size, classes, seed)
    ours, theirs = logits.clone().requires_grad_(), logits.double().requires_grad_()
    dice_and_cross_entropy(ours, labels).backward()
    plain_loss(theirs, labels).backward()
    torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=1e-4, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(
    size=sizes,
    classes=st.integers(2, 6),
    seed=st.integers(0, 10_000),
    dice_over=st.sampled_from(["all", "present"]),
    balance=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_its_gradient_is_its_slope(size, classes, seed, dice_over, balance):
    logits, labels = draw(*size, classes, seed)
    logits = logits.double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: 3 * dice_and_cross_entropy(x, labels, dice_over, balance), logits, fast_mode=True
    )


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_order_of_samples_in_a_batch_decides_nothing(seed):
    logits, labels = draw(3, 2, 4, 3, 4, seed)
    turned = torch.tensor([2, 0, 1])
    torch.testing.assert_close(
        dice_and_cross_entropy(logits[turned], labels[turned]), dice_and_cross_entropy(logits, labels)
    )


def test_a_perfect_prediction_costs_minus_one():
    _, labels = draw(2, 4, 4, 4, 3, seed=1)
    logits = 100 * one_hot(labels, 3).movedim(-1, 1).float()
    assert dice_and_cross_entropy(logits, labels).item() == pytest.approx(-1, abs=1e-5)


def test_the_worst_prediction_costs_more_than_none():
    _, labels = draw(2, 4, 4, 4, 3, seed=1)
    wrong = 10 * one_hot((labels + 1) % 3, 3).movedim(-1, 1).float()
    assert dice_and_cross_entropy(wrong, labels) > dice_and_cross_entropy(torch.zeros_like(wrong), labels)


@pytest.mark.parametrize("label", [0, 2])
def test_an_absent_organ_gives_no_nan(label):
    logits = torch.full((1, 3, 2, 2, 2), -200.0)
    logits[:, label] = 200.0
    logits.requires_grad_()
    loss = dice_and_cross_entropy(logits, torch.full((1, 2, 2, 2), label))
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


def test_half_precision_logits_are_judged_in_full_precision():
    logits, labels = draw(1, 4, 4, 4, 3, seed=0)
    half = logits.bfloat16()
    assert torch.equal(dice_and_cross_entropy(half, labels), dice_and_cross_entropy(half.float(), labels))


def test_each_coarser_output_counts_half_and_the_coarsest_not_at_all():
    labels = torch.randint(0, 3, (2, 8, 8, 8), generator=torch.Generator().manual_seed(0))
    outputs = [draw(2, side, side, side, 3, seed=side)[0] for side in (8, 4, 2)]
    fine, coarse = (
        dice_and_cross_entropy(output, labels[:, ::step, ::step, ::step])
        for output, step in zip(outputs[:2], (1, 2), strict=True)
    )
    torch.testing.assert_close(supervised_loss(outputs, labels), (fine + coarse / 2) / 1.5)


def test_given_weights_replace_those_of_nnunet():
    labels = torch.randint(0, 3, (2, 8, 8, 8), generator=torch.Generator().manual_seed(0))
    outputs = [draw(2, side, side, side, 3, seed=side)[0] for side in (8, 4, 2)]
    fine, coarse = (
        dice_and_cross_entropy(output, labels[:, ::step, ::step, ::step])
        for output, step in zip(outputs[::2], (1, 4), strict=True)
    )
    found = LossConfig(deep_supervision=(1, 0, 3)).build()(outputs, labels)
    torch.testing.assert_close(found, (fine + 3 * coarse) / 4)
    with pytest.raises(ValueError, match="argument 2 is longer"):
        LossConfig(deep_supervision=(1, 1)).build()(outputs, labels)


@pytest.mark.parametrize("weights", [None, (1.0, 0.5)])
def test_a_single_output_is_used_as_it_is(weights):
    logits, labels = draw(1, 4, 4, 4, 3, seed=0)
    loss = LossConfig(deep_supervision=weights).build()
    assert torch.equal(loss([logits], labels), dice_and_cross_entropy(logits, labels))


def test_a_loss_is_built_from_its_settings():
    outputs, labels = [draw(1, 4, 4, 4, 3, seed=0)[0]], torch.zeros(1, 4, 4, 4, dtype=torch.int64)
    found = LossConfig("present", 0.5).build()(outputs, labels)
    assert torch.equal(found, dice_and_cross_entropy(outputs[0], labels, "present", 0.5))


def test_a_function_of_ones_own_is_taken_as_it_is_and_known_by_its_name():
    def my_loss(outputs, labels):
        return outputs[0].sum()

    config = as_loss_config(my_loss)
    assert config.build() is my_loss
    assert config.described()["function"].endswith("my_loss")
    assert as_loss_config(torch.nn.MSELoss()).described() == {"function": "torch.nn.modules.loss.MSELoss"}
    assert as_loss_config(LossConfig("present")) == LossConfig("present")


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"dice_over": "some"}, "dice_over is one of all, present"),
        ({"balance": 1.5}, "balance is between 0 and 1"),
        ({"deep_supervision": (0.0, 1.0)}, "the first above 0"),
        ({"deep_supervision": (1.0, -1.0)}, "weights of 0 or more"),
        ({"deep_supervision": ()}, "weights of 0 or more"),
    ],
)
def test_wrong_settings_of_a_loss_fail_on_construction(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        LossConfig(**settings)


def test_shrunken_labels_are_labels_that_were_there():
    labels = torch.randint(0, 60_000, (1, 4, 6, 6), generator=torch.Generator().manual_seed(0))
    small = shrink_labels(labels, (4, 3, 3))
    assert torch.equal(small, labels[:, :, ::2, ::2])  # the nearest voxel, exact for ids of any size
    assert small.dtype == torch.int64


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_mixed_precision_does_not_reach_into_the_loss(precision, masked):
    """A class of more voxels than float16 can count, and shares smaller than it can express."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 2, 90_000, generator=generator).requires_grad_()
    labels = torch.ones(1, 90_000, dtype=torch.int64)
    weight, share = torch.full((1, 90_000), 1 / 90_000), torch.full((1, 2), 1 / 206)
    valid = torch.ones(1, 90_000) if masked else None
    found = []
    for mixed in (False, True):
        logits.grad = None
        with torch.autocast("cpu", precision, enabled=mixed):
            loss = weighted_dice_and_cross_entropy(logits, labels, weight, share, valid)
        loss.backward()
        found.append((loss.item(), logits.grad.clone()))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])
