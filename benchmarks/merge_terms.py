"""Merge rules on stored predictions: each rule, each term of `weighted` removed, each pack alone.

    python benchmarks/merge_terms.py MODEL NAME=PREPARED=RAW ... --out OUT [--more NAME=RAW ...]

NAME is a pack of MODEL, PREPARED and RAW are the dataset it was learned from. The networks run once per scan
of the validation and test splits; what packs predict is stored in OUT/predictions, and so a rule can be
changed without running them again. Scans of --more, which no pack was learned from, count as validation
scans. Packs that were not assessed when they were learned are assessed here, as a learning step does. Labels
are cleaned up as by `conseg segment`. The winner has the largest mean Dice over datasets on validation; of
rules within a tenth of a point, the one with the least misplaced volume. OUT gets assessments.json,
results.json and table.md. Labels are merged on the prepared voxels; --own-grids is for scans of another
spacing: nothing but scores is stored then, and labels are those that `conseg segment` writes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from merging import EQUAL, Dataset, dices, mean_over_organs, misplaced

from continual_segment.config import load_preset
from continual_segment.data.raw import RawDataset
from continual_segment.files import write_json, write_text
from continual_segment.learning.assess import AssessConfig, assess
from continual_segment.learning.train_decoder import FrozenStep, PatchSource
from continual_segment.model import Model
from continual_segment.model.assessment import Assessment, assessment_from_json
from continual_segment.organs import canonical_name
from continual_segment.segmentation import ScanContext, SegmentConfig, Segmenter
from continual_segment.segmentation.domain import describe_scan
from continual_segment.segmentation.merge import RuleName
from continual_segment.segmentation.nested import merge_predictions
from continual_segment.segmentation.predictions import PackPrediction
from continual_segment.segmentation.prepared_scan import prepare_for_windows
from continual_segment.segmentation.segmenter import LabelRule
from continual_segment.segmentation.slab import Slab
from continual_segment.segmentation.weighted import WeightedVote
from continual_segment.volume import LabelMap

COMPARED: tuple[RuleName, ...] = ("ensemble", "literal", "consensus", "weighted")
TERMS = ("coverage", "reliability", "familiarity", "health")
LEAST_VOXELS = 100
"""Of an organ that is scored in a scan: the Dice of a corner of one is chance."""
PRESENT = 0.1
"""Voxels where no pack finds an organ as probable as this are background by every rule compared here."""
ALONE = "own pack alone"


@dataclass(frozen=True)
class ScanToMerge:
    """One scan of one dataset."""

    split: str
    dataset: str
    raw: RawDataset
    case: str
    folder: Path
    """Of stored predictions."""

    @property
    def path(self) -> Path:
        return self.folder / f"{self.split}_{self.dataset}_{self.case}.npz"

    @property
    def merged(self) -> Path:
        """Scores of the scan; delete them all if a rule has changed."""
        return self.path.with_suffix(".json")

    def read(self) -> tuple[Any, LabelMap]:
        return self.raw.read(next(case for case in self.raw.cases if case.name == self.case))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("datasets", nargs="+", metavar="NAME=PREPARED=RAW", type=Dataset.of)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--more", nargs="*", default=[], metavar="NAME=RAW", help="more validation scans")
    parser.add_argument("--only", choices=("validation", "test"), help="one split, in another process")
    parser.add_argument("--preset", default="demo", help="for the overlap of windows")
    parser.add_argument("--own-grids", action="store_true", help="labels on the grids of the scans")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, preset = Model.open(args.model), load_preset(args.preset)
    names = [dataset.name for dataset in args.datasets]
    config = SegmentConfig(progress=False, overlap=preset.segment.overlap)
    segmenter = Segmenter(model, packs=names, config=config)
    known = assessments(model, args.datasets, preset, args.out / "assessments.json")
    for pack in segmenter.packs:
        name = pack.profile.name
        pack.profile = pack.profile.with_assessment(known[name], segmenter.organs_of_pack[name])
    folder = args.out / "predictions"
    scans = [s for s in all_scans(args.datasets, args.more, folder) if args.only in (None, s.split)]
    for scan in scans:
        scan.path.parent.mkdir(parents=True, exist_ok=True)
        if not (scan.path.exists() or args.own_grids):
            np.savez(scan.path, **predicted(segmenter, scan))
    datasets = {dataset.name: dataset for dataset in args.datasets}
    found = {}
    for scan in scans:
        if not scan.merged.exists():
            merge = merged_on_own_grid if args.own_grids else merged
            write_json(scan.merged, merge(segmenter, scan, datasets[scan.dataset]))
        found[f"{scan.split}/{scan.dataset}/{scan.path.relative_to(folder)}"] = json.loads(
            scan.merged.read_text()
        )
    if args.only:
        return
    results = {"scans": found, "summary": {split: summary(found, split) for split in ("validation", "test")}}
    write_json(args.out / "results.json", results | {"winner": winner(results["summary"]["validation"])})
    text = table(results["summary"], winner(results["summary"]["validation"]))
    write_text(args.out / "table.md", text)
    print(text)


def all_scans(datasets: Sequence[Dataset], more: Sequence[str], folder: Path) -> Iterator[ScanToMerge]:
    for dataset in datasets:
        for split in ("validation", "test"):
            for case in dataset.prepared.case_names(split):
                yield ScanToMerge(split, dataset.name, dataset.raw, case, folder)
    for text in more:
        name, path = text.split("=")
        raw = RawDataset.open(Path(path), check=False, progress=False)
        for case in raw.cases:
            yield ScanToMerge("validation", name, raw, case.name, folder / "more")


def assessments(
    model: Model, datasets: Sequence[Dataset], preset: Any, path: Path
) -> dict[str, Assessment | None]:
    """Of all packs, stored or read."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        known = {dataset.name: asdict(assessment_of(model, dataset, preset)) for dataset in datasets}
        write_json(path, known)
    return {name: assessment_from_json(each) for name, each in json.loads(path.read_text()).items()}


