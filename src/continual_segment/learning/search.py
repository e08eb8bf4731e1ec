"""Search one kernel per decoder block, then train the decoder it names from scratch.

Every block runs projection, 2D, P3D and 3D kernels at once. For a while each counts a quarter; then weights
and the kernels' shares are updated in turn, on different cases, so that a share measures what helps on
scans that the weights have not seen. The kernel with the largest share stays. With a cost weight, the loss
also includes the multiply-adds of each kernel.

In:  a frozen encoder and a dataset
Out: a decoder with a plan of its own, trained; the shares behind the plan
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from continual_segment.data.patches import NumberedBatches, Patches
from continual_segment.data.prepared import PreparedDataset
from continual_segment.errors import DatasetError
from continual_segment.learning.train_decoder import FrozenStep, PatchSource, StageResult
from continual_segment.networks import Decoder, MixedDecoder
from continual_segment.networks.mixed_decoder import CHOICES
from continual_segment.training import Objective, TrainConfig, TrainingRun, train
from continual_segment.training.distributed import mean_over_processes
from continual_segment.training.train import Rows
from continual_segment.training.update import Update
from continual_segment.training.validate import patch_dice


@dataclass(frozen=True)
class SearchConfig:
    """How kernels are searched. Lengths are shares of the iterations of the step's first training."""

    iterations_share: float = 0.4
    """Length of the search. An iteration costs about three of the first training."""
    warm_up_share: float = 0.4
    """Part of the search in which every kernel counts a quarter and only weights learn."""
    retrain_share: float = 1.0
    """Length of training the found decoder from scratch."""
    batch_factor: int = 1
    """Batches of the search are so many times larger; the paper takes 2."""
    cost_weight: float = 0.0
    """What one nnU-Net decoder's multiply-adds count in the loss that shares are updated by; 0: nothing."""
    alpha_learning_rate: float = 0.01
    """Of Adam on the shares; a search of very many iterations does with less."""
    alpha_weight_decay: float = 1e-3
    """Of the shares' logits."""
    case_shares: tuple[float, float] = (0.6, 0.3)
    """Of the training and validation cases: for weights, for kernels; the rest is only looked at."""

    def __post_init__(self) -> None:
        if min(self.iterations_share, self.retrain_share, self.alpha_learning_rate) <= 0:
            raise ValueError("iterations_share, retrain_share and alpha_learning_rate are above 0.")
        if not 0 <= self.warm_up_share < 1:
            raise ValueError(f"warm_up_share is a share from 0 to below 1, not {self.warm_up_share}.")
        if self.batch_factor < 1 or self.cost_weight < 0:
            raise ValueError("batch_factor is at least 1, cost_weight at least 0.")
        if min(self.case_shares) <= 0 or sum(self.case_shares) >= 1:
            raise ValueError(f"case_shares are two shares with a sum below 1, not {self.case_shares}.")


@dataclass(frozen=True)
class CaseSplit:
    """Which cases the search uses for what."""

    weights: tuple[str, ...]
    kernels: tuple[str, ...]
    monitor: tuple[str, ...]

    @classmethod
    def of(cls, dataset: PreparedDataset, shares: tuple[float, float] = (0.6, 0.3)) -> CaseSplit:
        """Training and validation cases, split anew; by a hash of their names, so always alike.

        Validation cases come last, because an encoder that is trained in the same step has not seen them:
        they are the ones to look at and then those to judge kernels by.
        """
        names = [
            name
            for split in ("train", "validation")
            for name in sorted(dataset.case_names(split), key=lambda name: sha256(name.encode()).digest())
        ]
        if len(names) < 3:
            raise DatasetError(
                f"{dataset.folder}: {len(names)} cases are for training and validation; a search needs three "
                "at least. Add scans to the raw dataset, or learn without the stage `search`."
            )
        monitor = max(1, round(len(names) * (1 - sum(shares))))
        kernels = min(max(1, round(len(names) * shares[1])), len(names) - monitor - 1)
        weights = len(names) - monitor - kernels
        return cls(
            tuple(names[:weights]),
            tuple(names[weights : weights + kernels]),
            tuple(names[weights + kernels :]),
        )


class AlternatingPatches(NumberedBatches):
    """Batches for weights; after the warm-up, each is followed by as many patches for kernels."""

    def __init__(self, weights: NumberedBatches, kernels: NumberedBatches, warm_up: int) -> None:
        self.weights, self.kernels, self.warm_up = weights, kernels, warm_up

    def for_rank(self, rank: int) -> AlternatingPatches:
        """The batches of one of several processes."""
        return AlternatingPatches(self.weights.for_rank(rank), self.kernels.for_rank(rank), self.warm_up)

    def __getitem__(self, iteration: int) -> tuple[Tensor, Tensor]:
        images, labels = self.weights[iteration]
        if iteration < self.warm_up:
            return images, labels
        more_images, more_labels = self.kernels[iteration]
        return torch.cat((images, more_images)), torch.cat((labels, more_labels))


