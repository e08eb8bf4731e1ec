"""Losses that know what background hides, against plain forms of the same."""

from itertools import pairwise

import pytest
import torch
from torch.nn import CrossEntropyLoss
from torch.nn.functional import one_hot

from continual_segment.lab.baselines.classes import StepClasses
from continual_segment.lab.baselines.marginal import distillation, grown, joined, labelled_logits
from continual_segment.networks import Decoder, DecoderPlan, GeneralEncoder, NetworkConfig
from continual_segment.organs import find_organ
from continual_segment.training import dice_and_cross_entropy

NETWORK = NetworkConfig((4, 6, 8), ((3, 3, 3),) * 3, ((1, 1, 1), (2, 2, 2), (2, 2, 2)))


def cross_entropy(logits, labels, classes):
    return CrossEntropyLoss()(labelled_logits(logits, classes), labels)


def labelled_loss(logits, labels, classes):
    return dice_and_cross_entropy(labelled_logits(logits, classes), labels)


def first_step(organs):
    names = ("liver", "spleen", "aorta", "trachea", "sternum")[:organs]
    return StepClasses.of((), tuple(map(find_organ, names)))


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_mixed_precision_does_not_reach_into_distillation(precision):
    classes = StepClasses.of(tuple(map(find_organ, ("liver", "spleen"))), (find_organ("aorta"),))
    draw = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(1, n, 48, 48, 48, generator=draw) * 3 for n in (4, 3))
    expected = distillation(student, teacher, classes)
    with torch.autocast("cpu", precision):
        assert distillation(student, teacher, classes) == expected


# limits


def test_without_old_organs_the_loss_is_nnunets(draw, draw_labels):  # T01, T03
    logits, labels = draw(4), draw_labels(3)
    classes = first_step(3)
    assert abs(cross_entropy(logits, labels, classes) - CrossEntropyLoss()(logits, labels)) < 1e-12
    assert abs(labelled_loss(logits, labels, classes) - dice_and_cross_entropy(logits, labels)) < 1e-12


def test_joined_logits_give_sums_of_probabilities(draw, overlapping, draw_labels):  # T02
    logits, labels = draw(7), draw_labels(3)
    probability = logits.softmax(1)
    summed = torch.cat((probability[:, [0, 1, 3, 4]].sum(1, keepdim=True), probability[:, [5, 2, 6]]), dim=1)
    expected = -summed.gather(1, labels[:, None]).log().mean()
    assert abs(cross_entropy(logits, labels, overlapping) - expected) < 1e-12


def test_extreme_logits_stay_finite_in_single_precision(draw, overlapping, draw_labels):  # T02
    logits = (80 * draw(7).sign()).float().requires_grad_()
    loss = labelled_loss(logits, draw_labels(3), overlapping)
    loss = loss + distillation(logits, (80 * draw(5, seed=1).sign()).float(), overlapping)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


def test_dice_leaves_old_organs_out_of_its_mean(draw, draw_labels, overlapping):  # T03, T23
    """An old organ's empty target must not punish its voxels."""
    logits, labels = draw(7), draw_labels(3)
    probability, truth = logits.softmax(1)[:, [5, 2, 6]], one_hot(labels, 4).movedim(-1, 1)[:, 1:]
    axes = (2, 3, 4)
    dice = (2 * (probability * truth).sum(axes) + 1e-5) / (probability.sum(axes) + truth.sum(axes) + 1e-5)
    expected = cross_entropy(logits, labels, overlapping) - dice.mean()
    assert abs(labelled_loss(logits, labels, overlapping) - expected) < 1e-12


def test_distillation_without_labelled_organs_is_plain(draw):  # T04
    classes = StepClasses.of(first_step(3).organs, ())
    student, teacher = draw(4), draw(4, seed=1)
    plain = -(teacher.softmax(1) * student.log_softmax(1)).sum(1).mean()
    assert abs(distillation(student, teacher, classes, mean_over_classes=False) - plain) < 1e-12
    assert abs(distillation(student, teacher, classes) - plain / 4) < 1e-12


def mib_formula(student, teacher):
    """The published formula for old channels first and new ones last, in plain probabilities."""
    q, p, old = student.softmax(1), teacher.softmax(1), teacher.shape[1]
    answer = torch.cat((q[:, :1] + q[:, old:].sum(1, keepdim=True), q[:, 1:old]), dim=1)
    return -(p * answer.log()).mean()


def test_distillation_of_disjoint_classes_is_mibs(draw, disjoint):  # T05
    student, teacher = draw(5), draw(3, seed=1)
    assert abs(distillation(student, teacher, disjoint) - mib_formula(student, teacher)) < 1e-12


