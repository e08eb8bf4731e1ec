"""Tables that a method adds, as it declares in `extras`: encoders, small decoders, merge rules, run time.

Of several seeds they show the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from continual_segment.evaluation.small_decoders import architectures, choices
from continual_segment.lab.benchmark.results import Results
from continual_segment.lab.benchmark.table import METRIC_NAMES, Table, cell, printed, scores_of
from continual_segment.lab.benchmark.tasks import FIRST_NETWORK
from continual_segment.model import OrganPack
from continual_segment.organs import BODY_PARTS
from continual_segment.segmentation.merge import RULES

PAPER_RULES = {"ensemble": "ensemble", "literal": "anomaly-aware"}


def extra_tables(results: Results) -> Iterator[Table]:
    """Of all methods; the table of a second method has the method in its name."""
    names: set[str] = set()
    for method in results.plan.methods:
        if method not in results.plan.repeated:
            continue  # a further seed
        for table in tables_of_method(results, method):
            yield table.of_method(method) if table.name in names else table
            names.add(table.name)


def tables_of_method(results: Results, method: str) -> Iterator[Table]:
    """Encoders over all orders; the others in the first order with all packs, which no order changes."""
    extras = results.plan.method(method).extras
    if "encoders" in extras:
        yield from encoder_tables(results, method)
    complete = [
        order
        for order, names in results.plan.orders.items()
        if len(results.packs(order, method)) == len(names)
    ]
    for order in complete[:1]:
        if "decoders" in extras:
            yield from decoder_tables(results.packs(order, method))
        if "merge rules" in extras:
            yield from merging_tables(results, order, method)
        if "run time" in extras:
            yield from run_time_tables(results, order, method)


def encoder_tables(results: Results, method: str) -> Iterator[Table]:
    """A method after the last step, by the dataset its encoder was trained on; of orders that start alike,
    the first."""
    views = sorted(
        (row for row in results.plan.rows.values() if row.method_name == method),
        key=lambda row: row.view.packs == "all",
    )
    rows: dict[str, list[str]] = {}
    for order, (first, *_) in results.plan.orders.items():
        if first in rows or method not in results.finished(order):
            continue
        ends = []
        for view in views:  # by own pack, then merged
            found = results.last(order, view.name)
            ends.append({name: found[name] for name in results.plan.datasets})  # so that "all" means the same
        cells = [cell(100 * each.mean.dice, 1) for each in ends[0].values()]
        cells += [cell(100 * results.all(found).all_organs, 1) for found in ends]
        rows[first] = [first, *cells]
    if len(rows) > 1:
        names = (*(f"{name} DSC" for name in results.plan.datasets), "all DSC", "all DSC, merged")
        title = "Encoders of other datasets"
        note = "Each dataset by its own pack; the last column by all packs together."
        yield Table("encoders", title, ("encoder trained on", *names), list(rows.values()), note)


def decoder_tables(packs: Sequence[OrganPack]) -> Iterator[Table]:
    """Table 3, the architecture table and the body parts."""
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


def merging_tables(results: Results, order: str, method: str) -> Iterator[Table]:
    """Table 4."""
    found, names = results.merging(order, method), results.plan.orders[order]
    rows = []
    for rule in RULES:
        if all((rule, name) in found for name in names):
            row = [str(rule)]
            for name in names:
                row += scores_of([found[rule, name]], printed("table4", PAPER_RULES.get(rule, ""), name))
            rows.append(row)
    if rows:
        columns = ("rule", *(f"{name} {metric}" for name in names for metric in METRIC_NAMES))
        note = (
            "Body parts come from the model's regressor, if it has one; no map of disease is given. "
            "Nested organs share voxels in all rows."
        )
        yield Table(
            "table4_merging", f"Table 4: merge rules, all packs of order {order}", columns, rows, note
        )


def run_time_tables(results: Results, order: str, method: str) -> Iterator[Table]:
    """All packs against the first step's network."""
    if times := results.run_times(order, method):
        each = {name: sorted(seconds) for name, seconds in times.items()}
        ratios = [a / b for a, b in zip(times[method], times[FIRST_NETWORK], strict=True)]
        timed = [[name, *(cell(s, 2) for s in seconds)] for name, seconds in each.items()]
        more = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        papers = 1 + printed("run_time_more")
        note = f"{method.capitalize()} per the first network, run in turn: {more} (the paper: {papers:.2f})."
        columns = ("model", *(f"run {number}" for number in range(1, len(ratios) + 1)))
        yield Table("run_time", "Seconds for one scan, fastest first", columns, timed, note)
