"""An anomaly head on held-out phantoms: Dice of tumours, how many it finds, at how many false findings.

    python benchmarks/anomaly_head.py MODEL PREPARED=RAW --healthy RAW ... --out FILE [--pack NAME]

PREPARED and RAW are a dataset with tumour masks, whose validation and test splits are used; --healthy are
raw datasets of patients without tumours. A finding is a connected component above a threshold with at least
so many voxels; one that touches no tumour is false. Threshold and size are chosen on the validation split and
the first half of the healthy scans: of those with at most one false finding in ten healthy scans, the pair by
which most tumours are found. All figures are of the test split and the second half. Without healthy scans,
findings mean nothing, and Dice alone is to be read. PACK, by default the
model's first, runs beside the head, which needs its windows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from merging import Dataset
from scipy import ndimage

from continual_segment.data.raw import RawDataset
from continual_segment.files import write_json
from continual_segment.model import Model
from continual_segment.segmentation import ScanContext, SegmentConfig, Segmenter
from continual_segment.segmentation.prepared_scan import prepare_for_windows
from continual_segment.segmentation.sampling import nearest_neighbour
from continual_segment.segmentation.sliding_window import SlidingWindow
from continual_segment.volume import LabelMap, Volume

THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
LEAST_VOXELS = (1, 3, 6, 12, 25)
FALSE_PER_SCAN = 0.1
"""Findings in healthy scans that are tolerated when the threshold is chosen."""
EVERYWHERE = np.ones((3, 3, 3))


@dataclass(frozen=True)
class Read:
    """The head's answer to one scan."""

    disease: np.ndarray
    """Probability (z, y, x)."""
    truth: np.ndarray
    """Labels of tumours; 0 elsewhere."""

    def dice(self) -> float | None:
        """Of all tumours of the scan at a probability of a half; None if it shows none."""
        found, there = self.disease > 0.5, self.truth > 0
        return float(2 * (found & there).sum() / (found.sum() + there.sum())) if there.any() else None

    def findings(self, threshold: float, voxels: int) -> tuple[dict[int, tuple[int, int]], int]:
        """Per label, tumours and those that were found; false findings."""
        findings, _ = ndimage.label(self.disease > threshold, EVERYWHERE)
        large = np.bincount(findings.ravel()) >= voxels
        large[0] = False
        findings = np.where(large[findings], findings, 0)
        count = int(large.sum())
        true = set(np.unique(findings[self.truth > 0]).tolist()) - {0}
        kinds = {}
        for label in np.unique(self.truth[self.truth > 0]).tolist():
            lumps, number = ndimage.label(self.truth == label, EVERYWHERE)
            found = sum(bool(findings[lumps == lump].any()) for lump in range(1, number + 1))
            kinds[label] = (number, found)
        return kinds, count - len(true)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("tumours", metavar="PREPARED=RAW", type=lambda text: Dataset.of(f"tumours={text}"))
    parser.add_argument("--healthy", type=Path, nargs="+", default=[], metavar="RAW")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pack")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = Model.open(args.model)
    # the rule `literal` reads disease whatever packs there are; without body parts the head runs everywhere
    config = SegmentConfig(progress=False, merge="literal", body_parts=False)
    segmenter = Segmenter(model, packs=[args.pack or model.pack_names[0]], config=config)
    for head in segmenter.heads:
        head.kernels = []  # what it finds itself, before that spreads by the size of tumours
    choosing = list(read_split(segmenter, args.tumours, "validation"))
    testing = list(read_split(segmenter, args.tumours, "test"))
    for folder in args.healthy:
        healthy = list(read_healthy(segmenter, folder))
        choosing += healthy[: len(healthy) // 2]
        testing += healthy[len(healthy) // 2 :]
    limits = chosen_limits(choosing)
    found = summary(testing, *limits, args.tumours.raw)
    write_json(args.out, found)
    for what, value in found.items():
        print(f"{what}: {value}")


def read_split(segmenter: Segmenter, dataset: Dataset, split: str) -> Iterator[Read]:
    for name in dataset.prepared.case_names(split):
        case = next(case for case in dataset.raw.cases if case.name == name)
        yield read(segmenter, *dataset.raw.read(case))


def read_healthy(segmenter: Segmenter, folder: Path) -> Iterator[Read]:
    dataset = RawDataset.open(folder, check=False, progress=False)
    for case in dataset.cases:
        scan, labels = dataset.read(case)
        yield read(segmenter, scan, LabelMap(np.zeros_like(labels.voxels), labels.grid, labels.names))


def read(segmenter: Segmenter, scan: Volume, truth: LabelMap) -> Read:
    """The anomaly map of a scan on the network's voxels, and the truth there."""
    prepared = prepare_for_windows(scan, segmenter.prepare, segmenter.window)
    sliding = SlidingWindow(
        prepared.padded,
        segmenter.encode,
        segmenter.packs,
        segmenter.heads,
        ScanContext(),
        segmenter.config,
        prepared.tiling,
    )
    for _ in sliding.slabs():
        pass
    assert sliding.context.anomaly is not None
    disease = np.zeros(prepared.shape, np.float32)
    disease[:, *prepared.padded.box] = (
        sliding.context.anomaly.float().numpy()
    )  # beside the body there is none
    return Read(disease, nearest_neighbour(truth.voxels, prepared.shape))


def chosen_limits(reads: Sequence[Read]) -> tuple[float, int]:
    """Threshold and size by which most tumours are found, with few false findings in healthy scans."""
    healthy = [each for each in reads if not each.truth.any()]
    diseased = [each for each in reads if each.truth.any()]

    def found(limits: tuple[float, int]) -> int:
        kinds = [each.findings(*limits)[0].values() for each in diseased]
        return sum(seen for of in kinds for _, seen in of)

    allowed = [
        limits
        for limits in product(THRESHOLDS, LEAST_VOXELS)
        if sum(each.findings(*limits)[1] for each in healthy) <= FALSE_PER_SCAN * len(healthy)
    ]
    return max(allowed, key=found, default=(THRESHOLDS[-1], LEAST_VOXELS[-1]))


def summary(reads: Sequence[Read], threshold: float, voxels: int, dataset: RawDataset) -> dict[str, object]:
    healthy = [each for each in reads if not each.truth.any()]
    diseased = [each for each in reads if each.truth.any()]
    names, counts = dict(enumerate((organ.name for organ in dataset.organs), start=1)), {}
    for each in diseased:
        for label, (number, found) in each.findings(threshold, voxels)[0].items():
            there, seen = counts.get(names[label], (0, 0))
            counts[names[label]] = (there + number, seen + found)
    tumours, seen = (sum(column) for column in zip(*counts.values(), strict=True))
    return {
        "threshold": threshold,
        "least voxels": voxels,
        "healthy scans": len(healthy),
        "false findings per healthy scan": sum(each.findings(threshold, voxels)[1] for each in healthy)
        / max(1, len(healthy)),
        "diseased scans": len(diseased),
        "tumours": tumours,
        "found": round(seen / tumours, 4),
        "tumours and found, by kind": dict(sorted(counts.items())),
        "mean dice of scans": round(float(np.mean([each.dice() for each in diseased])), 4),
        "dice of all voxels": round(pooled_dice(diseased), 4),
        "dice of all voxels, by the only kind in a scan": {
            name: round(pooled_dice(alone), 4)
            for label, name in names.items()
            if (alone := [each for each in diseased if set(np.unique(each.truth)) == {0, label}])
        },
    }


def pooled_dice(reads: Sequence[Read]) -> float:
    both = sum(int(((each.disease > 0.5) & (each.truth > 0)).sum()) for each in reads)
    sizes = sum(int((each.disease > 0.5).sum() + (each.truth > 0).sum()) for each in reads)
    return 2 * both / sizes


if __name__ == "__main__":
    main()
