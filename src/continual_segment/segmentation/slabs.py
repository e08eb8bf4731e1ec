"""Run encoder and decoders over a scan, slab by slab.

Windows that start at one height form a row. Once a row is done, the slices no later row reaches are
final: they are merged and only the winning organ and its score are kept. So the class channels exist for
the height of one window, whatever the length of the scan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from continual_segment.networks import Decoder, GeneralEncoder
from continual_segment.segmentation.merge import Answer, Merge
from continual_segment.segmentation.windows import gaussian_weights, window_starts

Place = tuple[slice, slice, slice]


class PackDecoder:
    """A pack at work: its decoder, and the sum of its weighted probabilities over the slab in progress."""

    def __init__(self, decoder: Decoder, organ_ids: Sequence[int], device: torch.device) -> None:
        self.decoder = decoder.to(device)
        self.organ_ids = torch.tensor([0, *organ_ids], dtype=torch.int32, device=device)
        self.total = torch.empty(0)

    def begin(self, slab_shape: Sequence[int]) -> None:
        self.total = torch.zeros(len(self.organ_ids), *slab_shape, device=self.organ_ids.device)

    def add(self, features: Sequence[Tensor], weights: Tensor, places: Sequence[Place]) -> None:
        """Decode some windows and add each at its place."""
        for logits, place in zip(self.decoder(features), places, strict=True):
            self.total[(slice(None), *place)] += logits.float().softmax(dim=0) * weights

    def finish(self, slices: int, weight: Tensor) -> Answer:
        """The pack's answer on the first slices of the slab, which then moves up by as many."""
        score, channel = self.total[:, :slices].max(dim=0)
        answer = Answer(self.organ_ids[channel], torch.where(channel > 0, score / weight[:slices], 0.0))
        move_up(self.total, slices)
        return answer


@torch.no_grad()
def segment_slabs(
    voxels: np.ndarray,
    encoder: GeneralEncoder,
    packs: Sequence[PackDecoder],
    window: tuple[int, int, int],
    overlap: float,
    merges: Sequence[Merge],
    at_once: int = 1,
    advance: Callable[[int], object] = lambda windows: None,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Winning organ id and score of every voxel of a normalised scan, by each of the merge rules.

    The networks run once for all rules, on `at_once` windows of a row together. `advance` hears of windows
    done.
    """
    padded, inner = pad_to_window(voxels, window)
    device = packs[0].organ_ids.device
    weights = torch.from_numpy(gaussian_weights(window)).to(device)
    rows, *across = (
        window_starts(length, size, overlap) for length, size in zip(padded.shape, window, strict=True)
    )
    places = [
        (slice(None), slice(y, y + window[1]), slice(x, x + window[2])) for y in across[0] for x in across[1]
    ]
    groups = [places[first : first + at_once] for first in range(0, len(places), at_once)]
    slab_shape = (window[0], *padded.shape[1:])
    results = [(np.zeros(padded.shape, np.uint16), np.zeros(padded.shape, np.float16)) for _ in merges]
    weight = torch.zeros(slab_shape, device=device)
    for pack in packs:
        pack.begin(slab_shape)
    for row, z in enumerate(rows):
        for group in groups:
            cuts = np.stack([padded[z : z + window[0]][place] for place in group])
            features = encoder(torch.from_numpy(cuts)[:, None].to(device))  # the only pass of these windows
            for pack in packs:
                pack.add(features, weights, group)
            for place in group:
                weight[place] += weights
            advance(len(group))
        final = (rows[row + 1] if row + 1 < len(rows) else padded.shape[0]) - z
        answers = [pack.finish(final, weight) for pack in packs]
        move_up(weight, final)
        for merge, (organs, scores) in zip(merges, results, strict=True):
            merged = merge(answers)
            organs[z : z + final] = merged.organ.cpu().numpy()
            scores[z : z + final] = merged.score.cpu().numpy()
    return [(organs[inner], scores[inner]) for organs, scores in results]


def count_windows(shape: Sequence[int], window: Sequence[int], overlap: float) -> int:
    """How many windows `segment_slabs` will run."""
    return int(np.prod([len(window_starts(n, w, overlap)) for n, w in zip(shape, window, strict=True)]))


def pad_to_window(voxels: np.ndarray, window: Sequence[int]) -> tuple[np.ndarray, tuple[slice, ...]]:
    """The scan with air around it where it is smaller than a window, and where the scan lies in it."""
    missing = [max(0, size - length) for length, size in zip(voxels.shape, window, strict=True)]
    before = [gap // 2 for gap in missing]
    inner = tuple(slice(b, b + n) for b, n in zip(before, voxels.shape, strict=True))
    if not any(missing):
        return voxels, inner
    widths = [(b, gap - b) for b, gap in zip(before, missing, strict=True)]
    return np.pad(voxels, widths, constant_values=-1.0), inner  # -1 is air after normalisation


def move_up(slab: Tensor, slices: int) -> None:
    """Drop the first slices of a slab (..., z, y, x) and open as many empty ones at its end."""
    kept = slab.shape[-3] - slices
    slab[..., :kept, :, :] = slab[..., slices:, :, :].clone()
    slab[..., kept:, :, :] = 0
