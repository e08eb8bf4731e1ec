"""Clean-up by the pieces of organs: Dice, HD95 and ASD before and after, per organ, validation and test.

    python benchmarks/islands.py MODEL NAME=PREPARED=RAW ... --out OUT

NAME is a pack of MODEL, PREPARED and RAW are the dataset it was learned from. Packs without measured pieces
get them from the training split of PREPARED. Each scan of the validation and test splits is segmented by all
packs once; clean-up by each of the settings then starts from the same labels. The setting is chosen on
validation: of those by which no organ loses more than 0.2 points of Dice there, the one with the lowest mean
HD95. Seconds are CPU time of one thread. OUT gets results.json after every scan, by which a run that was
stopped resumes, and table.md at the end.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from merging import Dataset

from continual_segment.evaluation.evaluate import score_case
from continual_segment.files import write_json, write_text
from continual_segment.learning.measure_pieces import measure_pieces
from continual_segment.model import Model
from continual_segment.segmentation import SegmentConfig, Segmenter
from continual_segment.segmentation.clean_up import CleanUpConfig, IslandRemover, remove_islands
from continual_segment.volume import LabelMap

SPLITS = ("validation", "test")
BEFORE = "before"
UNLIMITED = math.inf
SETTINGS = {
    "largest alone": CleanUpConfig(broken=math.inf),
    **{f"broken {share:g}": CleanUpConfig(broken=share, reach=UNLIMITED) for share in (0.5, 0.3, 0.2, 0.1)},
    **{
        f"broken {share:g}, reach {reach:g}": CleanUpConfig(broken=share, reach=reach)
        for share in (0.2, 0.1, 0.05)
        for reach in (1.5, 1.25, 1.0)
    },
}
DEFAULT = "broken 0.2, reach 1.25"
MOST_LOST = 0.002
"""Dice that an organ may lose on validation."""
MEASURES = ("dice", "hd95_penalised_mm", "asd_penalised_mm")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("datasets", nargs="+", metavar="NAME=PREPARED=RAW", type=Dataset.of)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    names = [dataset.name for dataset in args.datasets]
    config = SegmentConfig(progress=False, keep_islands=True)
    segmenter = Segmenter(Model.open(args.model), packs=names, config=config)
    remover = remover_of(segmenter, args.datasets)
    args.out.mkdir(parents=True, exist_ok=True)
    scans = scans_of(args.out / "results.json")
    done = {(scan["split"], scan["dataset"], scan["case"]) for scan in scans}
    for split, dataset in product(SPLITS, args.datasets):
        for case in dataset.prepared.case_names(split):
            if (split, dataset.name, case) not in done:
                scans.append(measured(segmenter, remover, dataset, split, case))
                write_json(args.out / "results.json", {"scans": scans})
    summary = {split: means([scan for scan in scans if scan["split"] == split]) for split in SPLITS}
    found = {
        "pieces": {str(organ): asdict(each) for organ, each in sorted(remover.known.items())},
        "chosen": chosen(summary["validation"]),
        "summary": summary,
        "scans": scans,
    }
    write_json(args.out / "results.json", found)
    write_text(args.out / "table.md", table(found))
    print(table(found))


def scans_of(results: Path) -> list[dict[str, Any]]:
    """Those that an earlier run measured."""
    return json.loads(results.read_text())["scans"] if results.exists() else []


def remover_of(segmenter: Segmenter, datasets: Sequence[Dataset]) -> IslandRemover:
    """By the pieces that packs store, or else as a learning step would measure them."""
    for dataset in datasets:
        if not segmenter.pieces_of_pack[dataset.name]:
            segmenter.pieces_of_pack[dataset.name] = measure_pieces(dataset.prepared)
    return IslandRemover.of(segmenter.measured_pieces, segmenter.organs, SegmentConfig())


def measured(
    segmenter: Segmenter, remover: IslandRemover, dataset: Dataset, split: str, name: str
) -> dict[str, Any]:
    """Scores of one scan before and after, what was removed, and the time of both."""
    case = next(case for case in dataset.raw.cases if case.name == name)
    scan, truth = dataset.raw.read(case)
    started = time.process_time()
    labels = segmenter(scan).labels
    seconds = {"segmenting": time.process_time() - started}
    scores, removed = {BEFORE: dict(scores_of(name, labels, truth))}, {}
    known = {labels.voxels.tobytes(): scores[BEFORE]}  # most settings leave the same labels
    for setting, config in SETTINGS.items():
        copy = LabelMap(labels.voxels.copy(), labels.grid, labels.names)
        started = time.process_time()
        cleaned = remove_islands(copy, remover.known, remover.nesting, config)
        seconds[setting] = time.process_time() - started
        key = copy.voxels.tobytes()
        if key not in known:
            known[key] = dict(scores_of(name, copy, truth))
        scores[setting] = known[key]
        removed[setting] = [asdict(each) for each in cleaned.islands]
    print(split, name, {what: round(value, 4) for what, value in seconds.items()}, flush=True)
    where = {"split": split, "dataset": dataset.name, "case": name}
    return where | {"seconds": seconds, "scores": scores, "removed": removed}


def scores_of(case: str, labels: LabelMap, truth: LabelMap) -> Iterator[tuple[str, list[float]]]:
    """Organs that the truth shows, with MEASURES."""
    for row in score_case(case, labels, truth):
        if row.in_truth:
            yield row.organ, [round(float(getattr(row, measure)), 5) for measure in MEASURES]


def means(scans: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Setting -> dataset and organ -> means of MEASURES over the scans that show the organ."""
    found: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    for scan in scans:
        for setting, organs in scan["scores"].items():
            for organ, values in organs.items():
                found[setting][f"{scan['dataset']} {organ}"].append(values)
    return {
        setting: {organ: np.mean(values, axis=0).round(5).tolist() for organ, values in organs.items()}
        for setting, organs in found.items()
    }


def chosen(validation: dict[str, dict[str, list[float]]]) -> str | None:
    """The setting with the lowest HD95 by which no organ loses much Dice; None if there is none."""
    before = validation[BEFORE]
    harmless = [
        setting
        for setting in SETTINGS
        if all(before[organ][0] - validation[setting][organ][0] <= MOST_LOST for organ in before)
    ]
    return min(harmless, key=lambda setting: mean_of(validation[setting])[1], default=None)


def mean_of(organs: dict[str, list[float]]) -> np.ndarray:
    """MEASURES over organs."""
    return np.mean(list(organs.values()), axis=0)


def table(found: dict[str, Any]) -> str:
    """Both splits as Markdown: Dice, HD95 and ASD in mm, before and after by the chosen setting."""
    lines = [f"Chosen on validation: {found['chosen']}.", ""]
    settings = [BEFORE, *SETTINGS]
    for split, summary in found["summary"].items():
        scans = [scan for scan in found["scans"] if scan["split"] == split]
        lines += [f"{split}, {len(scans)} scans", "", f"| dataset, organ | {' | '.join(settings)} |"]
        lines += ["|---" * (len(settings) + 1) + "|"]
        mean = {setting: mean_of(summary[setting]) for setting in settings}
        for organ in [*sorted(summary[BEFORE]), None]:
            cells = [mean[each] if organ is None else summary[each][organ] for each in settings]
            text = " | ".join("{:.4f} / {:.1f} / {:.1f}".format(*cell) for cell in cells)
            lines.append(f"| {organ or 'mean'} | {text} |")
        share = max(scan["seconds"][DEFAULT] / scan["seconds"]["segmenting"] for scan in scans)
        lines += ["", f"Clean-up took at most {share:.2%} of the time of segmenting.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
