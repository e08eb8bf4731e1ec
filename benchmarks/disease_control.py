"""Disease or scanner? Merge rules on phantoms of both, healthy and diseased, on both scanners.

    python benchmarks/disease_control.py MODEL --out FILE [--cases N] [--seed S]

MODEL has packs of the demo's datasets, one of them learned with --anomaly, and may have an anomaly head. Four
groups of new patients are drawn: with and without a tumour of the esophagus, on the scanners of the datasets
`chest` and `esophagus`. Scored is the esophagus, which three packs know. Rules differ in where `weighted`
takes disease from: the model's heads, the packs alone (as without a head), the true mask of the tumour, or
nowhere.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from continual_segment.evaluation.evaluate import score_case
from continual_segment.files import write_json
from continual_segment.lab.phantom.datasets import DATASETS
from continual_segment.lab.phantom.organ_lists import ESOPHAGUS, TUMOUR, label_voxels
from continual_segment.lab.phantom.scanner import Scan, majority
from continual_segment.lab.phantom.write import case_seed, make_scan
from continual_segment.model import Model
from continual_segment.segmentation import ScanContext, SegmentConfig, Segmenter
from continual_segment.segmentation.merge import MergeRule
from continual_segment.segmentation.nested import merge_predictions
from continual_segment.segmentation.predictions import Decision, PackPrediction
from continual_segment.segmentation.segmenter import LabelRule
from continual_segment.segmentation.weighted import WeightedVote
from continual_segment.volume import LabelMap, Volume

SCANNERS, DISEASES = ("chest", "esophagus"), ("none", "esophagus")
ORGAN = ESOPHAGUS[0]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=12, help="patients of each group")
    parser.add_argument("--seed", type=int, default=500)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = Model.open(args.model)
    segmenter = Segmenter(model, config=SegmentConfig(progress=False))
    scores: dict[str, dict[str, list[float]]] = {}
    for scanner, disease in product(SCANNERS, DISEASES):
        group = f"{'healthy' if disease == 'none' else 'diseased'} on the {scanner} scanner"
        dataset, spacing = DATASETS[scanner].with_disease(disease), segmenter.prepare.spacing_mm
        for number in range(args.cases):
            scan = make_scan(dataset, case_seed(args.seed, dataset, number), spacing)
            for rule, dice in scores_of(segmenter, scan).items():
                scores.setdefault(rule, {}).setdefault(group, []).append(dice)
    means = {
        rule: {group: round(float(np.mean(dices)), 4) for group, dices in groups.items()}
        for rule, groups in scores.items()
    }
    write_json(args.out, {"cases": args.cases, "means": means, "scans": scores})
    print(table(means))


def scores_of(segmenter: Segmenter, scan: Scan) -> dict[str, float]:
    """Dice of the esophagus by every rule."""
    volume = Volume(scan.hu, scan.grid)
    truth = LabelMap(majority(label_voxels(scan.body, ESOPHAGUS), scan.split), scan.grid, {1: ORGAN})
    tumour = majority(label_voxels(scan.body, TUMOUR), scan.split) > 0
    found = segmenter.compare_rules(volume, rules(segmenter))
    known = ScanContext.of(anomaly=tumour.astype(np.float32))
    found["weighted, true mask"] = segmenter(volume, context=known)
    return {
        rule: next(row.dice for row in score_case("scan", each.labels, truth) if row.organ == ORGAN)
        for rule, each in found.items()
    }


def rules(segmenter: Segmenter) -> dict[str, LabelRule]:
    weighted = segmenter.merge_rule("weighted")

    def changed(rule: MergeRule) -> LabelRule:
        return replace(weighted, merge=partial(merge_predictions, rule, nesting=segmenter.nesting))

    every = {name: segmenter.merge_rule(name) for name in ("ensemble", "literal", "consensus")}
    every["weighted, no health"] = changed(WeightedVote(health=False))
    every["weighted, packs alone"] = changed(without_map(WeightedVote()))
    if segmenter.heads:
        every["weighted, heads"] = weighted
    names = (
        pack.profile.name for pack in segmenter.packs if ORGAN in organs_of(segmenter, pack.profile.name)
    )
    return every | {f"{name} alone": segmenter.single_pack_rule(name) for name in names}


def organs_of(segmenter: Segmenter, pack: str) -> set[str]:
    return {organ.name for organ in segmenter.organs_of_pack[pack]}


def without_map(rule: Callable[[Sequence[PackPrediction], ScanContext], Decision]) -> MergeRule:
    """The rule as in a model without anomaly heads."""

    def changed(predictions: Sequence[PackPrediction], context: ScanContext) -> Decision:
        return rule(predictions, replace(context, anomaly=None))

    return changed


def table(means: dict[str, Any]) -> str:
    groups = list(next(iter(means.values())))
    lines = [f"| rule | {' | '.join(groups)} |", "|---" * (len(groups) + 1) + "|"]
    lines += [
        f"| {rule} | {' | '.join(f'{row[group]:.4f}' for group in groups)} |" for rule, row in means.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
