"""Which packs can change the label of a voxel between prepared voxels.

By the rules `consensus` and `weighted`, an organ wins only where at least one pack that knows it finds it
more probable than background. Outputs between prepared voxels are interpolated linearly before softmax, and
the logarithm of a sum of exponentials is convex: an organ, or a whole with all its parts, that is less
probable than background at every corner is so in between. Such an organ cannot win, and a pack all of whose
organs are of this kind changes neither label nor score, so it is not asked.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from continual_segment.segmentation.nested import Nesting
from continual_segment.segmentation.pack_decoder import PackDecoder
from continual_segment.segmentation.window_accumulator import AccumulatedSlab

MARGIN = 0.9
"""Of the probability of background; organs above it count as present, so that rounding has no effect."""

LEAST_PIXELS = 2000
"""With the same packs, that are asked about apart."""


class NearbyPacks:
    """Finds, for the packs of one model, where each of them has to be asked."""

    def __init__(self, packs: Sequence[PackDecoder], nesting: Nesting) -> None:
        """`nesting` is that of the merge rule; parts count as their outermost whole."""
        self.packs = packs
        roots = [[nesting.at(organ, 0) for organ in pack.organ_ids[1:].tolist()] for pack in packs]
        rows = {root: row for row, root in enumerate(dict.fromkeys(root for of in roots for root in of))}
        device = packs[0].organ_ids.device
        self.rows = [torch.tensor([rows[root] for root in of], device=device) for of in roots]
        """Per pack, the row of each of its organs in a table of all wholes."""
        self.count = len(rows)

    def masks(self, outputs: Sequence[AccumulatedSlab], z: int) -> np.ndarray:
        """(voxel, byte) of one prepared slice: a bit per pack, set where an organ of the pack is present."""
        present: Tensor | None = None
        for pack, rows, output in zip(self.packs, self.rows, outputs, strict=True):
            # windows that did not run count as if they had: then more organs are present, not fewer
            probabilities = pack.predict(output.values[:, z : z + 1], None).probabilities.flatten(1)
            sums = probabilities.new_zeros(self.count, probabilities.shape[1])
            sums.index_add_(0, rows, probabilities[1:])
            above = sums > MARGIN * probabilities[0]
            present = above if present is None else present | above
        assert present is not None
        asked = torch.stack([present[rows].any(dim=0) for rows in self.rows], dim=1)  # (voxel, pack)
        return np.packbits(asked.cpu().numpy(), axis=1, bitorder="little")


def groups(masks: np.ndarray) -> list[tuple[np.ndarray, list[int]]]:
    """Masks (pixel, byte) -> pixels with the same mask, and the numbers of its packs.

    Masks of few pixels are combined, since a question takes a while however few its pixels are.
    """
    missing = -masks.shape[1] % 8
    words = np.pad(masks, ((0, 0), (0, missing))).view(np.uint64)  # far faster to sort than rows of bytes
    axis = None if words.shape[1] == 1 else 0
    distinct, which, counts = np.unique(words, axis=axis, return_inverse=True, return_counts=True)
    bits = np.unpackbits(distinct.reshape(len(distinct), -1).view(np.uint8), axis=1, bitorder="little")
    large = np.flatnonzero(counts >= LEAST_PIXELS)
    found = [(np.flatnonzero(which.ravel() == index), packs_in(bits[index])) for index in large]
    small = counts < LEAST_PIXELS
    if small.any():
        found.append((np.flatnonzero(small[which.ravel()]), packs_in(np.bitwise_or.reduce(bits[small]))))
    return found


def packs_in(bits: np.ndarray) -> list[int]:
    return [int(number) for number in np.flatnonzero(bits)]
