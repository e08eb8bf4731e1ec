"""Which packs can change the label of a voxel between prepared voxels.

By the rules `consensus` and `weighted`, an organ wins only where at least one pack that knows it finds it
more probable than background. Outputs between prepared voxels are interpolated linearly before softmax, and
the logarithm of a sum of exponentials is convex: an organ, or a whole with all its parts, that is less
probable than background at every corner is so in between. Such an organ cannot win, and a pack all of whose
organs are of this kind changes neither label nor score, so it is not asked.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from continual_segment.segmentation.nested import Nesting
from continual_segment.segmentation.pack_decoder import PackDecoder
from continual_segment.segmentation.window_accumulator import AccumulatedSlab

MARGIN = 0.9
"""Of the probability of background; organs above it count as present, so that rounding has no effect."""

PIXELS_OF_A_QUESTION = 1000
"""A question to a pack takes as long as this many of its pixels, however few there are."""

MOST_GROUPS = 64
"""Of pixels that are asked about apart; more would take longer to find than they save."""


class NearbyPacks:
    """Finds, for the packs of one model, where each of them has to be asked."""

    def __init__(self, packs: Sequence[PackDecoder], nesting: Nesting) -> None:
        """`nesting` is that of the merge rule; parts count as their outermost whole."""
        self.packs = packs
        roots = [[nesting.at(organ, 0) for organ in pack.organ_ids[1:].tolist()] for pack in packs]
        rows = {root: row for row, root in enumerate(dict.fromkeys(root for of in roots for root in of))}
        device = packs[0].organ_ids.device
        distinct = [list(dict.fromkeys(of)) for of in roots]
        self.rows = [torch.tensor([rows[root] for root in of], device=device) for of in distinct]
        """Per pack, the row of each of its wholes in a table of all wholes."""
        self.wholes = [
            torch.tensor([own.index(root) for root in of], device=device)
            for own, of in zip(distinct, roots, strict=True)
        ]
        """Per pack, the place of each of its organs among its wholes."""
        self.count = len(rows)

    def idle(self, outputs: Sequence[AccumulatedSlab], z: slice) -> frozenset[int]:
        """Numbers of the packs that ran on no window of some prepared slices: they predict background."""
        shares = ((number, output.share) for number, output in enumerate(outputs))
        return frozenset(number for number, share in shares if share is not None and not share[z].any())

    def masks(
        self, outputs: Sequence[AccumulatedSlab], z: slice, idle: Collection[int] = frozenset()
    ) -> np.ndarray:
        """(voxel, byte) of some prepared slices: a bit per pack, set where an organ of the pack is present.

        Packs that are `idle` on all slices of a question find no organ; they are asked about those of others.
        """
        voxels = outputs[0].values[0, z]
        present = torch.zeros(self.count, voxels.numel(), dtype=torch.bool, device=voxels.device)
        for number, (pack, output) in enumerate(zip(self.packs, outputs, strict=True)):
            if number not in idle:
                present[self.rows[number]] |= self._found_by(number, pack, output.values[:, z])
        asked = torch.stack([present[rows].any(dim=0) for rows in self.rows], dim=1)  # (voxel, pack)
        return np.packbits(asked.cpu().numpy(), axis=1, bitorder="little")

    def _found_by(self, number: int, pack: PackDecoder, values: Tensor) -> Tensor:
        """(whole, voxel): where a pack finds each of its wholes."""
        # windows that did not run count as if they had: then more organs are present, not fewer
        probabilities = pack.predict(values, None).probabilities.flatten(1)
        sums = probabilities[1:]
        if len(self.rows[number]) < len(sums):
            sums = sums.new_zeros(len(self.rows[number]), sums.shape[1])
            sums.index_add_(0, self.wholes[number], probabilities[1:])
        return sums > MARGIN * probabilities[0]


def groups(masks: np.ndarray) -> list[tuple[np.ndarray, list[int]]]:
    """Masks (pixel, byte) -> pixels that are asked about together, and the numbers of the packs to ask."""
    missing = -masks.shape[1] % 8
    words = np.pad(masks, ((0, 0), (0, missing))).view(np.uint64)  # far faster to sort than rows of bytes
    axis = None if words.shape[1] == 1 else 0
    distinct, which, counts = np.unique(words, axis=axis, return_inverse=True, return_counts=True)
    bits = np.unpackbits(distinct.reshape(len(distinct), -1).view(np.uint8), axis=1, bitorder="little")
    group_of, packs = combined(bits.astype(bool), counts)
    group_of_pixel = group_of[which.ravel()]
    order = np.argsort(group_of_pixel, kind="stable")
    pixels = np.split(order, np.cumsum(np.bincount(group_of_pixel, minlength=len(packs)))[:-1])
    return [(of, packs_in(bits)) for of, bits in zip(pixels, packs, strict=True)]


def combined(masks: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The group of each mask (mask, pack), and the packs of each group (group, pack).

    Every pack of a group is asked about all of its pixels. The masks of most pixels come first; each joins
    the group to which it adds least work, or is a group of its own where that is less.
    """
    group_of = np.zeros(len(masks), np.intp)
    packs = np.zeros((min(len(masks), MOST_GROUPS), masks.shape[1]), bool)
    pixels, used = np.zeros(len(packs), np.int64), 0
    for index in np.argsort(-counts, kind="stable"):
        union = packs[:used] | masks[index]
        work = union.sum(axis=1) * (pixels[:used] + counts[index] + PIXELS_OF_A_QUESTION)
        added = work - packs[:used].sum(axis=1) * (pixels[:used] + PIXELS_OF_A_QUESTION)
        alone = masks[index].sum() * (counts[index] + PIXELS_OF_A_QUESTION)
        if used < len(packs) and (used == 0 or alone < added.min()):
            group, used = used, used + 1
        else:
            group = int(added.argmin())
        packs[group] |= masks[index]
        pixels[group] += counts[index]
        group_of[index] = group
    return group_of, packs[:used]


def packs_in(bits: np.ndarray) -> list[int]:
    return [int(number) for number in np.flatnonzero(bits)]
