"""Score predictions against a dataset's truth, all cases and organs.

Organs are matched by name, never by number: a prediction numbers organs as the model does, a dataset as it
likes. The truth decides what is scored. Organs that only the model knows are left alone, for a scan full of
correct livers must not count against a dataset that labels kidneys. Only where one is part of an organ that
the truth does name, such as the arch of the aorta, it counts as that: a dataset is scored on its own layer.

In:  a folder of label maps, a raw dataset or folder of label maps, the split to score
Out: Evaluation
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from continual_segment.data.check import place_tolerance_mm
from continual_segment.errors import DatasetError
from continual_segment.evaluation.label_source import LabelSource, Pair, open_labels, pair_cases
from continual_segment.evaluation.scores import Evaluation, ScoreRow
from continual_segment.evaluation.splits import ScoredSplit, choose_splits, none_scored
from continual_segment.metrics import score_labels
from continual_segment.names import some_of
from continual_segment.organs import canonical_name, wholes_of
from continual_segment.processes import for_each
from continual_segment.volume import Grid, LabelMap

log = logging.getLogger(__name__)


def evaluate(
    predictions: str | Path,
    truth: str | Path,
    workers: int | None = None,
    organs: Sequence[str] | None = None,
    progress: bool = True,
    split: ScoredSplit | None = None,
    prepared: str | Path | None = None,
) -> Evaluation:
    """Score every case of a split that has both a prediction and a truth.

    `organs` narrows the truth's organs to these names. A case that cannot be scored becomes a sentence in
    `Evaluation.failures`; the others are scored. `workers` processes share the work, one per core by default.
    `prepared` is the folder of the dataset that was learned: its test cases are scored unless `split` names
    another split. Without it all cases are, with a warning of how many of them training uses.
    """
    predictions, truth = Path(predictions), Path(truth)
    predicted, true = open_labels(predictions), open_labels(truth)
    splits = choose_splits(truth, true.splits, split, Path(prepared) if prepared is not None else None)
    paired = pair_cases(predicted, true)
    if not paired:
        raise DatasetError(_nothing_in_common(predictions, predicted, truth, true))
    jobs = {pair.name: (pair,) for pair in paired if pair.name in splits}
    if not jobs:
        raise none_scored(truth, splits, [pair.name for pair in paired])
    if warning := splits.warning(jobs):
        log.warning("%s", warning)
    wanted = None if organs is None else tuple(map(canonical_name, organs))
    outcome = for_each(_score_pair, jobs, (predicted, true, wanted), workers, "Scoring", progress)
    rows = [row for scored in outcome.results.values() for row in scored]
    failures = [why if name in why else f"{name}: {why}" for name, why in outcome.failures.items()]
    if not rows and failures:
        raise DatasetError("No case could be scored:\n" + "\n".join(sorted(failures)))
    _check_organs(truth, true_organs={row.organ for row in rows}, wanted=wanted)
    return Evaluation.from_rows(
        rows,
        splits,
        without_prediction=sorted({name for name in true.case_names if name in splits} - jobs.keys()),
        without_truth=sorted(set(predicted.case_names) - {pair.predicted_as for pair in paired}),
        failures=sorted(failures),
    )


def score_case(
    case_name: str, prediction: LabelMap, truth: LabelMap, organs: Sequence[str] | None = None
) -> list[ScoreRow]:
    """Score one case in memory: a row for every organ the truth names, or those of them in `organs`."""
    if not prediction.grid.same_place(truth.grid, place_tolerance_mm(truth.grid)):
        raise DatasetError(
            f"{case_name}: the prediction has another grid ({_describe(prediction.grid)}) than the truth "
            f"({_describe(truth.grid)}). Both need one grid: segment the scan that the truth was drawn on."
        )
    names = {canonical_name(name) for name in truth.names.values()} - {""}
    if organs is not None:
        names &= {canonical_name(name) for name in organs}
    numbers = {name: number for number, name in enumerate(sorted(names), start=1)}
    scores = score_labels(
        _renumbered(case_name, "prediction", prediction, numbers),
        _renumbered(case_name, "truth", truth, numbers),
        list(numbers.values()),
        truth.grid.spacing_mm,
    )
    diagonal_mm = truth.grid.diagonal_mm
    return [ScoreRow.of(case_name, name, scores[number], diagonal_mm) for name, number in numbers.items()]


def _renumbered(case_name: str, role: str, labels: LabelMap, numbers: dict[str, int]) -> np.ndarray:
    """The map with organs numbered by name, parts of one as the whole, all others 0.

    A label without a name is refused.
    """
    present = np.flatnonzero(np.bincount(labels.voxels.ravel()))
    unnamed = [int(i) for i in present if i > 0 and not canonical_name(labels.names.get(int(i), ""))]
    if unnamed:
        raise DatasetError(
            f"{case_name}: the {role} holds labels without a name: {', '.join(map(str, unnamed[:5]))}. "
            "Name every label in the file's header or in dataset.json."
        )
    table = np.zeros(max(present.max(initial=0), *labels.names, 0) + 1, np.uint16)
    for label, name in labels.names.items():
        names = (canonical_name(name), *wholes_of(name))
        table[label] = next((numbers[each] for each in names if each in numbers), 0)
    return table[labels.voxels]


def _score_pair(
    pair: Pair, predicted: LabelSource, true: LabelSource, organs: Sequence[str] | None
) -> list[ScoreRow]:
    return score_case(pair.name, predicted.read(pair.predicted_as), true.read(pair.name), organs)


def _describe(grid: Grid) -> str:
    shape = " x ".join(map(str, grid.shape))
    spacing = " x ".join(f"{side:.3g}" for side in grid.spacing_mm)
    first = ", ".join(f"{place:.1f}" for place in grid.affine[:3, 3])
    return f"{shape} voxels of {spacing} mm from ({first})"


def _nothing_in_common(predictions: Path, predicted: LabelSource, truth: Path, true: LabelSource) -> str:
    return (
        f"No case of {predictions} ({_some(predicted)}) has a truth of the same name in {truth} "
        f"({_some(true)}). Name each prediction after its case, as in case_01.nii.gz."
    )


def _check_organs(truth: Path, true_organs: set[str], wanted: Sequence[str] | None) -> None:
    if not true_organs and wanted is None:
        raise DatasetError(f"{truth} labels no organ, so there is nothing to score. Check its dataset.json.")
    unknown = set(wanted or ()) - true_organs
    if unknown:
        raise DatasetError(
            f"{truth} does not label {', '.join(sorted(unknown))}. Check the names of the organs."
        )


def _some(source: LabelSource) -> str:
    return some_of(sorted(source.case_names), 3)
