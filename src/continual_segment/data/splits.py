"""Splits: which cases of a dataset are for training, validation and test.

The names of the cases decide, and nothing else, so the split of a raw dataset is known without preparing it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Literal, get_args

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)
SPLIT_RANGES: dict[Split, tuple[float, float]] = {
    "test": (0.0, 0.2),
    "validation": (0.2, 0.36),  # a fifth of what is not test
    "train": (0.36, 1.0),
}


def split_cases(names: Iterable[str]) -> dict[str, Split]:
    """Each case's split: 20 % test, the rest 4:1 into train and validation, by a hash of its name.

    So a case keeps its split whatever cases come or go. The exception are datasets so small that a split
    would be empty: with three cases or more it gets the case whose hash is nearest to its range, out
    of a split that has another one. Fewer than three cases are all for training.
    """
    hashes = {name: int.from_bytes(sha256(name.encode()).digest()[:8]) / 2**64 for name in names}
    if len(hashes) < 3:
        return dict.fromkeys(hashes, "train")
    splits = {name: _split_of(value) for name, value in hashes.items()}
    for split in SPLITS:
        if split not in splits.values():
            spare = [name for name in splits if list(splits.values()).count(splits[name]) > 1]
            splits[min(spare, key=lambda name: (_distance(hashes[name], split), name))] = split
    return splits


def _split_of(value: float) -> Split:
    return next(split for split, (low, high) in SPLIT_RANGES.items() if low <= value < high)


def _distance(value: float, split: Split) -> float:
    low, high = SPLIT_RANGES[split]
    return max(low - value, value - high, 0.0)
