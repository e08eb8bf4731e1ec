"""Validation windows that cover scans: what decoders are chosen by.

Random patches show more organ than a scan does, and a few of them judge by chance. Windows side by side
show a scan as segmentation will meet it, false positives far from any organ included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from continual_segment.data.patches import read_box
from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.prepared_case import PreparedCase
from continual_segment.progress import progress_bar
from continual_segment.segmentation.windows import window_starts
from continual_segment.training.validate import Overlaps

Key = TypeVar("Key")


class CoveringWindows(Dataset):
    """Windows side by side over the validation scans, evenly thinned out to at most `count`."""

    def __init__(self, dataset: PreparedDataset, size: tuple[int, int, int], count: int) -> None:
        self.size = size
        cases = [dataset.case(name) for name in dataset.case_names("validation")]
        places = [(case, corner) for case in cases for corner in corners(case.shape, size)]
        kept = np.linspace(0, len(places) - 1, min(count, len(places))).round().astype(int)
        self.places: list[tuple[PreparedCase, list[int]]] = [places[number] for number in kept]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        case, corner = self.places[number]
        image, labels = read_box(case, corner, self.size)
        return torch.from_numpy(image)[None, None], torch.from_numpy(labels.astype(np.int64))[None]


def corners(shape: Sequence[int], size: Sequence[int]) -> list[list[int]]:
    """First voxels of windows that cover a scan; a smaller scan is in the middle of its only window."""
    starts = [
        window_starts(length, window, overlap=0.0) if length > window else [(length - window) // 2]
        for length, window in zip(shape, size, strict=True)
    ]
    return [[z, y, x] for z in starts[0] for y in starts[1] for x in starts[2]]


@torch.no_grad()
def dice_of_decoders(
    answers: Callable[[Tensor], Iterable[tuple[Key, Tensor]]],
    windows: CoveringWindows,
    organs: int,
    device: str,
    title: str,
) -> dict[Key, float]:
    """Mean Dice over organs of every decoder; `answers` gives all their logits on a window."""
    overlaps: dict[Key, Overlaps] = {}
    for number in progress_bar(range(len(windows)), desc=title, unit="window", dynamic_ncols=True):
        images, labels = windows[number]
        for key, logits in answers(images.to(device)):
            overlaps.setdefault(key, Overlaps(organs)).add(logits.argmax(dim=1).cpu(), labels)
    return {key: found.dice for key, found in overlaps.items()}
