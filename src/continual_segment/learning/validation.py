"""Validation windows that cover scans: what decoders are chosen by.

Random patches show more organ than a scan does, and a few of them judge by chance. Windows side by side
show a scan as segmentation will meet it, false positives far from any organ included. Where there are more
than can be judged, most of those that are kept show an organ: a scan may have one window of the esophagus
among thirty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from continual_segment.data.patches import read_box
from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.prepared_case import PreparedCase
from continual_segment.progress import progress_bar
from continual_segment.segmentation.windows import covering_corners
from continual_segment.training.validate import Overlaps

Key = TypeVar("Key")
SHARE_WITH_ORGANS = 0.75
"""Of the windows that are kept, at least, if so many show an organ."""
GOLDEN_RATIO = (5**0.5 - 1) / 2


class CoveringWindows(Dataset):
    """Windows side by side over the validation scans, thinned out to at most `count`."""

    def __init__(self, dataset: PreparedDataset, size: tuple[int, int, int], count: int) -> None:
        self.size = size
        cases = [dataset.case(name) for name in dataset.case_names("validation")]
        places = [(case, corner) for case in cases for corner in covering_corners(case.shape, size)]
        shown = [organs for case in cases for organs in organs_in_windows(case, size)]
        self.places: list[tuple[PreparedCase, list[int]]] = [places[n] for n in thinned_out(shown, count)]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        case, corner = self.places[number]
        image, labels = read_box(case, corner, self.size)
        return torch.from_numpy(image)[None, None], torch.from_numpy(labels.astype(np.int64))[None]


def organs_in_windows(case: PreparedCase, size: tuple[int, int, int]) -> list[set[int]]:
    """The organs that each window over a scan shows, by the sample of their voxels that is stored."""
    foreground, found = case.foreground, []
    for corner in covering_corners(case.shape, size):
        low, high = np.array(corner), np.add(corner, size)
        found.append(
            {organ for organ, at in foreground.items() if ((at >= low) & (at < high)).all(axis=1).any()}
        )
    return found


def thinned_out(shown: Sequence[set[int]], count: int) -> list[int]:
    """Numbers of at most `count` windows, spread over the scans: some of every organ, and some of none."""
    if len(shown) <= count:
        return list(range(len(shown)))
    showing: Mapping[int, list[int]] = defaultdict(list)
    empty: list[int] = []
    for number in sorted(range(len(shown)), key=golden):
        for organ in shown[number]:
            showing[organ].append(number)
        if not shown[number]:
            empty.append(number)
    most = max(round(SHARE_WITH_ORGANS * count), count - len(empty))
    kept = some_of_each(showing, most)
    return sorted([*kept, *empty[: count - len(kept)]])


def golden(number: int) -> float:
    """A key to sort by: however many of the sorted numbers are taken, they are spread over all."""
    return number * GOLDEN_RATIO % 1


def some_of_each(showing: Mapping[int, list[int]], count: int) -> list[int]:
    """At most `count` windows: one that shows the rarest organ, one of the next, and so on, then a second."""
    kept: dict[int, None] = {}
    rarest_first = sorted(showing, key=lambda organ: (len(showing[organ]), organ))
    for each in range(1, max(map(len, showing.values()), default=0) + 1):
        for organ in rarest_first:
            left = [number for number in showing[organ] if number not in kept]
            if left and len(showing[organ]) - len(left) < each:
                kept[left[0]] = None
            if len(kept) == count:
                return list(kept)
    return list(kept)


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
