"""Losses that model the background (MiB, Cermelli et al., CVPR 2020).

The probability of "background" in a label is that of background or any organ the dataset does not label.
Logits of such a group join by log-sum-exp; a softmax over the joined logits then gives the sums of the
probabilities exactly, with no logarithm of a sum of small numbers. So nnU-Net's loss on joined logits is the
unbiased cross-entropy plus Dice over the labelled organs alone, and neither needs a separate loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from continual_segment.lab.baselines.classes import StepClasses
from continual_segment.networks import Decoder
from continual_segment.training.loss import full_precision, precise

OverlapForm = Literal["merged", "literal"]
NewLogits = Literal["joined", "sum"]


def joined(logits: Tensor, background: Sequence[int], kept: Sequence[int]) -> Tensor:
    """Logits (batch, class, ...) with some channels joined to one background, followed by the kept ones."""
    return _Joined.apply(precise(logits), list(background), list(kept))


class _Joined(torch.autograd.Function):
    """The same as by autograd, which would keep a volume for every operation; this keeps one."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, background: list[int], kept: list[int]) -> Tensor:
        group = logits[:, background]
        together = group.logsumexp(1, keepdim=True)
        ctx.channels, ctx.shape = (background, kept), logits.shape
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(group.sub_(together).exp_())
        return torch.cat((together, logits[:, kept]), dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        (gradient,), (shares,), (background, kept) = outer, ctx.saved_tensors, ctx.channels
        by_logits = gradient.new_zeros(ctx.shape)
        by_logits[:, background] = shares * gradient[:, :1]
        by_logits[:, kept] = gradient[:, 1:]
        return by_logits, None, None


def labelled_logits(logits: Tensor, classes: StepClasses) -> Tensor:
    """The student's logits as the dataset sees them: its labels, and background for all else."""
    return joined(logits, classes.background_of_labels, classes.labelled)


def old_logits(logits: Tensor, classes: StepClasses, new: NewLogits = "joined") -> Tensor:
    """The student's logits in the teacher's channels: new organs go into background.

    They go as probabilities do, or are added, as in the published code of PLOP and RCIL.
    """
    own, organs = (0, *classes.new), range(1, classes.before + 1)
    if new == "joined":
        return joined(logits, own, organs)
    return torch.cat((logits[:, list(own)].sum(1, keepdim=True), logits[:, list(organs)]), dim=1)


def distillation(
    student: Tensor,
    teacher: Tensor,
    classes: StepClasses,
    overlap: OverlapForm = "merged",
    mean_over_classes: bool = True,
) -> Tensor:
    """Unbiased distillation: cross-entropy of the teacher's output and the student's, both in old classes.

    The student's background is joined with all labelled organs, the teacher's with those of them it knows.
    The form "literal" is the printed formula, which drops the teacher's probability of shared organs and so
    raises other old organs inside them. `mean_over_classes` divides by the number of classes, as the
    published code does.
    """
    old = list(classes.old_only)
    if overlap == "merged":
        target = joined(teacher, classes.background_of_teacher, old).softmax(1)
    else:
        target = precise(teacher).softmax(1)[:, [0, *old]]
    with full_precision(student.device):
        loss = _CrossEntropy.apply(
            precise(student), target.detach(), list(classes.background_of_student), old
        )
    return loss / (len(old) + 1) if mean_over_classes else loss


class _CrossEntropy(torch.autograd.Function):
    """Mean over voxels of the cross-entropy of a target and the softmax of joined and kept logits.

    The target t has background first, then the kept classes; its sum is T. With q the softmax of all
    logits z, the loss of a voxel is T lse(all) - t_0 lse(joined) - sum_c t_c z_c, and its derivative by the
    logit k is T q_k - t_k for a kept class, T q_k - t_0 q_k / q(joined) for a joined one.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, background: list[int], kept: list[int]) -> Tensor:
        total, voxels = target.sum(1, keepdim=True), target[:, :1].numel()
        own = logits[:, kept]
        loss = -(own.flatten() @ target[:, 1:].flatten())
        everything = logits.logsumexp(1, keepdim=True)
        group = logits[:, background].logsumexp(1, keepdim=True)
        loss += (total * everything).sum() - (target[:, :1] * group).sum()
        if ctx.needs_input_grad[0]:
            gradient = torch.empty_like(logits)  # every class is joined or kept
            gradient[:, kept] = own.sub_(everything).exp_().mul_(total).sub_(target[:, 1:])
            of_group = total * (group - everything).exp() - target[:, :1]
            gradient[:, background] = (logits[:, background] - group).exp_().mul_(of_group)
            ctx.save_for_backward(gradient.div_(voxels))
        return loss / voxels

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * outer[0], None, None, None


@torch.no_grad()
def grown(decoder: Decoder, new: int) -> Decoder:
    """The decoder with so many new classes, which initially share the background's probability.

    Old organs keep their probability to the last voxel; background and the new organs have equal shares of
    what background had. With no new class, a copy.
    """
    larger = Decoder(decoder.network, decoder.plan, decoder.organs + new)
    state = decoder.state_dict()
    for name, tensor in larger.state_dict().items():
        if name.startswith("seg_layers."):
            background = state[name][:1]
            tensor.copy_(torch.cat((state[name], background.repeat(new, *(1,) * (tensor.ndim - 1)))))
        else:
            tensor.copy_(state[name])
    if new:
        for head in larger.seg_layers:
            assert isinstance(head, nn.Conv3d)
            assert head.bias is not None
            for channel in (0, *range(decoder.organs + 1, larger.organs + 1)):
                head.bias[channel] -= log(new + 1)
    return larger
