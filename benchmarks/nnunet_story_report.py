"""Scores of benchmarks/nnunet_story.py as JSON files, and the table and the figure made from these.

In:  label maps of test cases and their raw dataset; later the JSON files alone
Out: METHOD.json, table.md, a figure
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from continual_segment.errors import DatasetError
from continual_segment.evaluation import evaluate, forgetting
from continual_segment.evaluation.forgetting import nan_mean
from continual_segment.files import write_json, write_text
from continual_segment.files.records import parse_json

METHODS = ("per dataset", "fine-tuned", "ours")
HEAD = """\
| dataset | organ | test cases | stock, per dataset | stock, fine-tuned: when learned | at the end | \
ours: when learned | at the end |
|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Step:
    """One dataset learned, and the Dice of all datasets so far."""

    learned: str
    dice: dict[str, dict[str, dict[str, float]]]
    """By dataset, organ and test case; cases without the organ are left out."""

    def organ(self, dataset: str, organ: str) -> float:
        return nan_mean(self.dice[dataset][organ].values())

    def mean(self, dataset: str) -> float:
        """Over organs, of their means over cases."""
        return nan_mean(self.organ(dataset, organ) for organ in self.dice[dataset])


@dataclass(frozen=True)
class Steps:
    """One method's file."""

    method: str
    steps: tuple[Step, ...]

    @property
    def datasets(self) -> list[str]:
        return [step.learned for step in self.steps]

    def when_learned(self, dataset: str) -> Step:
        return next(step for step in self.steps if step.learned == dataset)

    def forgotten(self) -> float:
        """Mean over earlier datasets of their best mean Dice at any step minus that at the end."""
        means = [{dataset: step.mean(dataset) for dataset in step.dice} for step in self.steps]
        return forgetting(means)[-1].mean_absolute


def dice_by_organ(predictions: Path, truth: Path) -> dict[str, dict[str, float]]:
    """Of the test cases."""
    found = evaluate(predictions, truth, workers=1, progress=False, split="test")
    if problems := [*found.failures, *found.without_prediction]:
        raise DatasetError(f"{predictions}: not all test cases can be scored: {'; '.join(problems)}.")
    dice: dict[str, dict[str, float]] = {}
    for row in found.rows:
        if row.in_truth:
            dice.setdefault(row.organ, {})[row.case] = round(row.dice, 6)
    return dice


def write_steps(folder: Path, method: str, steps: Iterable[Step]) -> None:
    write_json(steps_file(folder, method), asdict(Steps(method, tuple(steps))))


def read_steps(folder: Path, method: str) -> Steps:
    path = steps_file(folder, method)
    text = path.read_text(encoding="utf-8")
    return parse_json(text, Steps, str(path), DatasetError, "Run nnunet_story.py --only scores.")


def steps_file(folder: Path, method: str) -> Path:
    return folder / f"{method.replace(' ', '_').replace('-', '_')}.json"


def write_report(folder: Path, figure: Path) -> None:
    """The table beside the scores, and the figure."""
    methods = [read_steps(folder, method) for method in METHODS]
    write_text(folder / "table.md", table(*methods))
    drawn(*methods).savefig(figure, dpi=110)


def table(alone: Steps, tuned: Steps, ours: Steps) -> str:
    """Dice per organ when its dataset was learned and after the last step; means and forgetting below."""
    rows, cells = "", []
    for dataset in ours.datasets:
        for organ, cases in ours.when_learned(dataset).dice[dataset].items():
            cells.append(values(dataset, organ, (alone, tuned, ours)))
            rows += f"| {short(dataset)} | {organ} | {len(cases)} | {written(cells[-1])} |\n"
    means = [nan_mean(column) for column in zip(*cells, strict=True)]
    rows += f"| mean of {len(cells)} | | | {written(means)} |\n"
    lost = f"{tuned.forgotten():.3f} | | {ours.forgotten():.3f}"
    rows += f"| forgotten, mean of earlier datasets | | | | | {lost} |\n"
    return HEAD + rows


def values(dataset: str, organ: str, methods: tuple[Steps, Steps, Steps]) -> list[float]:
    alone, tuned, ours = (method.when_learned(dataset).organ(dataset, organ) for method in methods)
    tuned_last, ours_last = (method.steps[-1].organ(dataset, organ) for method in methods[1:])
    return [alone, tuned, tuned_last, ours, ours_last]


def written(numbers: Sequence[float]) -> str:
    return " | ".join(f"{number:.3f}" for number in numbers)


def short(dataset: str) -> str:
    """`Dataset102_Parotid` is `102`."""
    return dataset.removeprefix("Dataset").partition("_")[0]


def drawn(alone: Steps, tuned: Steps, ours: Steps) -> Figure:
    """Mean Dice of every dataset over the steps, per method; dashed: a stock network for it alone."""
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    titles = ("stock nnU-Net, fine-tuned", "stock nnU-Net imported, one pack per dataset")
    for axis, title, method in zip(axes, titles, (tuned, ours), strict=True):
        draw_steps(axis, method, alone)
        axis.set(title=title, xlabel="learned", ylim=(-0.02, 1))
        axis.set_xticks(range(len(method.steps)), [short(dataset) for dataset in method.datasets])
    axes[0].set_ylabel("mean Dice on test cases")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def draw_steps(axis: Axes, method: Steps, alone: Steps) -> None:
    for number, dataset in enumerate(method.datasets):
        line = [step.mean(dataset) for step in method.steps[number:]]
        axis.plot(range(number, len(method.steps)), line, "o-", color=f"C{number}", label=dataset)
        reached = alone.when_learned(dataset).mean(dataset)
        axis.hlines(reached, number, len(method.steps) - 1, colors=f"C{number}", linestyles="--", alpha=0.6)
    axis.grid(alpha=0.3)
