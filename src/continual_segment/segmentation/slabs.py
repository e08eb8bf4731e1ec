"""Run encoder and decoders over a scan, slab by slab.

Windows that start at one height form a row. Once a row is done, the slices no later row reaches are
final: they are merged and only the winning organ and its score are kept. So the class channels exist for
the height of one window, whatever the length of the scan. A pack does not run on a row all of whose slices
lie in body parts that it does not cover; slices it covers lie in no such row, so nothing changes there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from continual_segment.networks import Decoder, GeneralEncoder
from continual_segment.organs import UNKNOWN_PART
from continual_segment.segmentation.answers import Answer, Decision, Surroundings, Voice
from continual_segment.segmentation.merge import Merge
from continual_segment.segmentation.windows import gaussian_weights, window_starts

Place = tuple[slice, slice, slice]
Doubt = Callable[[Sequence[Answer], Decision], Tensor]


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of a whole prepared scan beforehand."""

    body_part: np.ndarray | None = None
    """(z,): index in BODY_PARTS or UNKNOWN_PART."""
    anomaly: np.ndarray | None = None
    """(z, y, x): probability of diseased tissue."""

    def padded(self, shape: Sequence[int], inner: Sequence[slice], device: torch.device) -> Surroundings:
        """The same for the scan with air around it: the outer slices count as their neighbours."""
        part, anomaly = self.body_part, self.anomaly
        widths = [(place.start, length - place.stop) for place, length in zip(inner, shape, strict=True)]
        if part is not None:
            part = np.pad(np.asarray(part, np.int64), widths[0], mode="edge")
        if anomaly is not None:
            anomaly = np.pad(np.asarray(anomaly, np.float32), widths)
        return Surroundings(
            *(None if each is None else torch.from_numpy(each).to(device) for each in (part, anomaly))
        )


@dataclass(frozen=True, eq=False)
class MergedScan:
    """What one rule says about a scan."""

    organ: np.ndarray
    """uint16 ids"""
    score: np.ndarray
    """float16"""
    pack: np.ndarray | None = None
    """uint8: number of the winning pack, 1 for the first; 0 on background. Only when asked for."""
    contested: np.ndarray | None = None
    """bool: where a pack disagrees with the winner. Only when asked for."""

    @classmethod
    def empty(cls, shape: tuple[int, ...], explain: bool) -> MergedScan:
        return cls(
            np.zeros(shape, np.uint16),
            np.zeros(shape, np.float16),
            np.zeros(shape, np.uint8) if explain else None,
            np.zeros(shape, bool) if explain else None,
        )

    def __getitem__(self, place: tuple[slice, ...]) -> MergedScan:
        parts = (self.organ, self.score, self.pack, self.contested)
        return MergedScan(*(None if part is None else part[place] for part in parts))  # type: ignore[arg-type]

    def put(self, slices: slice, decision: Decision, contested: Tensor | None) -> None:
        self.organ[slices] = decision.organ.cpu().numpy()
        self.score[slices] = decision.score.cpu().numpy()
        if self.pack is not None and self.contested is not None and contested is not None:
            self.pack[slices] = (decision.pack + 1).cpu().numpy()
            self.contested[slices] = contested.cpu().numpy()


class PackDecoder:
    """A pack at work: its decoder, and the sum of its weighted probabilities over the slab in progress."""

    def __init__(
        self, decoder: Decoder, organ_ids: Sequence[int], device: torch.device, voice: Voice | None = None
    ) -> None:
        self.decoder = decoder.to(device)
        self.organ_ids = torch.tensor([0, *organ_ids], dtype=torch.int32, device=device)
        self.voice = voice or Voice()
        self.total = torch.empty(0)

    def begin(self, slab_shape: Sequence[int]) -> None:
        self.total = torch.zeros(len(self.organ_ids), *slab_shape, device=self.organ_ids.device)

    def covers(self, body_part: Tensor | None, below: float) -> bool:
        """Whether any of these slices is unknown or in a part covered better than `below`."""
        if body_part is None:
            return True
        reach = dict(enumerate(self.voice.reach)) | {UNKNOWN_PART: 1.0}
        return any(reach[part] > below for part in body_part.unique().tolist())

    def add(self, features: Sequence[Tensor], weights: Tensor, places: Sequence[Place]) -> None:
        """Decode some windows and add each at its place."""
        for logits, place in zip(self.decoder(features), places, strict=True):
            self.total[(slice(None), *place)] += logits.float().softmax(dim=0) * weights

    def skip(self, weights: Tensor, places: Sequence[Place]) -> None:
        """Call some windows background."""
        for place in places:
            self.total[(0, *place)] += weights

    def answer(self, slices: int, weight: Tensor) -> Answer:
        """What the pack says on the first slices of the slab, until it moves up."""
        return Answer(self.voice, self.organ_ids, self.total[:, :slices], weight[:slices])


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
    known: Known | None = None,
    skip_below: float = 0.0,
    doubt: Doubt | None = None,
) -> list[MergedScan]:
    """Winning organ and score of every voxel of a normalised scan, by each of the merge rules.

    The networks run once for all rules, on `at_once` windows of a row together. `advance` hears of windows
    done. A pack skips rows whose body parts it covers to at most `skip_below` of its best. With `doubt`,
    which finds where packs disagree, that and the winning packs are given too.
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
    around = (known or Known()).padded(padded.shape, inner, device)
    results = [MergedScan.empty(padded.shape, explain=doubt is not None) for _ in merges]
    slab_shape = (window[0], *padded.shape[1:])
    weight = torch.zeros(slab_shape, device=device)
    for pack in packs:
        pack.begin(slab_shape)
    for row, z in enumerate(rows):
        parts = around[slice(z, z + window[0])].body_part
        running = [pack for pack in packs if pack.covers(parts, skip_below)]
        for group in groups:
            run_windows(padded[z : z + window[0]], encoder, packs, running, weights, group)
            for place in group:
                weight[place] += weights
            advance(len(group))
        final = (rows[row + 1] if row + 1 < len(rows) else padded.shape[0]) - z
        answers = [pack.answer(final, weight) for pack in packs]
        slices = slice(z, z + final)
        for merge, result in zip(merges, results, strict=True):
            decision = merge(answers, around[slices])
            result.put(slices, decision, doubt(answers, decision) if doubt else None)
        for slab in (weight, *(pack.total for pack in packs)):
            move_up(slab, final)
    return [result[inner] for result in results]


def run_windows(
    row: np.ndarray,
    encoder: GeneralEncoder,
    packs: Sequence[PackDecoder],
    running: Sequence[PackDecoder],
    weights: Tensor,
    places: Sequence[Place],
) -> None:
    """Encode some windows of a row once, and let the packs that run there decode them."""
    if running:
        cuts = torch.from_numpy(np.stack([row[place] for place in places]))[:, None]
        features = encoder(cuts.to(weights.device))  # the only pass of these windows
    for pack in packs:
        if pack in running:
            pack.add(features, weights, places)
        else:
            pack.skip(weights, places)


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
