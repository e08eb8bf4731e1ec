"""Old organs filled in by the teacher."""

from math import log

import pytest
import torch

from continual_segment.lab.baselines.marginal import joined
from continual_segment.lab.baselines.pseudo_labels import (
    IGNORE,
    DoubtHistogram,
    complete,
    completed_loss,
    least_threshold,
    teacher_votes,
)
from continual_segment.training import dice_and_cross_entropy


def test_doubt_runs_from_one_hot_to_uniform(overlapping, disjoint):  # T25
    for classes in (overlapping, disjoint):
        sure = torch.zeros(1, classes.before + 1, 1, 1, 1, dtype=torch.float64)
        sure[:, 1] = 200
        assert teacher_votes(sure, classes)[1] == pytest.approx(0)
        merged = torch.zeros(1, classes.before + 1, 1, 1, 1, dtype=torch.float64)
        merged[:, list(classes.background_of_teacher)] = -log(len(classes.background_of_teacher))
        assert teacher_votes(merged, classes)[1] == pytest.approx(1)


def test_doubt_lies_between_0_and_1(draw, overlapping):  # T25
    doubt = teacher_votes(draw(5), overlapping)[1]
    assert ((doubt >= 0) & (doubt <= 1)).all()


def test_a_vote_for_an_organ_that_is_labelled_counts_as_background(overlapping):
    teacher = torch.zeros(1, 5, 1, 1, 1, dtype=torch.float64)
    teacher[:, 2] = 200
    votes, doubt = teacher_votes(teacher, overlapping)
    assert votes.item() == 0
    assert doubt.item() == pytest.approx(0)


def test_when_every_vote_is_accepted_the_loss_is_nnunets_on_completed_labels(draw, draw_labels, overlapping):
    """T10"""
    student, teacher, labels = draw(7), draw(5, seed=1), draw_labels(3)
    completed = complete(labels, teacher, overlapping, torch.full((4,), 2.0))
    votes = joined(teacher, overlapping.background_of_teacher, overlapping.old_only).argmax(1)
    voted = torch.tensor(overlapping.background_of_labels)[votes]
    expected = torch.where(labels > 0, overlapping.as_channels(labels), voted)
    assert torch.equal(completed.targets, expected)
    assert completed.accepted.tolist() == pytest.approx([1, 1], abs=1e-6)
    loss = completed_loss(student, completed, overlapping, "present")
    per_sample = [
        dice_and_cross_entropy(student[i : i + 1], expected[i : i + 1], "present") for i in range(2)
    ]
    assert float(loss) == pytest.approx(float(torch.stack(per_sample).mean()), abs=1e-6)


def test_dice_can_leave_out_the_old_organs_that_are_filled_in(draw, draw_labels, overlapping):
    student, labels = draw(7), draw_labels(3)
    completed = complete(labels, draw(5, seed=1), overlapping, torch.ones(4))
    log_probability, targets = student.log_softmax(1), completed.targets
    assert any((targets == channel).any() for channel in overlapping.old_only)
    cross_entropy = -log_probability.gather(1, targets[:, None]).mean((1, 2, 3, 4))
    dice = []
    for probability, target in zip(log_probability.exp(), targets, strict=True):
        true = torch.stack([target == channel for channel in overlapping.labelled])
        predicted = probability[list(overlapping.labelled)]
        overlap = (predicted * true).sum((1, 2, 3))
        dice.append((2 * overlap / (predicted + true).sum((1, 2, 3)))[true.any((1, 2, 3))].mean())
    loss = completed_loss(student, completed, overlapping, "present", old_in_dice=False)
    plain = (completed.accepted * (cross_entropy - torch.stack(dice))).mean()
    assert float(loss) == pytest.approx(float(plain), abs=1e-5)


def test_when_no_vote_is_accepted_there_is_nothing_to_learn(draw, draw_labels, overlapping):  # T10
    student, labels = draw(7, grad=True), draw_labels(3)
    completed = complete(labels, draw(5, seed=1), overlapping, torch.zeros(4))
    assert ((completed.targets == IGNORE) == (labels == 0)).all()
    loss = completed_loss(student, completed, overlapping)
    loss.backward()
    assert loss == 0
    assert student.grad.abs().max() == 0


def test_ignored_voxels_do_not_matter(draw, draw_labels, overlapping):
    student, labels = draw(7), draw_labels(3)
    completed = complete(labels, draw(5, seed=1), overlapping, torch.full((4,), 0.5))
    ignored = completed.targets == IGNORE
    assert ignored.any()
    other = torch.where(ignored[:, None], draw(7, seed=5), student)
    for mean_over in ("all", "valid"):
        before, after = (
            completed_loss(logits, completed, overlapping, balance=0.2, mean_over=mean_over)
            for logits in (student, other)
        )
        assert float(before) == pytest.approx(float(after), abs=1e-12)


def test_labels_are_not_changed_in_place(draw, draw_labels, overlapping):
    labels = draw_labels(3)
    before = labels.clone()
    complete(labels, draw(5, seed=1), overlapping, torch.full((4,), 0.5))
    assert torch.equal(labels, before)


def test_half_of_the_votes_of_a_class_lie_below_its_median(overlapping):
    generator = torch.Generator().manual_seed(0)
    teacher = 2 * torch.randn(2, 5, 16, 16, 16, generator=generator, dtype=torch.float64)
    labels = torch.zeros(2, 16, 16, 16, dtype=torch.int64)
    histogram = DoubtHistogram(overlapping)
    histogram.add(teacher, labels)
    votes, doubt = teacher_votes(teacher, overlapping)
    medians = histogram.medians()
    for kind in range(4):
        assert (doubt[votes == kind] < medians[kind]).double().mean() == pytest.approx(0.5, abs=0.03)


def test_a_class_that_never_came_has_no_median(overlapping):
    assert DoubtHistogram(overlapping).medians().tolist() == [0, 0, 0, 0]


def test_the_published_scale_accepts_half_of_the_range_with_many_classes(overlapping):
    assert least_threshold(0.001, overlapping, "normalised") == 0.001
    assert least_threshold(0.001, overlapping, "code") == pytest.approx(0.001 * 4 * log(7))


@pytest.mark.parametrize("mean_over", ["all", "valid"])
def test_numeric_gradients_of_the_completed_loss_agree(draw, draw_labels, overlapping, mean_over):  # T30
    completed = complete(draw_labels(3), draw(5, seed=1), overlapping, torch.full((4,), 0.5))
    assert (completed.targets == IGNORE).any()
    assert torch.autograd.gradcheck(
        lambda logits: completed_loss(logits, completed, overlapping, "all", 0.2, mean_over),
        draw(7, grad=True),
    )