class SearchUpdate(Update):
    """One step of the kernels' shares on one half of the batch, then one of the weights on the other."""

    def __init__(
        self,
        module: nn.Module,
        config: TrainConfig,
        mixed: MixedDecoder,
        search: SearchConfig,
        window: Sequence[int],
    ) -> None:
        super().__init__(module, config)
        self.mixed, self.search, self.window = mixed, search, window
        self.warm_up = warm_up_iterations(config, search)
        self.alpha_optimiser = torch.optim.Adam(
            [mixed.alpha], search.alpha_learning_rate, (0.5, 0.999), weight_decay=search.alpha_weight_decay
        )

    def __call__(self, images: Tensor, labels: Tensor, iteration: int) -> float:
        if iteration >= self.warm_up:
            half = len(images) // 2
            self.update_alpha(images[half:], labels[half:])
            images, labels = images[:half], labels[:half]
        return super().__call__(images, labels, iteration)

    def update_alpha(self, images: Tensor, labels: Tensor) -> None:
        """First order: the weights are taken as they are."""
        alpha = self.mixed.alpha.requires_grad_(True)
        cost = self.search.cost_weight * self.mixed.expected_cost(self.window)
        loss = self.loss(self.module, images, labels) + cost
        (gradient,) = torch.autograd.grad(self.scaler.scale(loss), [alpha])  # none is computed for weights
        gradient = mean_over_processes(gradient / self.scaler.get_scale())
        if gradient.isfinite().all():  # a half precision overflow costs one step, as it does for weights
            alpha.grad = gradient
            self.alpha_optimiser.step()
        alpha.grad = None
        alpha.requires_grad_(False)  # so that the update of weights computes nothing for it

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"alpha_optimiser": self.alpha_optimiser.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.alpha_optimiser.load_state_dict(state["alpha_optimiser"])


def warm_up_iterations(config: TrainConfig, search: SearchConfig) -> int:
    return round(config.iterations * search.warm_up_share)


def search_decoder(step: FrozenStep, search: SearchConfig) -> StageResult:
    """Search the kernels of a decoder for the step's dataset and train it."""
    mixed, search_rows = search_kernels(step, search)
    config = step.schedule(search.retrain_share)
    torch.manual_seed(config.seed)
    decoder = Decoder(step.encoder.config, mixed.plan, step.organs)
    rows = step.train_decoder(decoder, config, "retraining")
    card = {
        "settings": asdict(search),
        "plan": mixed.plan.kernels,
        "kernels": CHOICES,
        "shares": [[round(share, 4) for share in block] for block in mixed.kernel_weights],
        "validation_patch_dice": round(search_rows[-1]["validation_dice"], 4),
    }
    return StageResult(decoder, rows, card, search_rows[-1]["seconds"] + rows[-1]["seconds"])


def search_kernels(step: FrozenStep, search: SearchConfig) -> tuple[MixedDecoder, Rows]:
    """The decoder with all kernels, its shares found."""
    config = step.schedule(search.iterations_share, seed=1)
    split = CaseSplit.of(step.source.dataset, search.case_shares)
    torch.manual_seed(config.seed)
    mixed = MixedDecoder(step.encoder.config, step.organs).to(config.device)
    step.encoder.to(config.device)

    loss = config.loss.build()

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        return loss(mixed.forward_supervised(step.features(images)), labels)

    count, dataset = config.validation_batches, step.source.dataset
    looked_at = Patches(dataset, split.monitor, step.source.patches, None, config.seed, count)

    def validate() -> float:
        return patch_dice(
            lambda images: mixed(step.features(images)), looked_at, count, mixed.organs, config.device
        )

    relevant = replace(search, retrain_share=SearchConfig.retrain_share)  # retraining has no effect here
    rows = train(
        TrainingRun(
            Objective(loss_of, decoder=mixed),
            search_batches(step.source, split, config, search),
            config,
            step.run / "search",
            step.signature(config, search=asdict(relevant), network=mixed.network.described()),
            title=f"searching {step.name}",
            validate=validate if count else None,
            make_update=partial(SearchUpdate, mixed=mixed, search=search, window=step.source.patches.size),
        )
    )
    return mixed, rows


def search_batches(
    source: PatchSource, split: CaseSplit, config: TrainConfig, search: SearchConfig
) -> AlternatingPatches:
    patches = replace(source.patches, batch=source.patches.batch * search.batch_factor)

    def patches_of(names: Sequence[str], seed: int) -> Patches:
        return Patches(source.dataset, names, patches, source.augment, config.seed + seed, config.iterations)

    warm_up = warm_up_iterations(config, search)
    return AlternatingPatches(patches_of(split.weights, 0), patches_of(split.kernels, 1), warm_up)
