"""The paper's tables with our numbers, and the paper's own beside them where it has one.

A cell reads `ours (paper's)`. Dice is in percent, distances are in millimetres over organs that were found;
how many were missed stands beside them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import isnan
from typing import Any

from continual_segment.evaluation.scores import Evaluation
from continual_segment.evaluation.small_decoders import architectures, choices
from continual_segment.lab.benchmark.plan import OURS, OWN_PACK, make_orders
from continual_segment.lab.benchmark.results import Results
from continual_segment.organs import BODY_PARTS
from continual_segment.segmentation.merge import RULES

METRICS = (("dice", 100.0, 1), ("hd95_mm", 1.0, 1), ("asd_mm", 1.0, 2))
METRIC_NAMES = ("DSC", "HD95", "ASD")
PAPER_RULES = {"ensemble": "ensemble", "literal": "anomaly-aware"}


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
    """The order in which the paper learned these datasets, too; empty where none of its orders begins so.

    What a network scores, and the mean over all organs, depend on all that was learned by then.
    """
    orders = make_orders(printed("datasets"), ("A", "B"))
    return next((order for order, names in orders.items() if names[: len(learned)] == tuple(learned)), "")


def cell(value: float | None, digits: int, papers: float | None = None) -> str:
    own = "-" if value is None or isnan(value) else f"{value:z.{digits}f}"
    return own if papers is None else f"{own} ({papers:.{digits}f})"


def scores_of(found: Evaluation, papers: Sequence[float] | None) -> list[str]:
    beside = papers or (None,) * len(METRICS)
    return [
        cell(getattr(found.mean, metric) * factor, digits, theirs)
        for (metric, factor, digits), theirs in zip(METRICS, beside, strict=True)
    ]


def make_tables(results: Results) -> Iterator[Table]:
    """Every table there is data for."""
    for order in results.plan.orders:
        if any(results.steps(order, method) for method in results.methods):
            yield steps_table(results, order)
        if results.finished(order):
            yield main_table(results, order)
            yield all_table(results, order)
    yield from freezing_tables(results)
    yield from encoder_tables(results)
    for order in results.plan.orders:
        packs = results.packs(order)
        if len(packs) == len(results.plan.orders[order]):
            yield from decoder_tables(results, order)
            yield from merging_tables(results, order)
            break  # packs are the same in orders that begin alike
    yield from group_tables(results)
    yield from organ_tables(results)
    yield training_table(results)


def main_table(results: Results, order: str) -> Table:
    """Table 1."""
    names = results.plan.orders[order]
    theirs_in = papers_order(names) if len(names) == len(printed("datasets")) else ""
    columns = ["method"]
    columns += [f"{name} {metric}" for name in (*names, "all") for metric in METRIC_NAMES]
    rows = []
    for method in results.finished(order):
        found = results.last(order, method)
        row = [method]
        for name in names:
            row += scores_of(found[name], printed("table1", theirs_in, method, name))
        theirs = printed("table1", theirs_in, method, "all") or (None,) * 3
        for (metric, factor, digits), papers in zip(METRICS, theirs, strict=True):
            row.append(cell(results.all(found, metric).all_organs * factor, digits, papers))
        size = printed("table1", theirs_in, method, "parameters") or (None, None)
        millions, relative = results.parameters(order, method)
        rows.append([*row, cell(millions, 3, size[0]), cell(relative, 2, size[1])])
    note = (
        "All: every organ once, with its value on the newest dataset that labels it. Parameters of the "
        "decoders in millions, and per nnU-Net decoder, counted as in the paper."
    )
    title = f"Table 1, order {order}: {' → '.join(names)}"
    return Table(f"table1_{order}", title, (*columns, "parameters", "relative"), rows, note)


def all_table(results: Results, order: str) -> Table:
    """What "all" and missed organs may mean."""
    rows = []
    for method in results.finished(order):
        found = results.last(order, method)
        dice = results.all(found)
        row = [method] + [cell(100 * each, 1) for each in (dice.all_organs, dice.all_pairs, dice.all_macro)]
        for metric, digits in (("hd95_mm", 1), ("asd_mm", 2)):
            left_out, penalised = (
                results.all(found, name) for name in (metric, metric.replace("_mm", "_penalised_mm"))
            )
            row += [cell(left_out.all_organs, digits), cell(penalised.all_organs, digits)]
        missed = sum(each.mean.excluded for each in found.values())
        rows.append([*row, f"{missed} of {sum(each.mean.scored for each in found.values())}"])
    columns = ("method", "DSC organs", "DSC pairs", "DSC datasets", "HD95", "HD95 penalised", "ASD",
               "ASD penalised", "organs missed")  # fmt: skip
    note = "Distances leave missed organs out; penalised, each costs the image's diagonal."
    return Table(f"all_{order}", f"All organs, order {order}, in several ways", columns, rows, note)


def steps_table(results: Results, order: str) -> Table:
    """DSC and forgetting after every step."""
    names = results.plan.orders[order]
    columns = ["method", "step"]
    columns += [f"{name} {what}" for name in (*names, "all") for what in ("DSC", "forgetting %")]
    rows = []
    for method in results.methods:
        lost = {each.step: each for each in results.forgetting(order, method)}
        for step in range(1, results.steps(order, method) + 1):
            found, now = results.after(order, method, step), lost.get(step)
            row, theirs = [method, str(step)], printed("steps", papers_order(names[:step]), method, str(step))
            for name in names:
                papers = (theirs or {}).get(name, (None, None))
                dice = 100 * found[name].mean.dice if name in found else None
                forgotten = 100 * now.relative[name] if now and name in now.relative else None
                row += [cell(dice, 1, papers[0]), cell(forgotten, 1, papers[1])]
            papers = (theirs or {}).get("all", (None, None))
            row.append(cell(100 * results.all(found).all_organs, 1, papers[0]))
            row.append(cell(100 * now.mean_relative if now else None, 1, papers[1]))
            rows.append(row)
    note = (
        "Forgetting: best earlier Dice minus Dice now, per best; below 0 a later step helped. In the last "
        "column the mean over datasets."
    )
    return Table(f"steps_{order}", f"After every step, order {order}", tuple(columns), rows, note)


def freezing_tables(results: Results) -> Iterator[Table]:
    """Table 2: the second step with and without a frozen encoder."""
    rows = []
    for order, names in results.plan.orders.items():
        for method in (OWN_PACK, "unfreezing"):
            found = results.after(order, method, 2) if method in results.methods else {}
            if found:
                key = OURS if method == OWN_PACK else method
                second = names[1] if papers_order(names[:2]) else ""
                theirs = [printed("table2", second, key, which) for which in ("totalseg", "new")]
                row = [f"{names[0]} → {names[1]}", "frozen" if method == OWN_PACK else "unfreezing"]
                for name, papers in zip(names[:2], theirs, strict=True):
                    row += scores_of(found[name], None if papers is None else (*papers, None))  # type: ignore[arg-type]
                rows.append(row)
    if rows:
        columns = ("steps", "encoder", *(f"{which} {m}" for which in ("old", "new") for m in METRIC_NAMES))
        note = "Each dataset by its own decoder."
        yield Table("table2_freezing", "Table 2: freezing the encoder", columns, rows, note)


def encoder_tables(results: Results) -> Iterator[Table]:
    """Ours at the end, by the dataset the encoder was trained on; of orders that begin alike, the first."""
    rows: dict[str, list[str]] = {}
    for order, (first, *_) in results.plan.orders.items():
        if first in rows or OURS not in results.finished(order):
            continue
        ends = []
        for method in (OWN_PACK, OURS):
            found = results.last(order, method)
            ends.append({name: found[name] for name in results.plan.datasets})  # so that "all" means the same
        cells = [cell(100 * each.mean.dice, 1) for each in ends[0].values()]
        cells += [cell(100 * results.all(found).all_organs, 1) for found in ends]
        rows[first] = [first, *cells]
    if len(rows) > 1:
        names = (*(f"{name} DSC" for name in results.plan.datasets), "all DSC", "all DSC, merged")
        title = "Encoders of other datasets"
        note = "Each dataset by its own pack; the last column by all packs together."
        yield Table("encoders", title, ("encoder trained on", *names), list(rows.values()), note)


def decoder_tables(results: Results, order: str) -> Iterator[Table]:
    """Table 3, the architecture table and the body parts."""
    packs = results.packs(order)
    rows = [
        [pack.name, choice.tau, " ".join(choice.path.plan), cell(100 * choice.path.dice, 1, theirs[0]),
         cell(choice.path.paper_parameters / 1e6, 3, theirs[1])]
        for pack in packs
        for choice in choices(pack)
        for theirs in [printed("table3", pack.name, f"{float(choice.tau):g}") or (None, None)]
    ]  # fmt: skip
    if rows:
        head = ("pack", "tau", "kernels, deepest first", "validation DSC", "parameters (millions)")
        yield Table("table3_tau", "Table 3: how small a decoder may become", head, rows)
    architecture = [
        [row.name, " ".join(row.kernels), " ".join(printed("architecture", row.name) or ()),
         cell(row.parameters / 1e6, 4), cell(row.parameters_share, 3), cell(row.multiply_adds_share, 3)]
        for row in architectures(packs)
    ]  # fmt: skip
    columns = ("pack", "kernels, deepest first", "paper's", "parameters (millions)", "per nnU-Net decoder",
               "multiply-adds per nnU-Net decoder")  # fmt: skip
    yield Table("architecture", "Decoders", columns, architecture)
    if any(pack.coverage for pack in packs):
        parts = [
            [pack.name, *(cell(100 * pack.coverage.get(part, 0.0), 1, printed("body_parts", pack.name, part))
                          for part in BODY_PARTS)]
            for pack in packs
        ]  # fmt: skip
        yield Table("body_parts", "Body parts the packs cover (%)", ("pack", *BODY_PARTS), parts)


def merging_tables(results: Results, order: str) -> Iterator[Table]:
    """Table 4 and the run time."""
    found, names = results.merging(order), results.plan.orders[order]
    rows = []
    for rule in RULES:
        if all((rule, name) in found for name in names):
            row = [str(rule)]
            for name in names:
                row += scores_of(found[rule, name], printed("table4", PAPER_RULES.get(rule, ""), name))
            rows.append(row)
    if rows:
        columns = ("rule", *(f"{name} {metric}" for name in names for metric in METRIC_NAMES))
        note = (
            "Body parts are told by the model's regressor, if it has one; nobody told where a tumour is. "
            "Nested organs share voxels in all rows."
        )
        yield Table(
            "table4_merging", f"Table 4: merge rules, all packs of order {order}", columns, rows, note
        )
    if times := results.run_times(order):
        each = {name: sorted(seconds) for name, seconds in times.items()}
        ratios = [a / b for a, b in zip(times["ours"], times["first network"], strict=True)]
        timed = [[name, *(cell(s, 2) for s in seconds)] for name, seconds in each.items()]
        more = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        papers = 1 + printed("run_time_more")
        note = f"Ours per the first network, run in turn: {more} (the paper: {papers:.2f})."
        columns = ("model", *(f"run {number}" for number in range(1, len(ratios) + 1)))
        yield Table("run_time", "Seconds for one scan, fastest first", columns, timed, note)


def group_tables(results: Results) -> Iterator[Table]:
    """Organ groups of the first dataset at the end."""
    order, names = next(iter(results.plan.orders.items()))
    methods = results.finished(order)
    if not methods:
        return
    groups = {m: {g.name: g for g in results.last(order, m)[names[0]].groups} for m in methods}
    rows = []
    for group in sorted({name for found in groups.values() for name in found}):
        row = [group]
        for method in methods:
            papers = (printed("groups", group, method) if names[0] == "totalseg" else None) or (None,)
            mean = groups[method].get(group)
            row.append(cell(100 * mean.dice if mean else None, 1, papers[0]))
        rows.append(row)
    title = f"Organ groups of {names[0]} after the last step, order {order} (DSC)"
    yield Table("groups", title, ("group", *methods), rows)


def organ_tables(results: Results) -> Iterator[Table]:
    """Every organ of every dataset at the end."""
    order, names = next(iter(results.plan.orders.items()))
    methods = results.finished(order)
    for dataset in names if methods else ():
        found = {m: {o.name: o for o in results.last(order, m)[dataset].organs} for m in methods}
        rows = []
        for organ in found[methods[0]]:
            papers = {m: (printed("organs", dataset, organ, m) or (None,))[0] for m in methods}
            rows.append([organ, *(cell(100 * found[m][organ].dice, 1, papers[m]) for m in methods)])
        title = f"Organs of {dataset} after the last step, order {order} (DSC)"
        yield Table(f"organs_{dataset}", title, ("organ", *methods), rows)


def training_table(results: Results) -> Table:
    """Budgets and time."""
    rows = []
    for order in results.plan.orders:
        for method in results.methods:
            if method != OWN_PACK and results.steps(order, method) > 1:
                budget = results.plan.training(method)
                taken = results.training_seconds(order, method)
                rows.append([order, method, str(budget.iterations), f"{budget.learning_rate:g}",
                             cell(taken, 0)])  # fmt: skip
    columns = (
        "order",
        "method",
        "updates per later step",
        "learning rate",
        "seconds of training, later steps",
    )
    return Table("training", "Budgets and time", columns, rows)
