"""Old organs filled in by the teacher."""

from math import inf, log

import pytest
import torch

from continual_segment.lab.baselines.classes import StepClasses
from continual_segment.lab.baselines.marginal import joined, labelled_logits
from continual_segment.lab.baselines.pseudo_labels import (
    IGNORE,
    DoubtHistogram,
    complete,
    completed_loss,
    published_median,
    teacher_votes,
)
from continual_segment.organs import find_organ
from continual_segment.training.loss import dice_alone, dice_and_cross_entropy


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


def own_dice(student, labels, classes, dice_over="present"):
    """Of the dataset's organs, as every method has it."""
    return float(dice_alone(labelled_logits(student, classes), labels, dice_over))


def dice_of(probability, target, channels):
    """Mean over the channels that occur, of one sample."""
    true = torch.stack([target == channel for channel in channels])
    predicted = probability[list(channels)]
    overlap = (predicted * true).sum((1, 2, 3))
    return (2 * overlap / (predicted + true).sum((1, 2, 3)))[true.any((1, 2, 3))].mean()


def test_when_every_vote_is_accepted_the_loss_is_nnunets_on_completed_labels(draw, draw_labels, overlapping):
    """T10: cross-entropy on all classes, Dice of the dataset's organs, and Dice of those filled in."""
    student, teacher, labels = draw(7), draw(5, seed=1), draw_labels(3)
    completed = complete(labels, teacher, overlapping, torch.full((4,), 2.0))
    votes = joined(teacher, overlapping.background_of_teacher, overlapping.old_only).argmax(1)
    voted = torch.tensor(overlapping.background_of_labels)[votes]
    expected = torch.where(labels > 0, overlapping.as_channels(labels), voted)
    assert torch.equal(completed.targets, expected)
    assert completed.accepted.tolist() == pytest.approx([1, 1], abs=1e-6)
    cross_entropy = dice_and_cross_entropy(student, expected) - dice_alone(student, expected)
    filled_in = [
        dice_of(probability, target, overlapping.old_only)
        for probability, target in zip(student.softmax(1), expected, strict=True)
    ]
    plain = own_dice(student, labels, overlapping) + cross_entropy - torch.stack(filled_in).mean()
    loss = completed_loss(student, completed, overlapping, "present")
    assert float(loss) == pytest.approx(float(plain), abs=1e-5)


def test_dice_can_leave_out_the_old_organs_that_are_filled_in(draw, draw_labels, overlapping):
    student, labels = draw(7), draw_labels(3)
    completed = complete(labels, draw(5, seed=1), overlapping, torch.ones(4))
    log_probability, targets = student.log_softmax(1), completed.targets
    assert any((targets == channel).any() for channel in overlapping.old_only)
    cross_entropy = -log_probability.gather(1, targets[:, None]).mean((1, 2, 3, 4))
    loss = completed_loss(student, completed, overlapping, "present", old_in_dice=False)
    plain = own_dice(student, labels, overlapping) + (completed.accepted * cross_entropy).mean()
    assert float(loss) == pytest.approx(float(plain), abs=1e-5)


def test_when_no_vote_is_accepted_the_datasets_own_dice_is_left(draw, draw_labels, overlapping):  # T10
    student, labels = draw(7), draw_labels(3)
    completed = complete(labels, draw(5, seed=1), overlapping, torch.zeros(4))
    assert ((completed.targets == IGNORE) == (labels == 0)).all()
    loss = completed_loss(student, completed, overlapping)
    assert float(loss) == pytest.approx(own_dice(student, labels, overlapping, "all"))


def test_ignored_voxels_matter_to_nothing_but_the_datasets_own_dice(draw, draw_labels, overlapping):
    student, labels = draw(7), draw_labels(3)
    completed = complete(labels, draw(5, seed=1), overlapping, torch.full((4,), 0.5))
    ignored = completed.targets == IGNORE
    assert ignored.any()
    other = torch.where(ignored[:, None], draw(7, seed=5), student)
    for mean_over in ("all", "valid"):
        before, after = (
            completed_loss(logits, completed, overlapping, balance=0.2, mean_over=mean_over)
            - own_dice(logits, labels, overlapping, "all")
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


def test_a_class_has_at_least_the_least_threshold_in_the_units_of_its_scale(overlapping):
    normalised, code = (DoubtHistogram(overlapping, scale=scale) for scale in ("normalised", "code"))
    assert normalised.thresholds(0.001).tolist() == pytest.approx([0.001] * 4)
    assert code.thresholds(0.001).tolist() == pytest.approx([0.001 * 4 * log(7)] * 4)


def test_with_many_classes_the_published_scale_accepts_every_vote():
    names = [f"organ_{number}" for number in range(131)]
    organs = tuple(find_organ(name) for name in names)
    classes = StepClasses.of(organs[:103], organs[103:])
    histogram = DoubtHistogram(classes, scale="code")
    generator = torch.Generator().manual_seed(0)
    teacher = 3 * torch.randn(1, 104, 4, 8, 8, generator=generator)
    histogram.add(teacher, torch.zeros(1, 4, 8, 8, dtype=torch.int64))
    _, doubt = teacher_votes(teacher, classes)
    thresholds = histogram.thresholds(0.001)
    assert 0 < float(doubt.max()) < float(thresholds[histogram.counts.sum(1) > 0].min())


def test_the_published_median_stops_at_the_first_bin_with_half_of_the_votes():
    assert published_median([6, 2, 2, 0]) == pytest.approx(5 / 6 / 4)
    assert published_median([1, 2, 6, 1]) == pytest.approx((2 + (5 - 1) / 6) / 4)  # below: 0 + 1
    assert published_median([3, 3, 3, 0]) == inf  # no bin has half: everything is accepted


@pytest.mark.parametrize("mean_over", ["all", "valid"])
def test_numeric_gradients_of_the_completed_loss_agree(draw, draw_labels, overlapping, mean_over):  # T30
    completed = complete(draw_labels(3), draw(5, seed=1), overlapping, torch.full((4,), 0.5))
    assert (completed.targets == IGNORE).any()
    assert torch.autograd.gradcheck(
        lambda logits: completed_loss(logits, completed, overlapping, "all", 0.2, mean_over),
        draw(7, grad=True),
    )
