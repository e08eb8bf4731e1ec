"""Tables and figure of benchmarks/pack_budgets.py, from its results.json.

    python benchmarks/pack_budgets_report.py OUT OTHER ...

prints a table of several runs of it that differ in their seed alone.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure

Results = dict[str, Any]
COLUMNS = (
    "budget", "pack", "organs", "plan, deepest block first", "parameters", "multiply-adds",
    "validation: whole", "fitted", "trained", "test: whole", "small", "lost, points",
    "CPU s of shrinking / first training",
)  # fmt: skip
AXES = (
    "parameters, in decoders",
    "multiply-adds, in decoders",
    "CPU time of segment, per that of whole packs",
)


def line(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def table(results: Results) -> str:
    """Every pack at every budget, and the CPU time of segmenting."""
    lines = [line(*COLUMNS), "|---" * len(COLUMNS) + "|"]
    for key, budget in results["budgets"].items():
        rows = finished(results, budget)
        lines += [row(results, key, name, found) for name, found in rows.items()]
        if len(rows) == len(results["whole"]):
            lines += [sums(results, key, rows), organs_row(results, key, rows)]
    return "\n".join([*lines, *speed(results), *control(results)]) + "\n"


def finished(results: Results, budget: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The packs whose test split was segmented."""
    return {
        name: found for name, found in budget.items() if name in results["whole"] and "test_dice" in found
    }


def row(results: Results, key: str, name: str, found: dict[str, Any]) -> str:
    whole, fitted = results["whole"][name], found["validation_fitted"]
    test = whole["test_dice"], found["test_dice"]
    return line(
        key, name, whole["organs"], " ".join(found["plan"]),
        f"{found['parameters']:.3f}", f"{found['multiply_adds']:.3f}",
        f"{found['validation_whole']:.4f}", "" if fitted is None else f"{fitted:.4f}",
        f"{found['validation_trained']:.4f}",
        f"{test[0]:.4f}", f"{test[1]:.4f}", f"{100 * (test[0] - test[1]):.2f}",
        f"{results['fits'][name]['cpu_s'] + found['cpu_s']:.0f} / {whole['training_cpu_s']:.0f}",
    )  # fmt: skip


def sums(results: Results, key: str, rows: dict[str, dict[str, Any]]) -> str:
    """Sizes and seconds of all packs together, and their mean Dice."""
    whole, found = [results["whole"][name] for name in rows], list(rows.values())
    test = fmean(each["test_dice"] for each in whole), fmean(each["test_dice"] for each in found)
    shrinking = sum(results["fits"][name]["cpu_s"] + each["cpu_s"] for name, each in rows.items())
    return line(
        key, "all", "", "",
        f"{sum(each['parameters'] for each in found):.3f}",
        f"{sum(each['multiply_adds'] for each in found):.3f}",
        f"{fmean(each['validation_whole'] for each in found):.4f}", "",
        f"{fmean(each['validation_trained'] for each in found):.4f}",
        f"{test[0]:.4f}", f"{test[1]:.4f}", f"{100 * (test[0] - test[1]):.2f}",
        f"{shrinking:.0f} / {sum(each['training_cpu_s'] for each in whole):.0f}",
    )  # fmt: skip


def organs_row(results: Results, key: str, rows: dict[str, dict[str, Any]]) -> str:
    """Dice where every organ counts once, not every pack."""
    fields = ("validation_whole", "validation_trained", "test_dice")
    before, after, small = (
        over_organs(results, {name: row[field] for name, row in rows.items()}) for field in fields
    )
    whole = over_organs(results, {name: results["whole"][name]["test_dice"] for name in rows})
    organs = sum(results["whole"][name]["organs"] for name in rows)
    return line(
        key, "all organs", organs, "", "", "",
        f"{before:.4f}", "", f"{after:.4f}", f"{whole:.4f}", f"{small:.4f}", f"{100 * (whole - small):.2f}",
        "",
    )  # fmt: skip


def over_organs(results: Results, values: dict[str, float]) -> float:
    """Mean of values of packs, each counted once per organ."""
    organs = {name: results["whole"][name]["organs"] for name in values}
    return sum(values[name] * organs[name] for name in values) / sum(organs.values())


def speed(results: Results) -> list[str]:
    lines = [
        "",
        "CPU seconds of `segment`, whole / small packs, scan by scan in turn (ratios of scans):",
        "",
    ]
    for key, budget in results["budgets"].items():
        if found := budget.get("segment"):
            whole, small, each = sum(found["whole"]), sum(found["small"]), found["ratios"]
            spread = f"{min(each):.2f} to {max(each):.2f}, {len(each)} scans"
            lines.append(f"- {key}: {whole:.1f} / {small:.1f} = {whole / small:.2f} ({spread})")
    return lines


