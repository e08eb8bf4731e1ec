"""What a run leaves to look at: a CSV row per report and a picture of the curves."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from continual_segment.files.atomic import atomic_path, write_text


def write_history(folder: Path, rows: list[dict[str, float]]) -> None:
    """log.csv and curves.png of the run so far."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(folder / "log.csv", text.getvalue())
    with atomic_path(folder / "curves.png") as temporary:
        temporary.write_bytes(curves_png(rows))


def read_history(folder: Path) -> list[dict[str, float]]:
    """The rows of log.csv."""
    with (folder / "log.csv").open(newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def curves_png(rows: list[dict[str, float]]) -> bytes:
    """Training loss and what was validated against iterations."""
    from matplotlib.figure import Figure  # heavy, and only for the picture

    figure = Figure(figsize=(6, 3), layout="constrained")
    left = figure.subplots()
    right = left.twinx()
    iterations = [row["iteration"] for row in rows]
    left.plot(iterations, [row["loss"] for row in rows], color="tab:red")
    measure = next(name for name in rows[0] if name.startswith("validation"))
    right.plot(iterations, [row[measure] for row in rows], color="tab:blue")
    left.set(xlabel="iteration", ylabel="training loss")
    left.yaxis.label.set_color("tab:red")
    name = "validation Dice" if measure == "validation_dice" else measure.replace("_", " ")
    right.set(ylabel=name, ylim=(0, 1))
    right.yaxis.label.set_color("tab:blue")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100)
    return picture.getvalue()
