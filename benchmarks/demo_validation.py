"""Dice of a finished demo on its validation scans: what the demo's settings are chosen by.

    python benchmarks/demo_validation.py DEMO ...

DEMO is a folder that `conseg demo` filled. Every validation scan is segmented once; mean Dice over organs and
scans by the own pack and by all packs, after clean-up. Packs without measured pieces get them from the
training split, as a learning step would measure them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import fmean

import torch

from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.raw import RawDataset
from continual_segment.evaluation.evaluate import score_case
from continual_segment.lab.demo import ORDER
from continual_segment.lab.phantom import dataset_folder
from continual_segment.learning.measure_pieces import measure_pieces
from continual_segment.model import Model
from continual_segment.segmentation import SegmentConfig, Segmenter


def main() -> None:
    torch.set_num_threads(1)
    for folder in map(Path, sys.argv[1:]):
        for name, (own, merged) in scores(folder).items():
            print(f"{folder}  {name:10s} own {own:.3f}  merged {merged:.3f}", flush=True)


def scores(demo: Path) -> dict[str, tuple[float, float]]:
    """By dataset: own pack, all packs."""
    prepared = {name: PreparedDataset.open(demo / "prepared" / name) for name in ORDER}
    segmenter = Segmenter(Model.open(demo / "model"), config=SegmentConfig(progress=False, overlap=0.35))
    for name, dataset in prepared.items():
        segmenter.pieces_of_pack[name] = segmenter.pieces_of_pack[name] or measure_pieces(dataset)
    return {name: dataset_scores(demo, name, dataset, segmenter) for name, dataset in prepared.items()}


def dataset_scores(
    demo: Path, name: str, dataset: PreparedDataset, segmenter: Segmenter
) -> tuple[float, float]:
    raw = RawDataset.open(dataset_folder(demo / "raw", name), workers=1, progress=False)
    rules = {"own": segmenter.single_pack_rule(name), "merged": segmenter.merge_rule()}
    dice: dict[str, list[float]] = {rule: [] for rule in rules}
    for case in raw.cases:
        if case.name in dataset.case_names("validation"):
            scan, truth = raw.read(case)
            for rule, found in segmenter.compare_rules(scan, rules).items():
                rows = score_case(case.name, found.labels, truth)
                dice[rule] += [row.dice for row in rows if row.in_truth]
    return fmean(dice["own"]), fmean(dice["merged"])


if __name__ == "__main__":
    main()
