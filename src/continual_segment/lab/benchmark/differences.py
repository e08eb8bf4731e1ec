"""Which differences between methods count: every method against the first one, scan by scan.

A scan has the mean Dice of its organs, over all seeds of a method. Two methods are compared on the same scans
by Wilcoxon's signed-rank test; as several are compared with one, their p values are corrected by Holm.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from continual_segment.lab.benchmark.results import Results
from continual_segment.lab.benchmark.table import Table, cell

Scan = tuple[str, str]
"""Dataset and case."""
DIGITS = 6
"""Of differences in points: means of the same numbers in another order differ by less, and are equal."""


def difference_tables(results: Results, order: str) -> Iterator[Table]:
    """After the last step; nothing where there is one method alone."""
    first, *others = results.finished(order)
    if not others:
        return
    ours = dice_by_scan(results, order, first)
    points = {}
    for method in others:
        theirs = dice_by_scan(results, order, method)
        scans = sorted(ours.keys() & theirs.keys())
        points[method] = [round(100 * (theirs[scan] - ours[scan]), DIGITS) for scan in scans]
    corrected = holm([signed_rank(each) for each in points.values()])
    rows = [
        [
            method,
            str(len(results.seeds(order, method))),
            str(len(each)),
            cell(fmean(each) if each else None, 1),
            f"{sum(value > 0 for value in each)} of {len(each)}",
            f"{p:.1g}",
        ]
        for (method, each), p in zip(points.items(), corrected, strict=True)
    ]
    columns = ("method", "seeds", "scans", f"points above {first}", "scans with more", "p")
    note = (
        "Mean Dice of the organs in a scan, over seeds, after the last step. p: Wilcoxon's signed-rank test "
        "over scans, corrected by Holm for the number of rows."
    )
    yield Table(f"differences_{order}", f"Against {first}, order {order}", columns, rows, note)


def dice_by_scan(results: Results, order: str, method: str) -> dict[Scan, float]:
    """The mean Dice of every scan's organs, over organs and seeds."""
    found: dict[Scan, list[float]] = {}
    for seed in results.seeds(order, method):
        for dataset, evaluation in results.last(order, seed).items():
            for row in evaluation.rows:
                if row.in_truth:
                    found.setdefault((dataset, row.case), []).append(row.dice)
    return {scan: fmean(values) for scan, values in found.items()}


def signed_rank(differences: Sequence[float]) -> float:
    """Two-sided p value; 1 where nothing differs."""
    from scipy.stats import wilcoxon  # half a second to import

    return float(wilcoxon(differences).pvalue) if any(differences) else 1.0


def holm(values: Sequence[float]) -> list[float]:
    """p values, each corrected for those that are not smaller."""
    found, largest = [1.0] * len(values), 0.0
    for rank, index in enumerate(sorted(range(len(values)), key=lambda index: values[index])):
        largest = max(largest, min(1.0, values[index] * (len(values) - rank)))
        found[index] = largest
    return found
