"""Training patches: which part of which scan a network sees in each iteration.

Organs fill a small part of a scan, so a share of every batch is centred on a voxel of one of them. What
iteration 812 sees follows from the seed and the number 812 alone: a stopped run resumes with the same
patches that it would have seen, whatever the number of loading processes.

In:  PreparedDataset
Out: per iteration, normalised images float32 (patch, 1, z, y, x) and labels int64 (patch, z, y, x)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch

from continual_segment.data.augment import AugmentConfig, Size, augment, mirror
from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.prepared_case import PreparedCase
from continual_segment.data.splits import Split
from continual_segment.errors import DatasetError
from continual_segment.organs import other_side

SEEDS_APART = 1_000_003
"""Between the seeds of two processes: more than those of the parts of a step have between them."""
LEFT_TO_RIGHT = 2
"""Among our axes (z, y, x)."""


@dataclass(frozen=True)
class PatchConfig:
    """What one batch consists of."""

    size: Size
    """Voxels (z, y, x) of a patch; windows of scans have this size, too."""
    batch: int = 2
    """Patches per iteration."""
    foreground_share: float = 1 / 3
    """Share of a batch that is centred on an organ, rounded to whole patches; above 0 at least one."""
    later_foreground_share: float | None = None
    """The same for steps after the first; None: no other. A dataset whose organs are all in one place never
    shows the rest of the body in patches centred on them, and its decoder then sees organs there."""
    other_sizes: tuple[Size, ...] = ()
    """Further sizes. Every batch has one of all, drawn by chance; one that is given twice is drawn twice as
    often. With small patches beside large ones, a network for large windows takes less time to train."""

    def __post_init__(self) -> None:
        for size in (self.size, *self.other_sizes):
            if len(size) != 3 or min(size) < 1:
                raise ValueError(f"size is three numbers of voxels (z, y, x), not {size}.")
        if self.batch < 1:
            raise ValueError(f"batch is at least one patch, not {self.batch}.")
        for name in ("foreground_share", "later_foreground_share"):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise ValueError(f"{name} is a share between 0 and 1, not {share}.")
        object.__setattr__(self, "size", tuple(self.size))
        object.__setattr__(self, "other_sizes", tuple(tuple(size) for size in self.other_sizes))

    @property
    def sizes(self) -> tuple[Size, ...]:
        """All of them."""
        return (self.size, *self.other_sizes)

    def of_later_step(self, size: Size) -> PatchConfig:
        """Patches of a step that reads a frozen encoder, which was trained on patches of this size."""
        share = self.later_foreground_share
        return replace(self, size=size, foreground_share=self.foreground_share if share is None else share)

    @property
    def foreground_patches(self) -> int:
        """How many patches of a batch, its last ones, are centred on an organ."""
        least = 1 if self.foreground_share > 0 else 0
        anywhere = math.floor(
            self.batch * (1 - self.foreground_share) + 0.5
        )  # a half rounds up, as in nnU-Net
        return max(least, self.batch - anywhere)


class NumberedBatches(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Item i is the whole batch of iteration i."""

    def for_rank(self, rank: int) -> NumberedBatches:
        """The batches of one of several processes that train together; 0 is the first, with the same ones."""
        raise NotImplementedError


