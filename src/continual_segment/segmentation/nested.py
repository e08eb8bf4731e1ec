"""Nested organs: the aorta and its arch, the brain and its stem.

One pack may know a whole, another its parts, and both are right at the same voxel. So merging works in
layers. On the first layer a part counts as its whole, and wholes compete with the rest of the body. On the
next layer the parts of the winner compete with each other; where no part wins, the whole remains. A voxel of
a part is therefore always a voxel of its whole: one label map with parts drawn over wholes contains every
layer, and `layers` separates them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from continual_segment.organs import LAST_HASHED_ID, find_organ, owned_wholes
from continual_segment.segmentation.context import ScanContext
from continual_segment.segmentation.merge import MergeRule
from continual_segment.segmentation.predictions import Decision, PackPrediction
from continual_segment.volume import LabelMap


class Nesting:
    """Which organs are parts of which; chains such as lobe, lung side, lung are allowed."""

    def __init__(self, wholes: Mapping[int, int]) -> None:
        """`wholes` maps the id of a part to the id of its whole."""
        self.wholes = dict(wholes)

    @cached_property
    def depth(self) -> int:
        """Number of layers below the first; 0 if no organ is part of another."""
        return max((len(self.chain(part)) - 1 for part in self.wholes), default=0)

    def chain(self, organ: int) -> list[int]:
        """The organ and all organs that contain it, the largest first."""
        found = [organ]
        while found[-1] in self.wholes:
            found.append(self.wholes[found[-1]])
        return found[::-1]

    def at(self, organ: int, layer: int) -> int:
        """The organ's id on a layer: its own, or that of the whole that it belongs to there."""
        chain = self.chain(organ)
        return chain[min(layer, len(chain) - 1)]

    def families(self, organs: Iterable[int]) -> dict[int, list[int]]:
        """Each of the organs -> itself and those of the others that are parts of it, at any depth."""
        found: dict[int, list[int]] = {organ: [] for organ in organs}
        for organ in found:
            for whole in self.chain(organ):
                if whole in found:
                    found[whole].append(organ)
        return found

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


def merge_predictions(
    rule: MergeRule,
    predictions: Sequence[PackPrediction],
    context: ScanContext,
    nesting: Nesting | None = None,
) -> Decision:
    """Apply a rule, layer by layer if organs are nested. The order of the packs has no effect."""
    order = sorted(range(len(predictions)), key=lambda index: predictions[index].profile.rank)
    ranked = [predictions[index] for index in order]
    nesting = nesting or Nesting({})
    decision = rule([on_layer(prediction, nesting, 0) for prediction in ranked], context)
    known = {organ for prediction in ranked for organ in prediction.organ_ids.tolist()}
    wholes = torch.tensor(sorted({whole for organ in known for whole in nesting.chain(organ)[:-1]}))
    for layer in range(1, nesting.depth + 1) if len(wholes) else ():
        divided = torch.isin(decision.organ, wholes.to(decision.organ)).nonzero(as_tuple=True)
        if not len(divided[0]):
            break  # no organ that has won has parts, and on the next layers it is the same
        winner = decision.organ[divided][:, None, None]
        parts = [
            within(on_layer(prediction.at_voxels(*divided), nesting, layer), winner, nesting)
            for prediction in ranked
        ]
        inner = rule(parts, context.at_voxels(*divided))
        wins = inner.organ.flatten() > 0
        places = [at[wins] for at in divided]
        for target, new in zip(decision, inner, strict=True):
            target[*places] = new.flatten()[wins]
    positions = torch.tensor([*order, -1], dtype=torch.int16, device=decision.pack.device)
    return decision._replace(pack=positions[decision.pack.long()])


def on_layer(prediction: PackPrediction, nesting: Nesting, layer: int) -> PackPrediction:
    """The prediction with parts below this layer added to the whole that they belong to."""
    ids = [nesting.at(organ, layer) for organ in prediction.organ_ids.tolist()]
    if ids == prediction.organ_ids.tolist():
        return prediction
    distinct = list(dict.fromkeys(ids))
    probabilities = prediction.probabilities
    if len(distinct) < len(ids):
        target = torch.tensor([distinct.index(organ) for organ in ids], device=probabilities.device)
        sums = probabilities.new_zeros(len(distinct), *probabilities.shape[1:])
        probabilities = sums.index_add_(0, target, probabilities)
    new_ids = torch.tensor(distinct, dtype=torch.int32, device=probabilities.device)
    by_parts = new_ids[~torch.isin(new_ids, prediction.organ_ids)]
    return replace(prediction, organ_ids=new_ids, probabilities=probabilities, known_by_parts=by_parts)


def within(prediction: PackPrediction, winner: Tensor, nesting: Nesting) -> PackPrediction:
    """The prediction restricted, at each voxel, to parts of the organ that has won there."""
    wholes = [nesting.wholes.get(organ, -1) for organ in prediction.organ_ids.tolist()]
    of_channels = torch.tensor(wholes, dtype=torch.int32, device=winner.device)
    return replace(prediction, whole=winner, wholes=of_channels)


def nesting_of(labels: LabelMap) -> Nesting:
    """Which organs of a label map are parts of which, by their numbers in the map."""
    organs = {label: find_organ(name) for label, name in labels.names.items()}
    local = {organ.id: label for label, organ in organs.items()}
    wholes = owned_wholes(organs.values())
    return Nesting({local[part]: local[whole] for part, whole in wholes.items()})


def layers(labels: LabelMap) -> list[LabelMap]:
    """The layers of a map with parts drawn over wholes: first wholes and undivided organs, then parts.

    On lower layers, voxels without an organ at that depth are 0.
    """
    nesting = nesting_of(labels)
    chains = {label: nesting.chain(label) for label in labels.names}
    found = []
    for layer in range(nesting.depth + 1):
        largest = max([0, *chains])  # names may have numbers that no voxel has
        table = np.zeros(largest + 1, np.promote_types(labels.voxels.dtype, np.min_scalar_type(largest)))
        for label, chain in chains.items():
            table[label] = chain[layer] if layer < len(chain) else 0
        names = {label: name for label, name in labels.names.items() if len(chains[label]) == layer + 1}
        found.append(LabelMap(table[labels.voxels], labels.grid, names))
    return found
