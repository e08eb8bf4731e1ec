"""nnU-Net's segmentation loss: cross-entropy plus soft Dice, at every resolution a decoder offers.

Dice needs three sums per class: predicted mass, true voxels, and predicted mass on true voxels. The last
comes from the probability each voxel gives its own label, so no one-hot volume is ever built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

DiceClasses = Literal["all", "present"]
Output = TypeVar("Output")
SMOOTH = 1e-5  # keeps Dice of a class that is absent and not predicted away from 0 / 0


def dice_and_cross_entropy(
    logits: Tensor, labels: Tensor, dice_over: DiceClasses = "all", balance: float = 0.0
) -> Tensor:
    """Cross-entropy minus soft Dice, the mean over samples and foreground classes.

    logits (batch, class, z, y, x), labels (batch, z, y, x). With dice_over "present", classes that a sample
    lacks are left out of its Dice: their Dice is 0 whatever is predicted, so in a dataset of many organs,
    of which a patch shows few, they only dilute the others. In the cross-entropy a voxel weighs the number of
    its class's voxels in the sample to the power of -balance: with 0 all voxels weigh the same, with 1 all
    classes.
    """
    batch, classes = logits.shape[:2]
    log_probability = precise(logits).log_softmax(dim=1).reshape(batch, classes, -1)
    labels = labels.reshape(batch, -1)
    log_own = log_probability.gather(1, labels[:, None])[:, 0]  # what each voxel gives its true class
    predicted = log_probability.exp().sum(dim=2)
    zeros = torch.zeros_like(predicted)
    true = zeros.scatter_add(1, labels, torch.ones_like(log_own))
    overlap = zeros.scatter_add(1, labels, log_own.exp())
    dice = (2 * overlap + SMOOTH) / (predicted + true + SMOOTH)
    counted = true[:, 1:] > 0 if dice_over == "present" else torch.ones_like(dice[:, 1:], dtype=torch.bool)
    if balance:
        weight = true.clamp_min(1).pow(-balance).gather(1, labels)
        log_own = log_own * (weight / weight.mean(1, keepdim=True))
    return -log_own.mean() - (dice[:, 1:] * counted).sum() / counted.sum().clamp_min(1)


def supervised_loss(
    outputs: Sequence[Tensor], labels: Tensor, dice_over: DiceClasses = "all", balance: float = 0.0
) -> Tensor:
    """The segmentation loss of all of a decoder's outputs, finest first."""
    return over_outputs(
        outputs,
        lambda output: dice_and_cross_entropy(
            output, shrink_labels(labels, output.shape[2:]), dice_over, balance
        ),
    )


def over_outputs(outputs: Sequence[Output], loss_of: Callable[[Output], Tensor]) -> Tensor:
    """A loss of each of a decoder's outputs, finest first; each coarser one counts half the one before.

    The coarsest is left out, as in nnU-Net: small organs have vanished from its labels.
    """
    used = outputs[:-1] if len(outputs) > 1 else outputs
    weights = [0.5**level for level in range(len(used))]
    losses = [weight * loss_of(output) for weight, output in zip(weights, used, strict=True)]
    return torch.stack(losses).sum() / sum(weights)


def precise(logits: Tensor) -> Tensor:
    """At least single precision: sums over many classes lose the small ones in less."""
    return logits if logits.dtype == torch.float64 else logits.float()


def shrink_labels(labels: Tensor, size: Sequence[int]) -> Tensor:
    """Labels (batch, z, y, x) at a coarser grid, nearest voxel."""
    if labels.shape[1:] == torch.Size(size):
        return labels
    # float32 holds every id below 2 ** 24 exactly
    return functional.interpolate(labels[:, None].float(), size=tuple(size), mode="nearest")[:, 0].long()
