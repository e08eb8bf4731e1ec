"""nnU-Net's segmentation loss: cross-entropy plus soft Dice, at every resolution a decoder offers.

Dice needs three sums per class: predicted mass, true voxels, and predicted mass on true voxels. The last
comes from the probability each voxel gives its own label, so no one-hot volume is ever built. Value and
gradient come from one volume of probabilities: with many organs such volumes are what a step waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from continual_segment.training.distributed import sum_over_processes, world_size

DiceClasses = Literal["all", "present"]
Output = TypeVar("Output")
Loss = Callable[[Sequence[Tensor], Tensor], Tensor]
"""Logits of a network, finest first, each (batch, class, z, y, x), and labels (batch, z, y, x) in; what is
minimised out."""
SMOOTH = 1e-5  # keeps Dice of a class that is absent and not predicted away from 0 / 0


@dataclass(frozen=True)
class LossConfig:
    """nnU-Net's loss, cross-entropy plus soft Dice, and its settings."""

    dice_over: DiceClasses = "all"
    """Classes in the Dice of a patch: all of the dataset, as in nnU-Net, or those present in it."""
    balance: float = 0.0
    """How much more the voxels of small organs count in the cross-entropy: 0 like any, as in nnU-Net; 1 until
    all organs of a patch count alike."""
    deep_supervision: tuple[float, ...] | None = None
    """Weight of every output of a decoder, finest first. Left out, as in nnU-Net: each coarser one counts
    half the one before, and the coarsest, in whose labels small organs have vanished, nothing."""

    def __post_init__(self) -> None:
        if self.dice_over not in get_args(DiceClasses):
            raise ValueError(
                f"dice_over is one of {', '.join(get_args(DiceClasses))}, not {self.dice_over!r}."
            )
        if not 0 <= self.balance <= 1:
            raise ValueError(f"balance is between 0 and 1, not {self.balance}.")
        weights = self.deep_supervision
        if weights is not None and (not weights or min(weights) < 0 or weights[0] <= 0):
            raise ValueError(f"deep_supervision has weights of 0 or more, the first above 0, not {weights}.")

    def build(self) -> Loss:
        """The loss as a function of outputs and labels."""
        return partial(
            supervised_loss,
            dice_over=self.dice_over,
            balance=self.balance,
            deep_supervision=self.deep_supervision,
        )

    def described(self) -> dict[str, Any]:
        """For training cards and the signature of a run."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class CustomLoss(LossConfig):
    """A function of the user's own in place of nnU-Net's loss."""

    function: Loss

    def build(self) -> Loss:
        return self.function

    def described(self) -> dict[str, Any]:
        """Its name: another function of the same name looks the same to a run."""
        named = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        return {"function": f"{named.__module__}.{named.__qualname__}"}


def as_loss_config(loss: LossConfig | Loss) -> LossConfig:
    """Settings as they are; a function as settings."""
    return loss if isinstance(loss, LossConfig) else CustomLoss(function=loss)


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
    logits, labels = precise(logits), labels.flatten(1)
    weight = torch.full(labels.shape, 1 / labels.numel(), dtype=logits.dtype, device=logits.device)
    true = class_sums(labels, torch.ones_like(weight), logits.shape[1])
    if balance:
        rarity = true.clamp_min(1).pow(-balance).gather(1, labels)
        weight = weight * rarity / rarity.mean(1, keepdim=True)
    return weighted_dice_and_cross_entropy(logits, labels, weight, dice_shares(true, dice_over))


def dice_alone(logits: Tensor, labels: Tensor, dice_over: DiceClasses = "all") -> Tensor:
    """The Dice of `dice_and_cross_entropy`, without the cross-entropy."""
    logits, labels = precise(logits), labels.flatten(1)
    weight = torch.zeros(labels.shape, dtype=logits.dtype, device=logits.device)
    true = class_sums(labels, torch.ones_like(weight), logits.shape[1])
    return weighted_dice_and_cross_entropy(logits, labels, weight, dice_shares(true, dice_over))


def dice_shares(true: Tensor, dice_over: DiceClasses) -> Tensor:
    """What the Dice of every class in every sample counts, from its voxels (batch, class); in all 1."""
    counted = (true > 0 if dice_over == "present" else torch.ones_like(true)).to(true.dtype)
    counted[:, 0] = 0  # background
    # of all patches of an update, wherever they are computed; gradients are then averaged over processes
    total = sum_over_processes(counted.sum()).clamp_min(1) / world_size()
    return counted / total


def class_sums(labels: Tensor, values: Tensor, classes: int) -> Tensor:
    """Values (batch, voxel) summed over the voxels of each class (batch, class)."""
    return values.new_zeros(len(values), classes).scatter_add_(1, labels, values)


def weighted_dice_and_cross_entropy(
    logits: Tensor, labels: Tensor, weight: Tensor, dice_share: Tensor, valid: Tensor | None = None
) -> Tensor:
    """Cross-entropy minus soft Dice with a weight for each of their terms.

    labels (batch, voxel); `weight` (batch, voxel) is that of a voxel's cross-entropy, `dice_share`
    (batch, class) that of a class's Dice. Voxels that are not `valid`, 0 instead of 1, are left out of Dice.
    """
    with full_precision(logits.device):
        return _DiceAndCrossEntropy.apply(logits, labels, weight, dice_share, valid)


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Products in the type of their tensors: autocast rounds those of small numbers to 0, of large to inf."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()


class _DiceAndCrossEntropy(torch.autograd.Function):
    """The loss and, in the same pass, its gradient.

    Left to autograd, every step over (class, voxel) would keep a volume of all classes for later; with a
    hundred organs that costs more than the network. Here there is one such volume: first probabilities,
    then, in their place, the gradient. With a and b the derivatives by predicted mass and overlap of
    a class, g that by a voxel's log-probability of its own class y, v its validity, and p probabilities, the
    derivative by the logit of class k is p_k (a_k v - s) + [k = y] (b_y v p_y + g) with
    s = sum_c a_c v p_c + b_y v p_y + g.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, weight: Tensor, dice_share: Tensor, valid: Tensor | None
    ) -> Tensor:
        batch, classes = logits.shape[:2]
        log_probability = logits.detach().log_softmax(dim=1).reshape(batch, classes, -1)
        log_own = log_probability.gather(1, labels[:, None])[:, 0]  # what each voxel gives its true class
        probability, seen = log_probability.exp_(), torch.ones_like(log_own) if valid is None else valid
        own = log_own.exp() * seen
        predicted = probability.sum(2) if valid is None else (probability @ valid[:, :, None])[:, :, 0]
        true = class_sums(labels, seen, classes)
        overlap = class_sums(labels, own, classes)
        whole = predicted + true + SMOOTH
        dice = (2 * overlap + SMOOTH) / whole
        if ctx.needs_input_grad[0]:
            by_predicted, by_overlap = dice_share * dice / whole, -2 * dice_share / whole
            at_own = by_overlap.gather(1, labels) * own - weight
            ctx.shape = logits.shape
            ctx.save_for_backward(_gradient(probability, labels, by_predicted, at_own, seen))
        return -(log_own * weight).sum() - (dice * dice_share).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return (gradient * outer[0]).reshape(ctx.shape), None, None, None, None


