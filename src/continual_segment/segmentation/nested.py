"""Organs within organs: the aorta and its arch, the brain and its stem.

One pack may know a whole, another its parts, and both are right at the same voxel. So merging goes down in
layers. On the first a part speaks for its whole, and wholes compete with the rest of the body; on the next
the parts of the winner compete among themselves, and where none is named the whole stays. A voxel of a part
is therefore always a voxel of its whole: one label map with parts drawn over wholes keeps every layer, and
`layers` gives them back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from continual_segment.organs import LAST_HASHED_ID, find_organ, owned_wholes
from continual_segment.segmentation.answers import Answer, Decision, Surroundings
from continual_segment.segmentation.merge import Merge
from continual_segment.volume import LabelMap


class Nesting:
    """Which of some organs are parts of which; a chain such as lobe, lung side, lung is followed."""

    def __init__(self, wholes: Mapping[int, int]) -> None:
        self.wholes = dict(wholes)

    @cached_property
    def depth(self) -> int:
        """0 where no organ is part of another."""
        return max((len(self.chain(part)) - 1 for part in self.wholes), default=0)

    def chain(self, organ: int) -> list[int]:
        """The organ and all it is part of, the largest first."""
        found = [organ]
        while found[-1] in self.wholes:
            found.append(self.wholes[found[-1]])
        return found[::-1]

    def at(self, organ: int, layer: int) -> int:
        """What the organ is called on a layer: itself, or the whole that it is part of there."""
        chain = self.chain(organ)
        return chain[min(layer, len(chain) - 1)]

    def related(self, one: Tensor, other: Tensor) -> Tensor:
        """Where two organs are the same or one is part of the other."""
        found = one == other
        for layer in range(self.depth):
            table = torch.arange(LAST_HASHED_ID + 1, dtype=torch.int32)
            for part in self.wholes:
                table[part] = self.at(part, layer)
            table = table.to(one.device)
            found = found | (table[one.long()] == other) | (table[other.long()] == one)
        return found


def merge(
    rule: Merge, answers: Sequence[Answer], around: Surroundings, nesting: Nesting | None = None
) -> Decision:
    """Apply a rule, layer by layer where there are nested organs. The order of the packs decides nothing."""
    order = sorted(range(len(answers)), key=lambda index: answers[index].voice.rank)
    ranked = [answers[index] for index in order]
    nesting = nesting or Nesting({})
    decision = rule([on_layer(answer, nesting, 0) for answer in ranked], around)
    for layer in range(1, nesting.depth + 1):
        parts = [within(on_layer(answer, nesting, layer), decision.organ, nesting) for answer in ranked]
        inner = rule(parts, around)
        decision = Decision(
            *(torch.where(inner.organ > 0, new, old) for new, old in zip(inner, decision, strict=True))
        )
    positions = torch.tensor([*order, -1], dtype=torch.int16, device=decision.pack.device)
    return decision._replace(pack=positions[decision.pack.long()])


def on_layer(answer: Answer, nesting: Nesting, layer: int) -> Answer:
    """The answer with parts below this layer added to what they are part of there."""
    ids = [nesting.at(organ, layer) for organ in answer.organ_ids.tolist()]
    if ids == answer.organ_ids.tolist():
        return answer
    distinct = list(dict.fromkeys(ids))
    sums = answer.sums
    if len(distinct) < len(ids):
        target = torch.tensor([distinct.index(organ) for organ in ids], device=sums.device)
        sums = sums.new_zeros(len(distinct), *sums.shape[1:]).index_add_(0, target, sums)
    new_ids = torch.tensor(distinct, dtype=torch.int32, device=sums.device)
    by_parts = new_ids[~torch.isin(new_ids, answer.organ_ids)]
    return replace(answer, organ_ids=new_ids, sums=sums, by_parts=by_parts)


def within(answer: Answer, winner: Tensor, nesting: Nesting) -> Answer:
    """The answer to which part of the organ that has won a voxel is of."""
    wholes = [nesting.wholes.get(organ, -1) for organ in answer.organ_ids.tolist()]
    return replace(answer, whole=winner, wholes=torch.tensor(wholes, dtype=torch.int32, device=winner.device))


def nesting_of(labels: LabelMap) -> Nesting:
    """Which organs of a label map are parts of which, by their numbers in the map."""
    organs = {label: find_organ(name) for label, name in labels.names.items()}
    local = {organ.id: label for label, organ in organs.items()}
    wholes = owned_wholes(organs.values())
    return Nesting({local[part]: local[whole] for part, whole in wholes.items()})


def layers(labels: LabelMap) -> list[LabelMap]:
    """The layers of a map with parts drawn over wholes: wholes and all undivided organs first, parts after.

    On a layer below, voxels are 0 where no organ of the map is so deep.
    """
    nesting = nesting_of(labels)
    chains = {label: nesting.chain(label) for label in labels.names}
    found = []
    for layer in range(nesting.depth + 1):
        table = np.zeros(max([0, *chains]) + 1, labels.voxels.dtype)
        for label, chain in chains.items():
            table[label] = chain[layer] if layer < len(chain) else 0
        names = {label: name for label, name in labels.names.items() if len(chains[label]) == layer + 1}
        found.append(LabelMap(table[labels.voxels], labels.grid, names))
    return found