def test_distillation_does_not_depend_on_the_numbers_of_classes(draw, disjoint):  # T05, T20
    student, teacher = draw(5), draw(3, seed=1)
    swapped = StepClasses(disjoint.organs, 2, disjoint.labelled[::-1])
    moved = distillation(student[:, [0, 2, 1, 4, 3]], teacher[:, [0, 2, 1]], swapped)
    assert abs(moved - distillation(student, teacher, disjoint)) < 1e-12


# balanced initialisation


@pytest.fixture
def networks():
    """A decoder with four organs, the same after growing by two, and features to decode."""
    torch.manual_seed(0)
    decoder = Decoder(NETWORK, DecoderPlan.nnunet(NETWORK), 4).double()
    for head in decoder.seg_layers:
        torch.nn.init.normal_(head.bias)
    features = GeneralEncoder(NETWORK).double()(torch.randn(2, 1, 8, 8, 8, dtype=torch.float64))
    return decoder, grown(decoder, 2).double(), features


def test_new_classes_share_the_backgrounds_probability_and_old_organs_keep_theirs(networks):  # T07
    decoder, larger, features = networks
    for before, after in zip(
        decoder.forward_supervised(features), larger.forward_supervised(features), strict=True
    ):
        before, after = before.softmax(1), after.softmax(1)
        torch.testing.assert_close(after[:, 1:5], before[:, 1:], rtol=0, atol=1e-6)  # weights are single
        for channel in (0, 5, 6):
            torch.testing.assert_close(after[:, channel], before[:, 0] / 3, rtol=0, atol=1e-6)


def test_a_step_without_new_classes_starts_from_the_same_bits(networks):  # T07, T40
    decoder = networks[0].float()
    state = decoder.state_dict()
    for name, tensor in grown(decoder, 0).state_dict().items():
        assert torch.equal(tensor, state[name])


@pytest.mark.parametrize("step", ["overlapping", "disjoint", "esophagus_again"])
def test_at_the_start_distillation_is_the_teachers_entropy_and_pulls_nowhere(request, draw, step):  # T06
    classes = request.getfixturevalue(step)
    teacher = draw(classes.before + 1)
    shift = torch.log(torch.tensor(len(classes.new) + 1.0, dtype=torch.float64))
    background = teacher[:, :1] - shift
    new = [background] * len(classes.new)
    student = torch.cat((background, teacher[:, 1:], *new), dim=1).requires_grad_()
    target = joined(teacher, classes.background_of_teacher, classes.old_only).softmax(1)
    entropy = -(target * target.log()).sum(1).mean()
    loss = distillation(student, teacher, classes, mean_over_classes=False)
    assert abs(loss - entropy) < 1e-12
    loss.backward()
    assert student.grad.abs().max() < 1e-12


# invariances


def test_a_constant_added_to_a_voxels_logits_changes_nothing(draw, draw_labels, overlapping):  # T20
    student, teacher, labels = draw(7), draw(5, seed=1), draw_labels(3)
    moved = student + draw(1, seed=2)
    assert (
        abs(labelled_loss(moved, labels, overlapping) - labelled_loss(student, labels, overlapping)) < 1e-12
    )
    assert (
        abs(distillation(moved, teacher, overlapping) - distillation(student, teacher, overlapping)) < 1e-12
    )


def moved_within(logits, first, second):
    """Half of one class's probability given to another."""
    odds = logits.exp()
    gain = odds[:, first] / 2
    odds = odds.clone()
    odds[:, first] -= gain
    odds[:, second] += gain
    return odds.log()


def test_labels_do_not_care_which_old_organ_background_is(draw, draw_labels, overlapping):  # T21
    student, labels = draw(7), draw_labels(3)
    for pair in pairwise(overlapping.background_of_labels):
        other = moved_within(student, *pair)
        assert (
            abs(labelled_loss(other, labels, overlapping) - labelled_loss(student, labels, overlapping))
            < 1e-12
        )


def test_the_teacher_does_not_care_which_labelled_organ_its_background_is(draw, overlapping):  # T22
    student, teacher = draw(7), draw(5, seed=1)
    for pair in pairwise(overlapping.background_of_student):
        other = moved_within(student, *pair)
        assert (
            abs(distillation(other, teacher, overlapping) - distillation(student, teacher, overlapping))
            < 1e-12
        )