class Patches(NumberedBatches):
    """Batches of a split or of named cases, one per iteration; for a DataLoader with `batch_size=None`."""

    def __init__(
        self,
        dataset: PreparedDataset,
        split: Split | Sequence[str],
        config: PatchConfig,
        augmentation: AugmentConfig | None,
        seed: int,
        iterations: int,
    ) -> None:
        names = dataset.case_names(cast(Split, split)) if isinstance(split, str) else split
        self.cases = [dataset.case(name) for name in names]
        if not self.cases:
            raise DatasetError(
                f"{dataset.folder}: the {split} split has no case. "
                "Add cases to the raw dataset and prepare it again."
            )
        self.config = config
        self.augmentation = augmentation or AugmentConfig.none()
        self.other_sides = labels_of_other_sides(dataset) if self.augmentation.mirror_share else None
        self.seed = seed
        self.iterations = iterations

    def __len__(self) -> int:
        return self.iterations

    def __getitem__(self, iteration: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= iteration < self.iterations:
            raise IndexError(f"Iteration {iteration} of {self.iterations}.")
        rng = np.random.default_rng((self.seed, iteration))
        sizes = self.config.sizes
        size = sizes[rng.integers(len(sizes))] if len(sizes) > 1 else sizes[0]
        anywhere = self.config.batch - self.config.foreground_patches
        patches = [self._patch(rng, size, on_organ=i >= anywhere) for i in range(self.config.batch)]
        images, labels = zip(*patches, strict=True)
        return torch.from_numpy(np.stack(images)[:, None]), torch.from_numpy(
            np.stack(labels).astype(np.int64)
        )

    def for_rank(self, rank: int) -> Patches:
        """The same with other patches for each process but the first."""
        other = copy.copy(self)
        other.seed = self.seed + rank * SEEDS_APART
        return other

    def _patch(self, rng: np.random.Generator, size: Size, on_organ: bool) -> tuple[np.ndarray, np.ndarray]:
        case = self.cases[rng.integers(len(self.cases))]
        start = _draw_start(case, size, rng, on_organ)

        def read(box: Size) -> tuple[np.ndarray, np.ndarray]:
            # Boxes larger than the patch grow by whole voxels on both sides, so the centre stays.
            corner = [at - (wide - narrow) // 2 for at, wide, narrow in zip(start, box, size, strict=True)]
            return read_box(case, corner, box)

        patch = augment(read, size, case.spacing_mm, self.augmentation, rng, case.intensity.limits)
        if self.other_sides is not None and rng.random() < self.augmentation.mirror_share:
            patch = mirror(*patch, case.frame.axes.index(LEFT_TO_RIGHT), self.other_sides)
        return patch


def labels_of_other_sides(dataset: PreparedDataset) -> np.ndarray:
    """Per label, that of the same organ on the other side; organs without a side have their own."""
    labels = {organ.name: label for label, organ in enumerate(dataset.organs, start=1)}
    pairs = {name: other_side(name) for name in labels}
    if alone := [name for name, other in pairs.items() if other not in labels]:
        names = ", ".join(alone)
        raise DatasetError(
            f"{dataset.folder} labels {names} on one side only, so that a mirrored patient would have "
            "the other side unlabelled. Set mirror_share = 0 under [augment]."
        )
    return np.array([0, *(labels[other] for other in pairs.values())])


def _draw_start(case: PreparedCase, size: Size, rng: np.random.Generator, on_organ: bool) -> list[int]:
    """The first corner of a patch: within the scan, or around it where the scan is smaller than the patch."""
    spare = np.array(case.shape) - size
    smaller = spare // 2  # negative: as much air on either side
    if on_organ and case.foreground_rows:
        labels = list(case.foreground_rows)
        positions = case.foreground[labels[rng.integers(len(labels))]]
        centre = positions[rng.integers(len(positions))].astype(int)
        start = np.clip(centre - np.array(size) // 2, 0, np.maximum(spare, 0))
    else:
        start = rng.integers(0, np.maximum(spare, 0) + 1)
    return np.where(spare < 0, smaller, start).tolist()


def read_box(case: PreparedCase, corner: list[int], size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Normalised voxels and labels of any box; outside the scan there is padding and background."""
    inside = tuple(
        slice(min(max(at, 0), length), max(0, min(at + wide, length)))
        for at, wide, length in zip(corner, size, case.shape, strict=True)
    )
    before = [part.start - at for part, at in zip(inside, corner, strict=True)]
    image, labels = case.intensity.normalise(case.scan[inside]), case.labels[inside]
    if image.shape == size:
        return image, labels
    place = tuple(slice(at, at + length) for at, length in zip(before, image.shape, strict=True))
    padded_image = np.full(size, case.intensity.padding_value, image.dtype)
    padded_labels = np.zeros(size, labels.dtype)
    padded_image[place], padded_labels[place] = image, labels
    return padded_image, padded_labels