def _gradient(
    probability: Tensor, labels: Tensor, by_predicted: Tensor, at_own: Tensor, valid: Tensor
) -> Tensor:
    """The derivative by the logits, written over the probabilities (batch, class, voxel)."""
    total = torch.bmm(by_predicted[:, None], probability)[:, 0] * valid + at_own
    for number in range(probability.shape[1]):  # class by class: what is read again is still near
        probability[:, number] *= by_predicted[:, number, None] * valid - total
    return probability.scatter_add_(1, labels[:, None], at_own[:, None])


def supervised_loss(
    outputs: Sequence[Tensor],
    labels: Tensor,
    dice_over: DiceClasses = "all",
    balance: float = 0.0,
    deep_supervision: Sequence[float] | None = None,
) -> Tensor:
    """The segmentation loss of all of a decoder's outputs, finest first."""

    def loss_of(output: Tensor) -> Tensor:
        return dice_and_cross_entropy(output, shrink_labels(labels, output.shape[2:]), dice_over, balance)

    return over_outputs(outputs, loss_of, deep_supervision)


def over_outputs(
    outputs: Sequence[Output],
    loss_of: Callable[[Output], Tensor],
    deep_supervision: Sequence[float] | None = None,
) -> Tensor:
    """Weighted mean of a loss over a decoder's outputs, finest first; see LossConfig.deep_supervision."""
    weights = deep_supervision or nnunet_weights(len(outputs))
    if len(outputs) == 1:
        weights = [1.0]  # a head has one output, and all supervision is there
    pairs = zip(weights, outputs, strict=True)
    losses = [weight * loss_of(output) for weight, output in pairs if weight]
    return torch.stack(losses).sum() / sum(weights)


def nnunet_weights(outputs: int) -> list[float]:
    """Of so many outputs: 1, 1/2, 1/4, ..., and 0 for the coarsest, unless it is the only one."""
    used = max(1, outputs - 1)
    return [0.5**level for level in range(used)] + [0.0] * (outputs - used)


def precise(logits: Tensor) -> Tensor:
    """At least single precision: sums over many classes lose the small ones in less."""
    return logits if logits.dtype == torch.float64 else logits.float()


def shrink_labels(labels: Tensor, size: Sequence[int]) -> Tensor:
    """Labels (batch, z, y, x) at a coarser grid, nearest voxel."""
    if labels.shape[1:] == torch.Size(size):
        return labels
    # float32 holds every id below 2 ** 24 exactly
    return functional.interpolate(labels[:, None].float(), size=tuple(size), mode="nearest")[:, 0].long()