def assessment_of(model: Model, dataset: Dataset, preset: Any) -> Assessment:
    """The pack's own, or as its learning step would have measured it."""
    pack, prepared = model.pack(dataset.name), dataset.prepared.learnable()
    if pack.assessment:
        return pack.assessment
    source = PatchSource(prepared, preset.patches.of_later_step(model.window), preset.augment)
    step = FrozenStep(model.load_encoder().freeze(), source, preset.later, Path(), dataset.name)
    found = assess(step, pack.decoder(), AssessConfig())
    assert found is not None
    return found


def predicted(segmenter: Segmenter, scan: ScanToMerge) -> dict[str, np.ndarray]:
    """Probabilities (class, voxel) of all packs where one finds an organ, body parts, and the description."""
    volume, _ = scan.read()
    prepared = prepare_for_windows(volume, segmenter.prepare, segmenter.window)
    assert prepared.shape == volume.grid.shape, "labels are merged on the prepared voxels"
    found: list[list[np.ndarray]] = []
    indices = []

    def keep(slab: Slab, *_: object) -> None:
        for z in range(slab.shape[0]):
            predictions = slab._predict(slice(z, z + 1), slice(None))
            organ = torch.stack([each.score[0] for each in predictions]).amax(dim=0)
            inside = np.argwhere(organ.numpy() >= PRESENT)
            first = [slab.slices.start + z, *(part.indices(10**9)[0] for part in slab.box)]
            indices.append(np.column_stack([np.zeros(len(inside), int), inside]) + first)
            values = [each.probabilities[:, 0, *inside.T].half().numpy() for each in predictions]
            found.append(values)

    segmenter.merge_slab = keep  # type: ignore[method-assign]
    context = prepared.context(None, segmenter.regressor)
    segmenter._run(prepared, context, [], None, scan.case)
    packs = [np.concatenate(each, axis=1) for each in zip(*found, strict=True)]
    described = describe_scan(prepared.padded, segmenter.encode, torch.device("cpu"))
    parts = {} if context.body_part is None else {"body_part": context.body_part.flatten().numpy()}
    names = [f"pack {pack.profile.name}" for pack in segmenter.packs]
    return (
        {"index": np.concatenate(indices), "description": described}
        | parts
        | dict(zip(names, packs, strict=True))
    )


def rules(segmenter: Segmenter, dataset: str) -> dict[str, LabelRule]:
    every: dict[str, LabelRule] = {name: segmenter.merge_rule(name) for name in COMPARED}
    changed = {f"weighted, no {term}": WeightedVote(**{term: False}) for term in TERMS}
    changed["weighted, calibrated"] = WeightedVote(calibration=True)
    for name, vote in changed.items():
        merge = partial(merge_predictions, vote, nesting=segmenter.nesting)
        every[name] = replace(every["weighted"], merge=merge)
    return every | {ALONE: segmenter.single_pack_rule(dataset)}


