"""Validation windows that cover scans: what decoders are chosen by.

Random patches show more organ than a scan does, and a few of them judge by chance. Windows side by side
show a scan as segmentation will meet it, false positives far from any organ included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from continual_segment.data.patches import read_box
from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.prepared_case import PreparedCase
from continual_segment.progress import progress_bar
from continual_segment.segmentation.windows import covering_corners, spread_evenly
from continual_segment.training.validate import Overlaps

Key = TypeVar("Key")


class CoveringWindows(Dataset):
    """Windows side by side over the validation scans, evenly thinned out to at most `count`."""

    def __init__(self, dataset: PreparedDataset, size: tuple[int, int, int], count: int) -> None:
        self.size = size
        cases = [dataset.case(name) for name in dataset.case_names("validation")]
        places = [(case, corner) for case in cases for corner in covering_corners(case.shape, size)]
        self.places: list[tuple[PreparedCase, list[int]]] = spread_evenly(places, count)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        case, corner = self.places[number]
        image, labels = read_box(case, corner, self.size)
        return torch.from_numpy(image)[None, None], torch.from_numpy(labels.astype(np.int64))[None]


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