def test_losses_do_not_depend_on_the_order_or_number_of_samples(draw, draw_labels, overlapping):  # T26
    student, teacher, labels = draw(7), draw(5, seed=1), draw_labels(3)
    for order in ([1, 0], [0, 1, 0, 1]):
        for loss, others in ((labelled_loss, labels), (distillation, teacher)):
            assert (
                abs(loss(student[order], others[order], overlapping) - loss(student, others, overlapping))
                < 1e-12
            )


# gradients


def test_gradients_are_those_of_the_closed_forms(draw, draw_labels, overlapping):  # T30
    labels, teacher = draw_labels(3), draw(5, seed=1)
    student = draw(7, grad=True)
    cross_entropy(student, labels, overlapping).backward()
    q = student.detach().softmax(1)
    voxels = labels.numel()
    members = [overlapping.background_of_labels, (5,), (2,), (6,)]
    expected = q.clone()
    for label, group in enumerate(members):
        inside = q[:, list(group)]
        share = inside / inside.sum(1, keepdim=True)
        expected[:, list(group)] -= share * (labels == label)[:, None]
    torch.testing.assert_close(student.grad, expected / voxels, rtol=0, atol=1e-12)

    student = draw(7, grad=True)
    distillation(student, teacher, overlapping).backward()
    p = teacher.softmax(1)
    expected = torch.zeros_like(q)
    groups = [(overlapping.background_of_student, overlapping.background_of_teacher)]
    groups += [((channel,), (channel,)) for channel in overlapping.old_only]
    for ours, theirs in groups:
        answer, target = q[:, list(ours)].sum(1, keepdim=True), p[:, list(theirs)].sum(1, keepdim=True)
        expected[:, list(ours)] = q[:, list(ours)] * (1 - target / answer)
    torch.testing.assert_close(student.grad, expected / (voxels * 4), rtol=0, atol=1e-12)


def test_numeric_gradients_agree(overlapping):  # T30
    generator = torch.Generator().manual_seed(0)
    student = torch.randn(1, 7, 1, 2, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(1, 5, 1, 2, 2, generator=generator, dtype=torch.float64)
    labels = torch.tensor([[[[0, 1], [2, 3]]]])
    assert torch.autograd.gradcheck(lambda z: labelled_loss(z, labels, overlapping), student)
    assert torch.autograd.gradcheck(lambda z: distillation(z, teacher, overlapping), student)


def test_gradients_of_a_voxel_sum_to_nothing(draw, draw_labels, overlapping):  # T31
    for loss_of in (
        lambda z: cross_entropy(z, draw_labels(3), overlapping),
        lambda z: distillation(z, draw(5, seed=1), overlapping),
    ):
        student = draw(7, grad=True)
        loss_of(student).backward()
        assert student.grad.sum(1).abs().max() < 1e-12


def test_the_printed_distillation_raises_the_liver_inside_the_esophagus_and_ours_does_not():  # T32
    classes = StepClasses.of(tuple(map(find_organ, ("liver", "esophagus"))), (find_organ("esophagus"),))
    teacher = torch.tensor([0.05, 0.05, 0.90], dtype=torch.float64).log().reshape(1, 3, 1, 1, 1)
    for form, raised in (("literal", True), ("merged", False)):
        student = torch.tensor([0.475, 0.05, 0.475], dtype=torch.float64).log()
        student = student.reshape(1, 3, 1, 1, 1).requires_grad_()
        distillation(student, teacher, classes, form, mean_over_classes=False).backward()
        slope = float(student.grad[0, 1])
        assert slope == pytest.approx(-0.045 if raised else 0.0, abs=1e-12)


def test_no_gradient_reaches_the_teacher(draw, overlapping):  # T33
    teacher = draw(5, seed=1)
    distillation(draw(7, grad=True), teacher, overlapping).backward()
    assert teacher.grad is None


# edges


def test_a_step_without_new_classes_has_finite_losses(draw, esophagus_again):  # T40
    student, teacher = draw(4, grad=True), draw(4, seed=1)
    labels = torch.randint(0, 2, (2, 3, 4, 5))
    assert labelled_logits(student, esophagus_again).shape[1] == 2
    loss = labelled_loss(student, labels, esophagus_again) + distillation(student, teacher, esophagus_again)
    loss.backward()
    assert loss.isfinite()
    assert student.grad.isfinite().all()


def test_with_all_old_organs_labelled_again_there_is_nothing_to_distil(draw):  # T41
    known = tuple(map(find_organ, ("liver", "spleen")))
    classes = StepClasses.of(known, (*known, find_organ("aorta")))
    student = draw(4, grad=True)
    loss = distillation(student, draw(3, seed=1), classes)
    loss.backward()
    assert abs(loss) < 1e-12
    assert student.grad.abs().max() < 1e-12
