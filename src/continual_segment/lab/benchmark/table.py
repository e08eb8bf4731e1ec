"""Table: rows of text, and cells that show the paper's number beside the measured one.

A cell reads `measured (paper's)`; of several seeds, `mean ± standard deviation (paper's)`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from math import isnan
from statistics import fmean, stdev
from typing import Any

from continual_segment.evaluation.scores import Evaluation
from continual_segment.lab.benchmark.paths import folder_name
from continual_segment.lab.benchmark.plan import make_orders

METRICS = (("dice", 100.0, 1), ("hd95_mm", 1.0, 1), ("asd_mm", 1.0, 2))
METRIC_NAMES = ("DSC", "HD95", "ASD")


@dataclass(frozen=True)
class Table:
    """Rows of text under a title."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    note: str = ""

    def markdown(self) -> str:
        lines = [f"### {self.title}", ""]
        lines += [self._line(self.columns), self._line(["---"] * len(self.columns))]
        lines += [self._line(row) for row in self.rows]
        return "\n".join([*lines, *(["", self.note] if self.note else []), ""])

    def csv(self) -> str:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([self.columns, *self.rows])
        return text.getvalue()

    def noted(self, note: str) -> Table:
        """The same with a further note."""
        return replace(self, note=f"{self.note} {note}".strip())

    def of_method(self, method: str) -> Table:
        """The same with the method in its name, for a second method with such a table."""
        return replace(self, name=f"{self.name}_{folder_name(method)}", title=f"{self.title}, {method}")

    @staticmethod
    def _line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"


@cache
def paper() -> dict[str, Any]:
    """What the paper prints."""
    return json.loads((files("continual_segment") / "lab" / "benchmark" / "paper.json").read_text())


def printed(*keys: str) -> Any:
    """An entry of the paper's numbers, or None."""
    found: Any = paper()
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def papers_order(learned: Sequence[str]) -> str:
    """The paper's order that starts with these datasets; empty where none does.

    The scores of a network, and the mean over all organs, depend on every dataset learned so far.
    """
    orders = make_orders(printed("datasets"), ("A", "B"))
    return next((order for order, names in orders.items() if names[: len(learned)] == tuple(learned)), "")


def cell(value: float | Sequence[float] | None, digits: int, papers: float | None = None) -> str:
    """Of one value, or of one for each seed; values that are not numbers are left out."""
    values = [value] if isinstance(value, float | int) else value or ()
    numbers = [each for each in values if not isnan(each)]
    own = f"{fmean(numbers):z.{digits}f}" if numbers else "-"
    if len(numbers) > 1:
        own += f" ± {stdev(numbers):.{digits}f}"
    return own if papers is None else f"{own} ({papers:.{digits}f})"


def scores_of(found: Sequence[Evaluation], papers: Sequence[float] | None) -> list[str]:
    """Cells of all metrics; `found` has an evaluation for each seed."""
    beside = papers or (None,) * len(METRICS)
    return [
        cell([getattr(each.mean, metric) * factor for each in found], digits, theirs)
        for (metric, factor, digits), theirs in zip(METRICS, beside, strict=True)
    ]
