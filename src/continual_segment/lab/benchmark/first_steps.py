"""One table, one first step: results that start from different trainings of it are not compared.

Results may be copied into a folder, or a first step replaced, so every stored result records the fingerprint
of the encoder after its first step. Orders that start with different datasets have a first step each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from continual_segment.errors import ConfigError
from continual_segment.lab.benchmark.results import Results
from continual_segment.model import Model
from continual_segment.names import some_of

MOST_FILES_SHOWN = 3
LONGEST_PATH = 1000


def check_first_steps(results: Results) -> None:
    """Raise where results of one benchmark, or its models, start from different first steps."""
    for dataset in first_datasets(results):
        files: dict[str, list[Path]] = {}
        for fingerprint, path in (*models(results, dataset), *stored(results, dataset)):
            if fingerprint and path not in files.setdefault(fingerprint, []):
                files[fingerprint].append(path)
        if len(files) > 1:
            found = "\n".join(f"  {fingerprint}: {_some(paths)}" for fingerprint, paths in files.items())
            raise ConfigError(
                f"{results.paths.folder}: results start from {len(files)} different trainings of the first "
                f"step, {dataset}, and cannot be compared in one table. Encoders and files:\n{found}\n"
                "Keep the results of one first step here, and move the others to a folder of their own."
            )


def first_datasets(results: Results) -> list[str]:
    return list(dict.fromkeys(names[0] for names in results.plan.orders.values()))


def models(results: Results, dataset: str) -> Iterator[tuple[str, Path]]:
    """Encoder and folder of the models that start with this dataset and keep its encoder."""
    paths, plan = results.paths, results.plan
    orders = [order for order, names in plan.orders.items() if names[0] == dataset]
    adopted = [paths.model(order, method, 1) for order in orders for method in plan.methods]
    for model in dict.fromkeys((paths.first(dataset) / "network", *adopted)):
        if model.exists():
            yield Model.open(model).encoder_fingerprint, model


def stored(results: Results, dataset: str) -> Iterator[tuple[str, Path]]:
    """First step (empty: not recorded) and file of the results of all orders that start with this dataset."""
    paths, plan = results.paths, results.plan
    several = len(first_datasets(results)) > 1
    for (order, row, step, scored), found in results.scores.items():
        method = plan.rows[row].method_name
        alone = paths.one_per_dataset(method) and not plan.method(method).reads_first_step
        shared = several and alone  # by all orders, whatever they start with
        if plan.orders[order][0] == dataset and not shared:
            yield found.first_step, paths.scores(order, row, step, scored) / "evaluation.json"
    orders = [order for order, names in plan.orders.items() if names[0] == dataset]
    for order, method in product(orders, plan.methods_with("merge rules")):
        for (rule, scored), found in results.merging(order, method).items():
            yield found.first_step, paths.merging(order, method, rule, scored) / "evaluation.json"


def unrecorded_note(results: Results) -> str:
    """For a table: methods with results of an earlier version, which did not record the first step."""
    methods = {method: None for (_, method, *_), found in results.scores.items() if not found.first_step}
    return f"First step not recorded: {', '.join(methods)}." if methods else ""


def _some(paths: Sequence[Path]) -> str:
    return some_of(map(str, paths), MOST_FILES_SHOWN, LONGEST_PATH)
