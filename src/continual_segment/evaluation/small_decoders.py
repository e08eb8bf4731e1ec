"""What shrinking, or searching and pruning, made of each pack's decoder: tables and pictures for the report.

Everything is read from the packs: a training card keeps all candidates with their validation Dice and sizes,
and the one that was chosen. Packs that were only trained have no such entries.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from continual_segment.learning.selection import PathScore, PlanScore, Selection, pareto_front
from continual_segment.model import OrganPack
from continual_segment.networks import DecoderPlan, multiply_adds, paper_count

PANELS: tuple[tuple[Selection, str, float], ...] = (
    ("params", "parameters (thousands, paper's count)", 1e3),
    ("cost", "multiply-adds per window (millions)", 1e6),
    ("time", "seconds per window", 1.0),
)


@dataclass(frozen=True)
class Architecture:
    """One row of the architecture table."""

    name: str
    kernels: tuple[str, ...]
    """Deepest block first; none for a sum."""
    parameters: int
    """As the paper counts."""
    multiply_adds: int
    """On one window."""
    parameters_share: float
    """Of nnU-Net's decoder for the same organs."""
    multiply_adds_share: float


@dataclass(frozen=True)
class Choice:
    """What one tolerance leads to."""

    tau: str
    path: PathScore
    loss: float
    """Dice points against the decoder that was pruned."""


def is_small(pack: OrganPack) -> bool:
    """Was its decoder made small?"""
    return not pack.card.keys().isdisjoint(("shrink", "search", "prune"))


def paths_of(pack: OrganPack) -> list[PathScore]:
    return [PathScore.from_json(path) for path in pack.card["prune"]["paths"]]


def chosen_path(pack: OrganPack) -> PathScore:
    return paths_of(pack)[pack.card["prune"]["chosen"]]


def choices(pack: OrganPack) -> list[Choice]:
    """The paper's Table 3: for each tolerance the chosen path, before fine-tuning."""
    if "prune" not in pack.card:
        return []
    paths = paths_of(pack)
    return [
        Choice(tau, paths[number], 100 * (paths[0].dice - paths[number].dice))
        for tau, number in sorted(
            pack.card["prune"].get("choices", {}).items(), key=lambda item: float(item[0])
        )
    ]


def architectures(packs: Sequence[OrganPack]) -> list[Architecture]:
    """The paper's architecture table: every pack's kernels and sizes, and their sum.

    Shares are of one nnU-Net decoder; in the sum, too, as the paper gives it: of the mean over the packs.
    """
    rows, reference_parameters, reference_cost = [], 0, 0
    for pack in packs:
        window, organs = pack.card["patches"]["size"], len(pack.organs)
        nnunet = DecoderPlan.nnunet(pack.network)
        full = paper_count(nnunet, pack.network), multiply_adds(nnunet, pack.network, window, organs)
        own = paper_count(pack.plan, pack.network), multiply_adds(pack.plan, pack.network, window, organs)
        rows.append(Architecture(pack.name, pack.plan.kernels, *own, own[0] / full[0], own[1] / full[1]))
        reference_parameters, reference_cost = reference_parameters + full[0], reference_cost + full[1]
    parameters, cost = sum(row.parameters for row in rows), sum(row.multiply_adds for row in rows)
    count = len(rows)
    shares = parameters / reference_parameters * count, cost / reference_cost * count
    return [*rows, Architecture("all packs", (), parameters, cost, *shares)]


def stage_shares(pack: OrganPack) -> dict[str, float]:
    """Seconds of each stage after training, per second of training where that is known."""
    seconds: dict[str, Any] = pack.card.get("seconds", {})
    if not seconds.get("train"):  # or rounded to 0, as of a tiny network on a fast machine
        return {}
    return {name: taken / seconds["train"] for name, taken in seconds.items() if name != "train"}


def candidates_of(pack: OrganPack) -> tuple[list[PlanScore], PlanScore]:
    """All candidates, the decoder before it was made small first, and the chosen one."""
    if "prune" in pack.card:
        return [*paths_of(pack)], chosen_path(pack)
    shrink = pack.card["shrink"]
    trained, chosen = (PlanScore.from_json(shrink[name]) for name in ("trained", "chosen"))
    others = [PlanScore.from_json(score) for score in (*shrink["fitted"], *shrink["tried"])]
    return [trained, *(score for score in others if score.plan != trained.plan)], chosen


def pareto_png(pack: OrganPack) -> bytes:
    """Validation Dice of all candidates against their sizes; a line joins those that no smaller one beats."""
    paths, chosen = candidates_of(pack)
    panels = [panel for panel in PANELS if panel[0] != "time" or paths[0].seconds is not None]
    figure = Figure(figsize=(4.2 * len(panels), 3.2), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axis, (by, label, unit) in zip(axes, panels, strict=True):
        front = pareto_front(paths, by)
        axis.plot([p.size(by) / unit for p in front], [p.dice for p in front], color="tab:blue", linewidth=1)
        for marker, tuned, name in (("o", False, "a candidate"), ("D", True, "trained")):
            shown = [path for path in paths if path.fine_tuned == tuned]
            if shown:
                x, y = [path.size(by) / unit for path in shown], [path.dice for path in shown]
                axis.scatter(x, y, s=18, marker=marker, color="tab:blue", label=name)
        for path, colour, name in ((paths[0], "black", "before"), (chosen, "tab:red", "chosen")):
            axis.scatter(
                [path.size(by) / unit], [path.dice], s=70, facecolors="none", edgecolors=colour, label=name
            )
        axis.set(xlabel=label, xlim=(0, None))
    axes[0].set(ylabel="validation Dice")
    axes[-1].legend(fontsize=7, loc="lower right")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100)
    return picture.getvalue()
