"""The report of a continual run: one HTML file with everything in it, to be opened anywhere."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from continual_segment.evaluation.charts import Frame, curve_chart, line_chart
from continual_segment.evaluation.forgetting import StepForgetting, all_scores, forgetting
from continual_segment.evaluation.pictures import three_planes
from continual_segment.evaluation.scores import Evaluation
from continual_segment.evaluation.small_decoders import (
    architectures,
    choices,
    chosen_path,
    is_small,
    pareto_png,
    stage_shares,
)
from continual_segment.files import write_labels, write_scan
from continual_segment.files.atomic import write_bytes, write_json, write_text
from continual_segment.files.organ_colours import label_colour
from continual_segment.model import Model, OrganPack, Verification
from continual_segment.networks import true_count
from continual_segment.organs import BODY_PARTS, find_organ
from continual_segment.volume import LabelMap, Volume

EXAMPLES = "examples"
"""Folder of the held-out scans that a report shows, with their label maps: `conseg view` opens it."""


@dataclass(frozen=True, eq=False)
class StepScores:
    """What one step added and the scores of every dataset learned by then."""

    name: str
    pack: OrganPack
    alone: dict[str, Evaluation]
    """Per dataset, the scores of its own pack, computed after this step."""
    merged: dict[str, Evaluation]
    """The same with all packs installed by then."""


@dataclass(frozen=True, eq=False)
class Example:
    """One held-out scan to look at."""

    dataset: str
    case: str
    scan: Volume
    truth: LabelMap
    own: LabelMap
    """Predicted by the dataset's pack."""
    merged: LabelMap
    """Predicted by all packs, merged."""

    @cached_property
    def picture(self) -> bytes:
        columns = [("scan", None), ("truth", self.truth), ("its pack", self.own), ("all packs", self.merged)]
        return three_planes(self.scan, columns)


@dataclass(frozen=True, eq=False)
class Report:
    """All a report shows."""

    model: Path
    steps: list[StepScores]
    examples: list[Example]
    histories: dict[str, list[dict[str, float]]]
    verification: Verification
    seconds: float | None
    """Preparing, learning, segmenting and scoring; None where the run was stopped in between."""
    earlier: tuple[str, ...] = ()
    """Packs that the model had before these steps."""

    @property
    def dice(self) -> list[dict[str, float]]:
        """Mean Dice per step and dataset, of each dataset's own pack."""
        return [{name: found.mean.dice for name, found in step.alone.items()} for step in self.steps]

    @property
    def forgetting(self) -> list[StepForgetting]:
        return forgetting(self.dice)

    def table(self) -> str:
        """Mean Dice of every dataset after the last step, for a terminal."""
        last = self.steps[-1]
        lost = self.forgetting[-1].absolute if self.forgetting else {}
        width = max(map(len, ("dataset", *last.alone)))
        rows = [f"{'dataset':<{width}}  organs  own pack  merged  forgotten"]
        for name, own in last.alone.items():
            merged = last.merged[name].mean.dice
            forgotten = f"{lost[name]:.3f}" if name in lost else "-"
            scores = f"{len(own.organs):>6}  {own.mean.dice:>8.3f}  {merged:>6.3f}  {forgotten:>9}"
            rows.append(f"{name:<{width}}  {scores}")
        note = "Mean Dice on held-out scans; forgotten: by the own pack since its best step."
        return "\n".join([*rows, note])


def write_report(folder: Path, result: Report, commands: Sequence[str], view: str = "") -> Path:
    """Write report.html, the pictures and scans in it, and scores.json; return the report's path.

    `commands` are those that led to it, `view` is the one that shows the scans.
    """
    for example in result.examples:
        write_bytes(folder / f"{example.dataset}.png", example.picture)
        write_example(folder / EXAMPLES, example)
    write_json(folder / "scores.json", as_data(result))
    page = Environment(
        loader=PackageLoader("continual_segment", "evaluation"), autoescape=True, undefined=StrictUndefined
    ).get_template("report.html")
    path = folder / "report.html"
    write_text(path, page.render(**content(result), commands=commands, view=view))
    return path


def write_example(folder: Path, example: Example) -> None:
    """The scan and its label maps, in a folder each, under the name of the dataset."""
    name = f"{example.dataset}.nii.gz"
    write_scan(folder / "scans" / name, example.scan)
    for source, labels in (
        ("truth", example.truth),
        ("own_pack", example.own),
        ("all_packs", example.merged),
    ):
        write_labels(folder / source / name, labels)


