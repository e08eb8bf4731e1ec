"""Draw the curves over the steps from a stored results.json, as `conseg benchmark` draws them.

    python benchmarks/steps_figures.py RESULTS_JSON ORDER PICTURE

Those in docs/pictures: results/benchmark_143_first A and B (benchmark_143_first_steps.png, ..._B.png),
results/benchmark A (benchmark_steps.png). Those of results/benchmark_143 and results/open_kbp are
figures/steps_A.png of their benchmarks.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

from continual_segment.lab.benchmark.figures import Line, Panel, draw, line_of
from continual_segment.lab.benchmark.plan import Row, make_method

Step = dict[str, Any]
"""Scores of one method after one step."""


def panels_of(stored: dict[str, Any], order: str) -> list[Panel]:
    steps: dict[str, list[Step]] = {}
    for step in sorted(stored["steps"], key=lambda each: each["step"]):
        if step["order"] == order:
            steps.setdefault(step["method"], []).append(step)

    def panel(title: str, value: Callable[[Step], float | None]) -> Panel:
        return Panel(title, {name: [percent(value(step)) for step in found] for name, found in steps.items()})

    def dice_of(dataset: str) -> Callable[[Step], float | None]:
        return lambda step: step["datasets"].get(dataset, {}).get("dice")

    return [
        panel("all organs learned", lambda step: step["dice_all_organs"]),
        *(panel(name, dice_of(name)) for name in stored["orders"][order][:-1]),
        panel("forgotten (%)", lambda step: step["mean_forgetting"]),
    ]


def percent(share: float | None) -> float:
    return nan if share is None else 100 * share


def line_by_name(row: str) -> Line:
    """Of a row of the tables: a method, and its view where it has several."""
    method_name, _, label = row.partition(", ")
    method = make_method(method_name)
    (view,) = (each for each in method.views if each.label == label)
    return line_of(Row(method_name, method, view))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    parser.add_argument("order")
    parser.add_argument("picture", type=Path)
    args = parser.parse_args()
    panels = panels_of(json.loads(args.results.read_text(encoding="utf-8")), args.order)
    args.picture.write_bytes(draw(panels, {name: line_by_name(name) for name in panels[0].values}))


if __name__ == "__main__":
    main()
