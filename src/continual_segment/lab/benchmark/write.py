"""Write what a benchmark found: results.json, tables, figures, and results.md with all of them."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any

from continual_segment.files.atomic import write_bytes, write_json, write_text
from continual_segment.lab.benchmark.figures import make_figures
from continual_segment.lab.benchmark.paths import BenchmarkPaths
from continual_segment.lab.benchmark.results import Results
from continual_segment.lab.benchmark.tables import make_tables


def write_results(paths: BenchmarkPaths) -> Path:
    """Write all there is so far; return the path of results.md."""
    results, folder = Results(paths), paths.report
    tables = list(make_tables(results))  # first: raises on results that cannot be compared
    write_json(folder / "results.json", without_nan(results.as_data()))
    text = ["# Benchmark", "", *introduction(results), ""]
    for table in tables:
        write_text(folder / "tables" / f"{table.name}.md", table.markdown())
        write_text(folder / "tables" / f"{table.name}.csv", table.csv())
        text.append(table.markdown())
    for name, picture in make_figures(results):
        write_bytes(folder / "figures" / f"{name}.png", picture)
        text += [f"![{name}](figures/{name}.png)", ""]
    path = folder / "results.md"
    write_text(path, "\n".join(text))
    return path


def introduction(results: Results) -> list[str]:
    plan = results.plan
    lines = [f"Order {order}: {' → '.join(names)}." for order, names in plan.orders.items()]
    lines.append(
        f"Budgets: {plan.budgets}. A cell reads ours (the paper's). Dice in percent, distances in mm."
    )
    if plan.split == "validation":
        lines.append(
            "Scans of the validation split, to choose settings of one method by. Small decoders are chosen "
            "by them, so they do not compare methods."
        )
    if plan.clean_up:
        lines.append("Islands were removed from the label maps of every method before they were scored.")
    same = results.order_changes_nothing()
    if same is not None:
        lines.append(f"Our packs are {'' if same else 'NOT '}the same to the bit in all orders.")
    return lines


def without_nan(data: Any) -> Any:
    """JSON has no nan: null instead."""
    if isinstance(data, dict):
        return {key: without_nan(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [without_nan(value) for value in data]
    return None if isinstance(data, float) and not isfinite(data) else data
