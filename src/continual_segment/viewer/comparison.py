"""Two label maps of a case against each other: the scores of `evaluation`, organ by organ."""

from __future__ import annotations

from math import isfinite
from typing import Any

from continual_segment.evaluation.evaluate import score_case
from continual_segment.files import labels_on
from continual_segment.viewer.cases import ViewCase
from continual_segment.viewer.organ_table import OrganTable, with_names


def compare(case: ViewCase, reference: int, other: int) -> dict[str, Any]:
    """Dice and HD95 of the organs of the reference, by their number on the page; null where undefined."""
    read = [labels.read() for labels in case.labels]
    named = [with_names(labels) for labels in read]
    numbers = OrganTable.of(read, named).numbers
    truth, prediction = named[reference], named[other]
    rows = score_case(case.name, labels_on(prediction, truth.grid), truth)
    known = {row.organ: row for row in rows if row.organ in numbers}
    return {
        "organs": {
            numbers[name]: {"dice": _number(row.dice, 4), "hd95_mm": _number(row.hd95_mm, 2)}
            for name, row in known.items()
            if row.in_truth or row.prediction_ml > 0
        }
    }


def _number(value: float, digits: int) -> float | None:
    return round(value, digits) if isfinite(value) else None
