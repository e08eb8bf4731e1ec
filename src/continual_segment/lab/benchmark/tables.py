"""The paper's tables with measured numbers, and the paper's number beside each where it has one.

A cell reads `measured (paper's)`; of several seeds it has mean and standard deviation. Dice is in percent,
distances are in millimetres over organs that were found; the number of missed organs is in a separate column.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from continual_segment.lab.benchmark.differences import difference_tables
from continual_segment.lab.benchmark.extra_tables import extra_tables
from continual_segment.lab.benchmark.first_steps import check_first_steps, unrecorded_note
from continual_segment.lab.benchmark.plan import Row
from continual_segment.lab.benchmark.results import Results
from continual_segment.lab.benchmark.table import (
    METRIC_NAMES,
    METRICS,
    Table,
    cell,
    papers_order,
    printed,
    scores_of,
)

ALL_KINDS = ("all_organs", "all_pairs", "all_macro")
"""What "all" may mean."""


def make_tables(results: Results) -> Iterator[Table]:
    """Every table there is data for; ConfigError where results come from different first steps."""
    check_first_steps(results)
    note = unrecorded_note(results)
    for table in tables_of(results):
        yield table.noted(note)


def tables_of(results: Results) -> Iterator[Table]:
    for order in results.plan.orders:
        if any(results.steps(order, method) for method in results.methods):
            yield steps_table(results, order)
        if results.finished(order):
            yield main_table(results, order)
            yield all_table(results, order)
            yield from difference_tables(results, order)
    yield from freezing_tables(results)
    yield from extra_tables(results)
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
        ends = [results.last(order, each) for each in results.seeds(order, method)]
        row = [method]
        for name in names:
            found = [end[name] for end in ends]
            row += scores_of(found, printed("table1", theirs_in, method, name))
        theirs = printed("table1", theirs_in, method, "all") or (None,) * 3
        for (metric, factor, digits), papers in zip(METRICS, theirs, strict=True):
            row.append(cell([results.all(end, metric).all_organs * factor for end in ends], digits, papers))
        size = printed("table1", theirs_in, method, "parameters") or (None, None)
        sizes = [results.parameters(order, each) for each in results.seeds(order, method)]
        row.append(cell([millions for millions, _ in sizes], 3, size[0]))
        rows.append([*row, cell([relative for _, relative in sizes], 2, size[1])])
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
        ends = [results.last(order, each) for each in results.seeds(order, method)]
        dice = [results.all(end) for end in ends]
        row = [method]
        row += [cell([100 * getattr(d, kind) for d in dice], 1) for kind in ALL_KINDS]
        for metric, digits in (("hd95_mm", 1), ("asd_mm", 2)):
            for name in (metric, metric.replace("_mm", "_penalised_mm")):
                row.append(cell([results.all(end, name).all_organs for end in ends], digits))
        missed = [float(sum(each.mean.excluded for each in end.values())) for end in ends]
        scored = sum(each.mean.scored for each in ends[0].values())
        rows.append([*row, f"{cell(missed, 0)} of {scored}"])
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
        for step in range(1, results.steps(order, method) + 1):
            seeds = results.seeds(order, method, step)
            found = [results.after(order, each, step) for each in seeds]
            lost = [forgotten for each in seeds for forgotten in results.forgetting(order, each)]
            now = [each for each in lost if each.step == step]
            row, theirs = [method, str(step)], printed("steps", papers_order(names[:step]), method, str(step))
            for name in names:
                papers = (theirs or {}).get(name, (None, None))
                dice = [100 * each[name].mean.dice for each in found if name in each]
                forgotten = [100 * each.relative[name] for each in now if name in each.relative]
                row += [cell(dice, 1, papers[0]), cell(forgotten, 1, papers[1])]
            papers = (theirs or {}).get("all", (None, None))
            row.append(cell([100 * results.all(each).all_organs for each in found], 1, papers[0]))
            row.append(cell([100 * each.mean_relative for each in now], 1, papers[1]))
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
        for each in sorted(encoder_rows(results), key=lambda row: row.method.encoder):  # frozen first
            found = [results.after(order, seed, 2) for seed in results.seeds(order, each.name, 2)]
            if found:
                second = names[1] if papers_order(names[:2]) else ""
                theirs = [printed("table2", second, each.method_name, which) for which in ("totalseg", "new")]
                row = [f"{names[0]} → {names[1]}", each.method.encoder]
                for name, papers in zip(names[:2], theirs, strict=True):
                    theirs_and_none = None if papers is None else (*papers, None)
                    row += scores_of([end[name] for end in found], theirs_and_none)
                rows.append(row)
    if rows:
        columns = ("steps", "encoder", *(f"{which} {m}" for which in ("old", "new") for m in METRIC_NAMES))
        note = "Each dataset by its own decoder."
        yield Table("table2_freezing", "Table 2: freezing the encoder", columns, rows, note)


def encoder_rows(results: Results) -> list[Row]:
    """Methods of Table 2, each by the view that segments a dataset by its own decoder."""
    rows = (results.plan.rows[name] for name in results.methods)
    return [row for row in rows if row.method.encoder and row.view.packs == "own"]


def group_tables(results: Results) -> Iterator[Table]:
    """Organ groups of the first dataset at the end."""
    order, names = next(iter(results.plan.orders.items()))
    methods = results.finished(order)
    if not methods:
        return
    groups = {m: by_name(results, order, m, names[0], "groups") for m in methods}
    rows = []
    for group in sorted({name for found in groups.values() for name in found}):
        row = [group]
        for method in methods:
            papers = (printed("groups", group, method) if names[0] == "totalseg" else None) or (None,)
            row.append(cell(groups[method].get(group), 1, papers[0]))
        rows.append(row)
    title = f"Organ groups of {names[0]} after the last step, order {order} (DSC)"
    yield Table("groups", title, ("group", *methods), rows)


def by_name(
    results: Results, order: str, method: str, dataset: str, kind: Literal["organs", "groups"]
) -> dict[str, list[float]]:
    """Dice in percent of every organ, or group of organs, after the last step, by each seed."""
    found: dict[str, list[float]] = {}
    for seed in results.seeds(order, method):
        for mean in getattr(results.last(order, seed)[dataset], kind):
            found.setdefault(mean.name, []).append(100 * mean.dice)
    return found


def organ_tables(results: Results) -> Iterator[Table]:
    """Every organ of every dataset at the end."""
    order, names = next(iter(results.plan.orders.items()))
    methods = results.finished(order)
    for dataset in names if methods else ():
        found = {m: by_name(results, order, m, dataset, "organs") for m in methods}
        rows = []
        for organ in found[methods[0]]:
            papers = {m: (printed("organs", dataset, organ, m) or (None,))[0] for m in methods}
            rows.append([organ, *(cell(found[m][organ], 1, papers[m]) for m in methods)])
        title = f"Organs of {dataset} after the last step, order {order} (DSC)"
        yield Table(f"organs_{dataset}", title, ("organ", *methods), rows)


def training_table(results: Results) -> Table:
    """Budgets and time."""
    rows = []
    for order in results.plan.orders:
        for method in results.plan.methods:
            if results.steps(order, method) > 1:
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