def content(result: Report) -> dict[str, Any]:
    """What the page's template names."""
    model = Model.open(result.model)
    encoder = model.load_encoder()
    last = result.steps[-1]
    return {
        "result": result,
        "model": model,
        "encoder_parameters": true_count(encoder),
        "organs": sorted(model.organs.values(), key=lambda organ: organ.id),
        "all_scores": all_scores({name: dices(found) for name, found in last.merged.items()}),
        "pack_bytes": {name: model.pack_path(name).stat().st_size for name in model.pack_names},
        "curves": {name: curve_chart(rows) for name, rows in result.histories.items()},
        "ends": {
            name: [loss_and_dice(rows[at]) for at in (0, -1)] for name, rows in result.histories.items()
        },
        "kept": kept_chart(result),
        "largest_drop": largest_drop(result.dice),
        "pictures": {example.dataset: embedded(example.picture) for example in result.examples},
        "small": small_decoders([step.pack for step in result.steps]),
        "parts": body_parts([step.pack for step in result.steps]),
        "colour": lambda name: "rgb({:.0f} {:.0f} {:.0f})".format(
            *(255 * part for part in label_colour(find_organ(name).id))
        ),
    }


def kept_chart(result: Report) -> Markup:
    """Dice of every dataset by its own pack, after each step from its own on."""
    steps = range(1, len(result.steps) + 1)
    lines = {
        name: [(step, row[name]) for step, row in zip(steps, result.dice, strict=True) if name in row]
        for name, dice in result.dice[-1].items()
        if isfinite(dice)
    }
    lowest = min((dice for points in lines.values() for _, dice in points), default=0.0)
    bottom = max(0.0, int(lowest * 10 - 0.5) / 10)
    ticks = [bottom, (bottom + 1) / 2, 1.0]
    return line_chart(lines, Frame((1, len(steps)), (bottom, 1.0)), ("after step", "mean Dice"), steps, ticks)


def largest_drop(dice: Sequence[dict[str, float]]) -> float:
    """Of any dataset's Dice, since the step that learned it; 0 where none fell in four digits."""
    first: dict[str, float] = {}
    for row in dice:
        first = row | first
    drops = [round(first[name] - after, 4) for row in dice for name, after in row.items()]
    return max((drop for drop in drops if isfinite(drop)), default=0.0)


def loss_and_dice(row: dict[str, float]) -> tuple[float, float]:
    """Of one line of a training log."""
    return row["loss"], row[next(name for name in row if name.startswith("validation"))]


def small_decoders(packs: Sequence[OrganPack]) -> dict[str, Any] | None:
    """What making decoders small came to; None where no pack went through it."""
    if not any(map(is_small, packs)):
        return None
    pruned = [pack for pack in packs if "prune" in pack.card]
    return {
        "packs": packs,
        "architectures": architectures(packs),
        "pruned": [(pack, chosen_path(pack), choices(pack)) for pack in pruned],
        "pictures": {
            pack.name: embedded(pareto_png(pack))
            for pack in packs
            if not pack.card.keys().isdisjoint(("prune", "shrink"))
        },
        "shares": {pack.name: stage_shares(pack) for pack in packs if is_small(pack)},
    }


def body_parts(packs: Sequence[OrganPack]) -> dict[str, Any] | None:
    """The table of body-part distributions, head first; None where none was measured."""
    names = BODY_PARTS[::-1]
    rows = [
        {"name": pack.name, "cells": [cell(pack, part) for part in names]} | pack.card["body_parts"]
        for pack in packs
        if pack.coverage and "body_parts" in pack.card
    ]
    return {"names": names, "rows": rows} if rows else None


def cell(pack: OrganPack, part: str) -> str:
    """One share of that table, with how far the pack is trusted there where that is not fully."""
    covered = pack.coverage.get(part, 0.0)
    share = f"{pack.card['body_parts']['distribution'].get(part, 0.0):.1%}"
    return "–" if not covered else share if covered >= 1 else f"{share} ({covered:.2f})"


def dices(found: Evaluation) -> dict[str, float]:
    return {organ.name: organ.dice for organ in found.organs}


def as_data(result: Report) -> dict[str, Any]:
    """The report's numbers, for programs."""
    return {
        "seconds": result.seconds and round(result.seconds, 1),
        "verified": result.verification.good,
        "steps": [
            {
                "name": step.name,
                "seconds": result.histories[step.name][-1]["seconds"],
                "alone": {name: json.loads(found.to_json()) for name, found in step.alone.items()},
                "merged": {name: json.loads(found.to_json()) for name, found in step.merged.items()},
            }
            for step in result.steps
        ],
        "body_parts": {
            step.name: {"coverage": step.pack.coverage} | step.pack.card.get("body_parts", {})
            for step in result.steps
        },
        "decoders": [asdict(row) for row in architectures([step.pack for step in result.steps])],
        "forgetting": [{"step": row.step, "relative": row.mean_relative} for row in result.forgetting],
    }


def embedded(png: bytes) -> str:
    """A picture as an address inside the page."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
