"""Curves over the steps, as PNG bytes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, nan
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from continual_segment.lab.benchmark.plan import Row
from continual_segment.lab.benchmark.results import Results


def make_figures(results: Results) -> Iterator[tuple[str, bytes]]:
    """Name and picture of every figure there is data for."""
    for order in results.plan.orders:
        if any(results.steps(order, method) > 1 for method in results.methods):
            yield f"steps_{order}", steps_png(results, order)


@dataclass(frozen=True)
class Panel:
    """One diagram: a value of every method after every step, nan where there is none."""

    title: str
    values: dict[str, list[float]]


@dataclass(frozen=True)
class Line:
    """How the curve of a method is drawn."""

    thick: bool
    dashed: bool


def steps_png(results: Results, order: str) -> bytes:
    """Dice after every step: of all organs, and of each dataset; and forgetting."""
    names = results.plan.orders[order]
    measures: list[tuple[str, Callable[[str, int], float]]] = [
        ("all organs learned", partial(all_dice, results, order)),
        *((name, partial(dataset_dice, results, order, name)) for name in names[:-1]),
        ("forgotten (%)", partial(forgotten, results, order)),
    ]
    steps = {method: range(1, results.steps(order, method) + 1) for method in results.methods}
    panels = [
        Panel(title, {method: [value(method, step) for step in steps[method]] for method in steps})
        for title, value in measures
    ]
    return draw(panels, {name: line_of(row) for name, row in results.plan.rows.items()})


def line_of(row: Row) -> Line:
    return Line(thick=row.method.keeps == "one pack per dataset", dashed=bool(row.view.label))


def draw(panels: Sequence[Panel], lines: dict[str, Line]) -> bytes:
    """At most three panels side by side, so that their text is readable on a page; the legend comes last."""
    columns = min(3, len(panels))
    rows = ceil((len(panels) + 1) / columns)
    figure = Figure(figsize=(3.1 * columns, 2.9 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, panel in zip(axes, panels, strict=False):
        draw_panel(axis, panel, lines)
    for axis in axes[len(panels) :]:
        axis.axis("off")
    axes[0].set_ylabel("Dice (%)")
    handles, labels = axes[0].get_legend_handles_labels()
    axes[len(panels)].legend(handles, labels, loc="center left", fontsize=9, frameon=False)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    return picture.getvalue()


def draw_panel(axis: Axes, panel: Panel, lines: dict[str, Line]) -> None:
    for number, (method, values) in enumerate(panel.values.items()):
        line = lines[method]
        style = "--" if line.dashed else ("-", "--", ":")[number // 10 % 3]
        axis.plot(range(1, len(values) + 1), values, style, marker="o", markersize=3,
                  linewidth=2.5 if line.thick else 1.2, color=f"C{number % 10}", label=method)  # fmt: skip
    longest = max(map(len, panel.values.values()))
    axis.set(title=panel.title, xlabel="step", xticks=range(1, longest + 1))
    axis.grid(alpha=0.3)


def all_dice(results: Results, order: str, method: str, step: int) -> float:
    """The mean over seeds, as of the others."""
    seeds = results.seeds(order, method, step)
    return 100 * fmean(results.all(results.after(order, each, step)).all_organs for each in seeds)


def dataset_dice(results: Results, order: str, name: str, method: str, step: int) -> float:
    found = [results.after(order, each, step) for each in results.seeds(order, method, step)]
    return 100 * fmean(each[name].mean.dice for each in found) if name in found[0] else nan


def forgotten(results: Results, order: str, method: str, step: int) -> float:
    seeds = results.seeds(order, method, step)
    lost = [each for seed in seeds for each in results.forgetting(order, seed) if each.step == step]
    return 100 * fmean(each.mean_relative for each in lost) if lost else nan
