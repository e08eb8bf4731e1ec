"""Curves over the steps, as PNG bytes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import partial
from math import nan

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from continual_segment.lab.benchmark.results import Results


def make_figures(results: Results) -> Iterator[tuple[str, bytes]]:
    """Name and picture of every figure there is data for."""
    for order in results.plan.orders:
        if any(results.steps(order, method) > 1 for method in results.methods):
            yield f"steps_{order}", steps_png(results, order)


def steps_png(results: Results, order: str) -> bytes:
    """Dice after every step: of all organs, and of each dataset; and forgetting."""
    names = results.plan.orders[order]
    panels: list[tuple[str, Callable[[str, int], float]]] = [
        ("all organs learned", partial(all_dice, results, order)),
        *((name, partial(dataset_dice, results, order, name)) for name in names[:-1]),
        ("forgotten (%)", partial(forgotten, results, order)),
    ]
    figure = Figure(figsize=(3.1 * len(panels), 3.4), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, (title, value) in zip(axes, panels, strict=True):
        draw(axis, results, order, value)
        axis.set(title=title, xlabel="step", xticks=range(1, len(names) + 1))
    axes[0].set_ylabel("Dice (%)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=110)
    return picture.getvalue()


def draw(axis: Axes, results: Results, order: str, value: Callable[[str, int], float]) -> None:
    for number, method in enumerate(results.methods):
        steps = range(1, results.steps(order, method) + 1)
        row = results.plan.rows[method]
        thick = 2.5 if row.method.keeps == "one pack per dataset" else 1.2
        style = "--" if row.view.label else ("-", "--", ":")[number // 10 % 3]
        axis.plot(steps, [value(method, step) for step in steps], style, marker="o", markersize=3,
                  linewidth=thick, color=f"C{number % 10}", label=method)  # fmt: skip
    axis.grid(alpha=0.3)


def all_dice(results: Results, order: str, method: str, step: int) -> float:
    return 100 * results.all(results.after(order, method, step)).all_organs


def dataset_dice(results: Results, order: str, name: str, method: str, step: int) -> float:
    found = results.after(order, method, step)
    return 100 * found[name].mean.dice if name in found else nan


def forgotten(results: Results, order: str, method: str, step: int) -> float:
    lost = [each for each in results.forgetting(order, method) if each.step == step]
    return 100 * lost[0].mean_relative if lost else nan
