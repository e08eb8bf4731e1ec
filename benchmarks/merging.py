"""The paper's Table 4: every merge rule against each pack alone, and what each ingredient adds.

    python benchmarks/merging.py MODEL NAME=PREPARED=RAW ... --out OUT [--regressor FILE] [--cases N]

NAME is a pack of MODEL, PREPARED and RAW are the phantom dataset it was learned from. Each scan of the
validation and test splits passes the networks once; every rule merges the same answers, and each label map is
scored on the dataset's own layer. Packs without coverage get it measured here, with the model's regressor or
that of --regressor. The rule with the largest mean Dice over the datasets' validation scans is the winner; of
rules within a tenth of a point, the one with the least volume where no pack covers its organ.
OUT gets results.json after every scan and goes on from there when stopped.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from continual_segment.body_parts import BodyPartRegressor, measure_coverage
from continual_segment.data.prepared import PreparedDataset
from continual_segment.data.raw import RawDataset
from continual_segment.evaluation.evaluate import score_case
from continual_segment.files import write_json
from continual_segment.malloc import keep_freed_memory
from continual_segment.model import Model
from continual_segment.organs import BODY_PARTS
from continual_segment.segmentation import ScanContext, SegmentConfig, Segmenter
from continual_segment.segmentation.merge import RULES, MergeRule
from continual_segment.segmentation.nested import Nesting, merge_predictions
from continual_segment.segmentation.predictions import Decision, PackPrediction
from continual_segment.volume import LabelMap

ABLATED = "consensus"
"""The rule whose ingredients are taken away one by one."""
SPLITS = ("validation", "test")
EQUAL = 0.001
"""Dice that a few scans cannot tell from nothing."""


@dataclass(frozen=True)
class Dataset:
    """What one pack was learned from."""

    name: str
    prepared: PreparedDataset
    raw: RawDataset

    @classmethod
    def of(cls, text: str) -> Dataset:
        name, prepared, raw = text.split("=")
        opened = RawDataset.open(Path(raw), check=False, progress=False)
        return cls(name, PreparedDataset.open(Path(prepared)), opened)

    def parts_of(self, case: str, slices: int) -> np.ndarray:
        """The true body part of every slice of a phantom; -1 where there is no such file."""
        path = self.raw.folder / "body_parts" / f"{case}.json"
        parts = np.full(slices, -1)
        if path.exists():
            for part, (first, end) in json.loads(path.read_text())["slices"].items():
                parts[first:end] = BODY_PARTS.index(part)
        return parts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("datasets", nargs="+", metavar="NAME=PREPARED=RAW", type=Dataset.of)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--regressor", type=Path)
    parser.add_argument("--cases", type=int, help="of each split of each dataset, at most")
    parser.add_argument("--overlap", type=float, default=0.25)
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    model = Model.open(args.model)
    config = SegmentConfig(progress=False, overlap=args.overlap, keep_islands=True)
    segmenter = Segmenter(model, packs=[dataset.name for dataset in args.datasets], config=config)
    if args.regressor:
        segmenter.regressor = BodyPartRegressor.read(args.regressor)
    cover(segmenter, args.datasets)
    path = args.out / "results.json"
    args.out.mkdir(parents=True, exist_ok=True)
    found = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    found["coverage"] = {pack.profile.name: dict(pack.profile.coverage) for pack in segmenter.packs}
    for split in SPLITS:
        for dataset in args.datasets:
            for case in dataset.prepared.case_names(split)[: args.cases]:
                key = f"{split}/{dataset.name}/{case}"
                if key not in found["cases"]:
                    found["cases"][key] = measured(segmenter, dataset, case)
                    write_json(path, found)
    found["summary"] = {split: summary(found["cases"], split) for split in SPLITS}
    found["winner"] = winner(found["summary"]["validation"])
    write_json(path, found)
    print(table(found))


def cover(segmenter: Segmenter, datasets: Sequence[Dataset]) -> None:
    """Measure the coverage of packs that lack it."""
    prepared = {dataset.name: dataset.prepared for dataset in datasets}
    for pack in segmenter.packs:
        if not pack.profile.coverage:
            known = measure_coverage(prepared[pack.profile.name], segmenter.regressor)
            pack.profile = replace(pack.profile, coverage=known.coverage, distribution=known.distribution)
            print(f"{pack.profile.name}: {known}", flush=True)


def rules(segmenter: Segmenter) -> dict[str, MergeRule]:
    """Every way to merge that is compared, by name."""
    nesting = segmenter.nesting
    whole: dict[str, MergeRule] = {
        name: partial(merge_predictions, rule, nesting=nesting) for name, rule in RULES.items()
    }
    rule = RULES[ABLATED]
    whole[f"{ABLATED}, no body part"] = partial(merge_predictions, without_body_part(rule), nesting=nesting)
    whole[f"{ABLATED}, no awareness"] = partial(
        merge_predictions, with_profiles(rule, anomaly_aware=False), nesting=nesting
    )
    whole[f"{ABLATED}, not nested"] = partial(merge_predictions, rule, nesting=Nesting({}))
    return whole | {
        f"only {pack.profile.name}": segmenter.single_pack_rule(pack.profile.name) for pack in segmenter.packs
    }


def without_body_part(rule: MergeRule) -> MergeRule:
    """The rule without the body parts of the slices."""

    def changed(predictions: Sequence[PackPrediction], context: ScanContext) -> Decision:
        return rule(predictions, replace(context, body_part=None))

    return changed


def with_profiles(rule: MergeRule, **settings: Any) -> MergeRule:
    """The rule with other profiles of the packs."""

    def changed(predictions: Sequence[PackPrediction], context: ScanContext) -> Decision:
        others = [replace(each, profile=replace(each.profile, **settings)) for each in predictions]
        return rule(others, context)

    return changed


def measured(segmenter: Segmenter, dataset: Dataset, name: str) -> dict[str, Any]:
    """Dice per organ by every rule, misplaced volumes, and what skipping saves on one scan."""
    case = next(case for case in dataset.raw.cases if case.name == name)
    scan, truth = dataset.raw.read(case)
    merges = rules(segmenter)
    covers = [pack.covers for pack in segmenter.packs]
    for pack in segmenter.packs:
        pack.covers = lambda body_part, below: True  # type: ignore[method-assign]
    started = time.process_time()
    segmenter(scan)
    everywhere = time.process_time() - started
    maps = {rule: found.labels for rule, found in segmenter.compare_rules(scan, merges).items()}
    for pack, old in zip(segmenter.packs, covers, strict=True):
        pack.covers = old  # type: ignore[method-assign]
    started = time.process_time()
    skipped = segmenter(scan).labels
    seconds = time.process_time() - started
    parts = dataset.parts_of(name, scan.grid.shape[0])
    return {
        "dice": {rule: dict(dices(name, labels, truth)) for rule, labels in maps.items()},
        "misplaced": {rule: misplaced(segmenter, labels, parts, rule) for rule, labels in maps.items()},
        "seconds": {"everywhere": round(everywhere, 3), "skipping": round(seconds, 3)},
        "unchanged": float((skipped.voxels == maps[segmenter.config.merge].voxels).mean()),
        "voxels": int(skipped.voxels.size),
    }


def dices(name: str, labels: LabelMap, truth: LabelMap) -> Iterator[tuple[str, float]]:
    for row in score_case(name, labels, truth):
        if row.in_truth:
            yield row.organ, round(float(row.dice), 5)


def misplaced(segmenter: Segmenter, labels: LabelMap, parts: np.ndarray, rule: str) -> int:
    """Voxels of organs in body parts that no pack which knows them covers; `only` asks that pack alone."""
    allowed: dict[int, set[int]] = {}
    for pack in segmenter.packs:
        if rule in (f"only {pack.profile.name}", *RULES) or not rule.startswith("only"):
            reach = {index for index, value in enumerate(pack.profile.relative_coverage) if value > 0}
            for organ in pack.organ_ids.tolist()[1:]:
                allowed.setdefault(organ, set()).update(reach)
    wrong = 0
    for part in range(len(BODY_PARTS)):
        organs, counts = np.unique(labels.voxels[parts == part], return_counts=True)
        pairs = zip(organs.tolist(), counts.tolist(), strict=True)
        wrong += sum(count for organ, count in pairs if organ and part not in allowed.get(organ, {part}))
    return wrong


def summary(cases: dict[str, Any], split: str) -> dict[str, Any]:
    """Per rule: mean Dice of every dataset (organ means first), misplaced voxels; of skipping, its effect."""
    chosen = {key: value for key, value in cases.items() if key.startswith(f"{split}/")}
    names = sorted({key.split("/")[1] for key in chosen})
    rules_seen = list(next(iter(chosen.values()))["dice"])
    result: dict[str, Any] = {"dice": {}, "misplaced": {}}
    for rule in rules_seen:
        result["dice"][rule] = {
            name: mean_over_organs([v["dice"][rule] for k, v in chosen.items() if k.split("/")[1] == name])
            for name in names
        }
        result["misplaced"][rule] = sum(value["misplaced"][rule] for value in chosen.values())
    seconds = {
        kind: round(sum(value["seconds"][kind] for value in chosen.values()), 2)
        for kind in ("everywhere", "skipping")
    }
    voxels = sum(value["voxels"] for value in chosen.values())
    same = sum(value["unchanged"] * value["voxels"] for value in chosen.values()) / voxels
    return result | {"seconds": seconds, "unchanged": same, "cases": len(chosen)}


def mean_over_organs(cases: Sequence[dict[str, float]]) -> float:
    organs = sorted({organ for case in cases for organ in case})
    return round(
        float(np.mean([np.mean([case[organ] for case in cases if organ in case]) for organ in organs])), 4
    )


def winner(validation: dict[str, Any]) -> str:
    """The largest mean Dice; between rules that differ by less than EQUAL, the least misplaced volume."""
    means = {rule: float(np.mean(list(validation["dice"][rule].values()))) for rule in RULES}
    equal = [rule for rule in RULES if means[rule] > max(means.values()) - EQUAL]
    return min(equal, key=lambda rule: validation["misplaced"][rule])


def table(found: dict[str, Any]) -> str:
    """Both splits as Markdown."""
    lines = []
    for split in SPLITS:
        part = found["summary"][split]
        names = sorted(next(iter(part["dice"].values())))
        lines += [f"\n{split}: {part['cases']} scans; unchanged by skipping {part['unchanged']:.5f}; "
                  f"seconds {part['seconds']}", "| rule | " + " | ".join(names) + " | mean | misplaced |",
                  "|---" * (len(names) + 3) + "|"]  # fmt: skip
        alone = {name: part["dice"][f"only {name}"][name] for name in names}
        for rule, row in {"own pack alone": alone, **part["dice"]}.items():
            if not rule.startswith("only"):
                cells = [f"{row[name]:.4f}" for name in names] + [f"{np.mean(list(row.values())):.4f}"]
                wrong = part["misplaced"].get(rule)
                if wrong is None:
                    wrong = sum(part["misplaced"][f"only {name}"] for name in names)
                lines.append(f"| {rule} | {' | '.join(cells)} | {wrong} |")
    return "\n".join([*lines, f"\nwinner on validation scans: {found['winner']}"])


if __name__ == "__main__":
    main()
