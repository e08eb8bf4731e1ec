"""Run encoder and decoders over a scan, slab by slab.

Windows that start at one height form a row. Once a row is done, the slices no later row reaches are
final: they are handed on, and the slab moves up. So what packs say exists for the height of one window,
whatever the length of the scan, and by segmentation/blend.py whatever the number of organs.

A pack does not run on a row all of whose slices lie in body parts that it does not cover; slices it covers
lie in no such row, so nothing changes there. No pack runs on windows of air beside the body. Where a pack
does not run it says background.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch
from torch import Tensor

from continual_segment.malloc import give_back_freed_memory
from continual_segment.networks import Decoder
from continual_segment.networks.heads import ProjectionHead
from continual_segment.organs import UNKNOWN_PART
from continual_segment.segmentation.answers import Answer, Decision, Surroundings, Voice
from continual_segment.segmentation.backends import BackendName, Encode, precision, start_decoder
from continual_segment.segmentation.blend import Blend, Place, Said, move_up
from continual_segment.segmentation.merge import Merge
from continual_segment.segmentation.rows import Box, Rows
from continual_segment.segmentation.windows import gaussian_weights, window_starts

Doubt = Callable[[Sequence[Answer], Decision], Tensor]
NUMBERS_AT_ONCE = 2**24
"""Probabilities of all packs and organs that exist at a time while slices are decided: 64 MB."""
LARGE_WINDOW = 2**18
"""Voxels from which on windows pass the networks one by one: they gain no time together, but need memory."""


@dataclass(frozen=True, eq=False)
class Known:
    """What is known of a whole prepared scan beforehand."""

    body_part: np.ndarray | None = None
    """(z,): index in BODY_PARTS or UNKNOWN_PART."""
    anomaly: np.ndarray | None = None
    """(z, y, x): probability of diseased tissue."""

    def inside(self, box: Box) -> Known:
        """The same for a box of every slice."""
        return replace(self, anomaly=None if self.anomaly is None else self.anomaly[:, *box])

    def on(self, device: torch.device) -> Surroundings:
        part, anomaly = self.body_part, self.anomaly
        return Surroundings(
            None if part is None else torch.from_numpy(np.asarray(part, np.int64)).to(device),
            None if anomaly is None else torch.from_numpy(np.asarray(anomaly, np.float32)).to(device),
        )


class PackDecoder:
    """A pack at work: its decoder, and what it says over the slab in progress."""

    def __init__(
        self,
        decoder: Decoder | ProjectionHead,
        organ_ids: Sequence[int],
        device: torch.device,
        voice: Voice | None = None,
        backend: BackendName = "eager",
    ) -> None:
        self.decoder = decoder.to(device)
        self.organ_ids = torch.tensor([0, *organ_ids], dtype=torch.int32, device=device)
        self.voice = voice or Voice()
        features = decoder.head.in_channels
        self.keeps_features = features < len(self.organ_ids)
        """Whether features are blended, or logits, which are fewer."""
        self.channels = min(features, len(self.organ_ids))
        self.decode = start_decoder(self.decoder, self.keeps_features, backend)

    def begin(self, slab_shape: Sequence[int]) -> None:
        self.blend = Blend(self.channels, slab_shape, self.organ_ids.device)

    def end(self) -> None:
        """Accumulators are needed no more."""
        del self.blend

    def covers(self, body_part: Tensor | None, below: float) -> bool:
        """Whether any of these slices is unknown or in a part covered better than `below`."""
        if body_part is None:
            return True
        reach = dict(enumerate(self.voice.reach)) | {UNKNOWN_PART: 1.0}
        return any(reach[part] > below for part in body_part.unique().tolist())

    def add(self, features: Sequence[Tensor], weights: Tensor, places: Sequence[Place]) -> None:
        """Decode some windows and add each at its place."""
        for value, place in zip(self.decode(features), places, strict=True):
            self.blend.add(value.float(), weights, place)

    def answer(self, values: Tensor, share: Tensor | None) -> Answer:
        """What the pack says where its windows say this on average: `values` (channel, z, y, x)."""
        logits = values.float().flatten(1)
        if self.keeps_features:
            head = self.decoder.head
            logits = torch.addmm(head.bias[:, None], head.weight.flatten(1), logits)  # type: ignore[index]
        probabilities = logits.softmax(dim=0).view(len(logits), *values.shape[1:])
        if share is not None:  # windows that were not run count as background
            probabilities *= share
            probabilities[0] += 1 - share
        everywhere = torch.ones_like(probabilities[0])
        return Answer(self.voice, self.organ_ids, probabilities, everywhere)


@dataclass(frozen=True, eq=False)
class Slab:
    """Slices of a prepared scan that no later window reaches; valid until the next slab is asked for."""

    slices: slice
    packs: Sequence[PackDecoder]
    said: Sequence[Said]
    """Per pack."""
    around: Surroundings
    """Of the whole scan."""

    @property
    def shape(self) -> tuple[int, int, int]:
        z, y, x = self.said[0].values.shape[1:]
        return z, y, x

    def decide(self, merges: Sequence[Merge], doubt: Doubt | None = None) -> list[tuple[Decision, Tensor]]:
        """What each rule says, and by `doubt` where packs disagree; classes exist for a few lines only."""
        device = self.packs[0].organ_ids.device
        decided = [
            (Decision.background(self.shape, device), torch.zeros(self.shape, dtype=torch.bool))
            for _ in merges
        ]
        for z, y in lines_at_once(self.shape, voxels_at_once(self.packs)):
            answers = [
                pack.answer(said.values[:, z, y], said.share_at(z, y))
                for pack, said in zip(self.packs, self.said, strict=True)
            ]
            around = self.around.at(slice(self.slices.start + z.start, self.slices.start + z.stop), y)
            for merge, (whole, contested) in zip(merges, decided, strict=True):
                decision = merge(answers, around)
                for target, part in zip(whole, decision, strict=True):
                    target[z, y] = part
                if doubt:
                    contested[z, y] = doubt(answers, decision).cpu()
        return decided


def voxels_at_once(packs: Sequence[PackDecoder]) -> int:
    return max(1, NUMBERS_AT_ONCE // sum(len(pack.organ_ids) for pack in packs))


def lines_at_once(shape: tuple[int, int, int], voxels: int) -> Iterator[tuple[slice, slice]]:
    """Slices and lines of a box, in pieces of about so many voxels."""
    depth, height, width = shape
    lines = max(1, voxels // width)
    slices = max(1, lines // height)
    for z in range(0, depth, slices):
        for y in range(0, height, min(lines, height)):
            yield slice(z, min(z + slices, depth)), slice(y, min(y + lines, height))


@dataclass(frozen=True, eq=False)
class Networks:
    """What runs on the windows of a scan."""

    encode: Encode
    packs: Sequence[PackDecoder]
    heads: Sequence[PackDecoder] = ()
    """Tell where tissue is diseased, unless that is known; they run where any pack does."""


@dataclass(frozen=True)
class Cut:
    """How a scan is cut into windows."""

    overlap: float = 0.5
    """Share of a window that its neighbour covers too."""
    at_once: int = 1
    """Windows of a row that pass the networks together; large ones pass one by one."""
    skip_below: float = 0.0
    """A pack skips rows whose body parts it covers to at most this share of its best."""


@torch.no_grad()
def run_slabs(
    rows: Rows,
    networks: Networks,
    cut: Cut,
    known: Known | None = None,
    advance: Callable[[int], object] = lambda windows: None,
) -> Iterator[Slab]:
    """What the packs say about a scan, from its first slice to its last; `advance` hears of windows done."""
    window, packs, heads = rows.window, networks.packs, networks.heads
    device = packs[0].organ_ids.device
    starts, places = window_places(rows.shape, window, cut.overlap)
    row = WindowRow(rows, networks.encode, places, cut.at_once, device, advance)
    around = (known or Known()).on(device)
    heads = () if around.anomaly is not None else heads
    if heads:  # filled as slabs are finished, which is before anybody asks
        around = replace(around, anomaly=torch.zeros(rows.own_shape, dtype=torch.float16, device=device))
    slab_shape = (window[0], *rows.shape[1:])
    weight = torch.zeros(slab_shape, device=device)
    give_back_freed_memory()  # of reading, before the accumulators are laid out
    for pack in (*packs, *heads):
        pack.begin(slab_shape)
    for z, following in zip(starts, [*starts[1:], rows.shape[0]], strict=True):
        height = slice(z, z + window[0])
        parts = around[rows.own(height)].body_part
        running = [pack for pack in packs if pack.covers(parts, cut.skip_below)]
        running += heads if running else ()
        air = row.run(height, running)
        for place in places:
            weight[place] += row.weights
        for pack in (*packs, *heads):
            pack.blend.leave_out(row.weights, air if pack in running else places)
        final = following - z
        own, (depth, *across) = rows.own(slice(z, following)), rows.inner
        inner = slice(depth.start + own.start - z, depth.start + own.stop - z), across[0], across[1]
        said = [pack.blend.finish(final, weight, inner) for pack in packs]
        for head in heads:
            mark_disease(around, own, head, head.blend.finish(final, weight, inner))
        yield Slab(own, packs, said, around)
        del said
        give_back_freed_memory()  # of deciding: blocks of other sizes than a row of windows needs
        move_up(weight, final)
        for pack in (*packs, *heads):
            pack.blend.move_up(final)
    for pack in (*packs, *heads):
        pack.end()


def mark_disease(around: Surroundings, slices: slice, head: PackDecoder, said: Said) -> None:
    """Note how surely some slices are diseased: as the surest head says."""
    assert around.anomaly is not None
    for z in range(slices.stop - slices.start):
        answer = head.answer(said.values[:, z : z + 1], said.share_at(slice(z, z + 1), slice(None)))
        there = around.anomaly[slices.start + z]
        torch.maximum(there, (1 - answer.background[0]).to(there.dtype), out=there)


class WindowRow:
    """The windows that start at one height, at any height of a scan."""

    def __init__(
        self,
        rows: Rows,
        encode: Encode,
        places: Sequence[Place],
        at_once: int,
        device: torch.device,
        advance: Callable[[int], object],
    ) -> None:
        self.rows, self.encode, self.places, self.advance = rows, encode, places, advance
        self.at_once = 1 if prod(rows.window) >= LARGE_WINDOW else at_once
        self.weights = torch.from_numpy(gaussian_weights(rows.window)).to(device)

    def run(self, height: slice, packs: Sequence[PackDecoder]) -> list[Place]:
        """Encode each window once and let these packs decode it; return windows of air, which did not run."""
        empty = self.rows.air(height, self.places) if packs else [True] * len(self.places)
        air = [place for place, is_air in zip(self.places, empty, strict=True) if is_air]
        left = [place for place, is_air in zip(self.places, empty, strict=True) if not is_air]
        self.advance(len(air))
        voxels = self.rows[height] if left else None
        for first in range(0, len(left), self.at_once):
            group = left[first : first + self.at_once]
            cuts = torch.from_numpy(np.stack([voxels[place] for place in group]))[:, None]  # type: ignore[index]
            with precision(self.weights.device):
                features = self.encode(cuts.to(self.weights.device))  # the only pass of these windows
                for pack in packs:
                    pack.add(features, self.weights, group)
            self.advance(len(group))
        return air


def window_places(
    shape: Sequence[int], window: Sequence[int], overlap: float
) -> tuple[list[int], list[Place]]:
    """First slices of the rows, and where the windows lie in each."""
    rows, *across = (window_starts(n, size, overlap) for n, size in zip(shape, window, strict=True))
    return rows, [
        (slice(None), slice(y, y + window[1]), slice(x, x + window[2])) for y in across[0] for x in across[1]
    ]


def count_windows(shape: Sequence[int], window: Sequence[int], overlap: float) -> int:
    """How many windows cover a scan."""
    rows, places = window_places(shape, window, overlap)
    return len(rows) * len(places)