def control(results: Results) -> list[str]:
    """Whole decoders before and after as many further updates as small ones have."""
    found = results.get("control", {})
    if not found:
        return []
    heading = "Whole decoders, trained on as long as the small ones (test: before, after, gained in points):"
    pairs = {name: (results["whole"][name]["test_dice"], each["test_dice"]) for name, each in found.items()}
    if len(pairs) == len(results["whole"]):
        pairs["all"] = (fmean(pair[0] for pair in pairs.values()), fmean(pair[1] for pair in pairs.values()))
    lines = [
        f"- {name}: {before:.4f}, {after:.4f}, {100 * (after - before):.2f}"
        for name, (before, after) in pairs.items()
    ]
    return ["", heading, "", *lines]


def forms(results: Results) -> str:
    """What every smaller block loses alone, before training."""
    lines = list[str]()
    for name, fits in results["fits"].items():
        whole, *scores = fits["blocks_alone"]
        lines += ["", f"{name}: trained decoder {whole['dice']:.4f} on the windows that rank plans", ""]
        lines += [line("plan, deepest block first", "parameters", "multiply-adds", "Dice", "lost, points")]
        lines += ["|---" * 5 + "|"]
        for score in scores:
            sizes = [score[n] / whole[n] for n in ("paper_parameters", "multiply_adds")]
            lost = 100 * (whole["dice"] - score["dice"])
            plan = " ".join(score["plan"])
            lines.append(line(plan, *(f"{s:.3f}" for s in sizes), f"{score['dice']:.4f}", f"{lost:.2f}"))
    return "\n".join(lines[1:]) + "\n"


def pareto(results: Results) -> bytes:
    """Mean Dice of the test splits against size and time."""
    whole = whole_point(results)
    points = [*(point(results, budget) for budget in measured(results)), whole]
    figure = Figure(figsize=(10.5, 3.2), layout="constrained")
    for number, (axis, label) in enumerate(zip(figure.subplots(1, 3, sharey=True), AXES, strict=True)):
        axis.plot(*zip(*sorted((p[number], p[3]) for p in points), strict=True), "o-", color="tab:blue")
        axis.plot(whole[number], whole[3], "o", color="black", label="whole decoders")
        axis.set(xlabel=label, xlim=(0, None))
    figure.axes[0].set(ylabel="mean Dice of all organs, test scans")
    figure.axes[-1].legend(fontsize=7, loc="lower right")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100)
    return picture.getvalue()


def measured(results: Results) -> list[dict[str, Any]]:
    """Budgets whose packs were scored and timed."""
    return [budget for budget in results.get("budgets", {}).values() if "segment" in budget]


def point(results: Results, budget: dict[str, Any]) -> tuple[float, float, float, float]:
    rows = finished(results, budget)
    return (
        sum(found["parameters"] for found in rows.values()),
        sum(found["multiply_adds"] for found in rows.values()),
        sum(budget["segment"]["small"]) / sum(budget["segment"]["whole"]),
        over_organs(results, {name: found["test_dice"] for name, found in rows.items()}),
    )


def whole_point(results: Results) -> tuple[float, float, float, float]:
    whole = {name: each["test_dice"] for name, each in results["whole"].items()}
    return len(whole), len(whole), 1.0, over_organs(results, whole)


def seeds(runs: Sequence[Results]) -> str:
    """What packs lose in each run, at budgets that all runs have; in `all organs` every organ counts once."""
    columns = ("budget", "pack", "organs", "test scans", "whole", "small", "lost, points", "lost by seed")
    lines = [line(*columns), "|---" * len(columns) + "|"]
    for key in runs[0]["budgets"]:
        found = [finished(run, run["budgets"].get(key, {})) for run in runs]
        names = list(runs[0]["whole"])
        if not all(len(packs) == len(names) for packs in found):
            continue
        pairs = [
            [(run["whole"][name]["test_dice"], packs[name]["test_dice"]) for name in names]
            for run, packs in zip(runs, found, strict=True)
        ]
        for number, name in enumerate(names):
            whole = runs[0]["whole"][name]
            each = [of_run[number] for of_run in pairs]
            lines.append(line(key, name, whole["organs"], whole["test_scans"], *compared(each)))
        everything = [
            tuple(over_organs(run, dict(zip(names, dice, strict=True))) for dice in zip(*of_run, strict=True))
            for run, of_run in zip(runs, pairs, strict=True)
        ]
        organs = sum(runs[0]["whole"][name]["organs"] for name in names)
        scans = sum(runs[0]["whole"][name]["test_scans"] for name in names)
        lines.append(line(key, "all organs", organs, scans, *compared(everything)))
    return "\n".join(lines) + "\n"


def compared(pairs: Sequence[Sequence[float]]) -> list[str]:
    """Mean Dice of whole and small packs over runs, and what is lost."""
    whole, small = (fmean(pair[which] for pair in pairs) for which in (0, 1))
    lost = [f"{100 * (pair[0] - pair[1]):.2f}" for pair in pairs]
    return [f"{whole:.4f}", f"{small:.4f}", f"{100 * (whole - small):.2f}", ", ".join(lost)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="OUT")
    folders = parser.parse_args().runs
    print(seeds([json.loads((folder / "results.json").read_text()) for folder in folders]), end="")


if __name__ == "__main__":
    main()