def merged(segmenter: Segmenter, scan: ScanToMerge, dataset: Dataset) -> dict[str, Any]:
    """Dice per organ and misplaced voxels by every rule."""
    stored = np.load(scan.path)
    _, truth = scan.read()
    index = tuple(stored["index"].T)
    predictions = [
        PackPrediction(
            pack.profile,
            pack.organ_ids,
            torch.from_numpy(stored[f"pack {pack.profile.name}"].astype(np.float32))[:, None, None],
        )
        for pack in segmenter.packs
    ]
    part = torch.from_numpy(stored["body_part"][index[0]])[None, None] if "body_part" in stored else None
    assert segmenter._domains is not None
    familiar = segmenter._domains.familiarity(stored["description"])
    context = ScanContext(part, familiar=familiar)
    names = {organ.id: organ.name for organ in segmenter.organs}
    by_name = {pack.profile.name: round(familiar[pack.profile.fingerprint], 4) for pack in segmenter.packs}
    found: dict[str, Any] = {"familiar": by_name}
    for name, rule in rules(segmenter, scan.dataset).items():
        voxels = np.zeros(truth.grid.shape, np.uint16)
        voxels[index] = rule.merge(predictions, context).organ.flatten().numpy()
        labels = LabelMap(voxels, truth.grid, names)
        rule.remove_islands(labels)
        found[name] = scored(segmenter, scan, dataset, name, labels, truth)
    return found


def merged_on_own_grid(segmenter: Segmenter, scan: ScanToMerge, dataset: Dataset) -> dict[str, Any]:
    """The same of labels on the scan's grid, from one run of the networks."""
    volume, truth = scan.read()
    found = segmenter.compare_rules(volume, rules(segmenter, scan.dataset), title=scan.case)
    return {name: scored(segmenter, scan, dataset, name, each.labels, truth) for name, each in found.items()}


def scored(
    segmenter: Segmenter, scan: ScanToMerge, dataset: Dataset, rule: str, labels: LabelMap, truth: LabelMap
) -> dict[str, Any]:
    counts = np.bincount(truth.voxels.ravel(), minlength=max(truth.names) + 1)
    large = {canonical_name(name) for label, name in truth.names.items() if counts[label] >= LEAST_VOXELS}
    parts = replace(dataset, raw=scan.raw).parts_of(scan.case, truth.grid.shape[0])
    reach = f"only {scan.dataset}" if rule == ALONE else rule
    return {
        "dice": {organ: dice for organ, dice in dices(scan.case, labels, truth) if organ in large},
        "misplaced": misplaced(segmenter, labels, parts, reach),
    }


def summary(found: dict[str, Any], split: str) -> dict[str, Any]:
    """Per rule the mean Dice of every dataset, organ means first, and the misplaced voxels of all scans."""
    chosen = {key: value for key, value in found.items() if key.startswith(f"{split}/")}
    datasets = sorted({key.split("/")[1] for key in chosen})
    rows: dict[str, Any] = {"scans": {name: sum(f"/{name}/" in key for key in chosen) for name in datasets}}
    for rule in (key for key in next(iter(chosen.values())) if key != "familiar"):
        rows[rule] = {
            name: mean_over_organs([v[rule]["dice"] for k, v in chosen.items() if k.split("/")[1] == name])
            for name in datasets
        } | {"misplaced": sum(value[rule]["misplaced"] for value in chosen.values())}
    return rows


def mean_of(row: dict[str, float]) -> float:
    return float(np.mean([value for name, value in row.items() if name != "misplaced"]))


def winner(validation: dict[str, Any]) -> str:
    means = {rule: mean_of(validation[rule]) for rule in COMPARED}
    equal = [rule for rule in COMPARED if means[rule] > max(means.values()) - EQUAL]
    return min(equal, key=lambda rule: validation[rule]["misplaced"])


def table(splits: dict[str, Any], chosen: str) -> str:
    lines = []
    for split, rows in splits.items():
        names = list(rows["scans"])
        counts = ", ".join(f"{count} {name}" for name, count in rows["scans"].items())
        lines += [f"{split}: {counts}", "", f"| rule | {' | '.join(names)} | mean | misplaced |"]
        lines += ["|---" * (len(names) + 3) + "|"]
        for rule, row in rows.items():
            if rule != "scans":
                cells = [f"{row[name]:.4f}" for name in names] + [f"{mean_of(row):.4f}"]
                lines.append(f"| {rule} | {' | '.join(cells)} | {row['misplaced']} |")
        lines.append("")
    return "\n".join([*lines, f"Winner on validation: {chosen}", ""])


if __name__ == "__main__":
    main()
