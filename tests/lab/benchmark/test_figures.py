"""Curves over the steps: readable on a page, and drawn again from stored results."""

import importlib.util
import io
from math import isnan
from pathlib import Path

import pytest
from PIL import Image

from continual_segment.lab.benchmark.figures import Line, Panel, draw

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "steps_figures.py"


@pytest.fixture(scope="module")
def steps_figures():
    spec = importlib.util.spec_from_file_location("steps_figures", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6])
def test_a_figure_does_not_become_wider_than_three_panels(count):
    """With five panels in a row, text is too small to read on a page."""
    panels = [Panel(f"panel {number}", {"ours": [1.0, 2.0], "mib": [1.0]}) for number in range(count)]
    picture = draw(panels, {"ours": Line(True, False), "mib": Line(False, True)})
    width, _ = Image.open(io.BytesIO(picture)).size
    assert width == min(count, 3) * 372


def test_panels_of_stored_results_have_their_values(steps_figures):
    def step(number, method, dice, **datasets):
        scores = {name: {"dice": value} for name, value in datasets.items()}
        lost = None if number == 1 else 0.25
        return {"order": "A", "method": method, "step": number, "dice_all_organs": dice, "datasets": scores,
                "mean_forgetting": lost}  # fmt: skip

    steps = [
        step(2, "ours", 0.5, body=0.6, chest=0.4),
        step(1, "ours", 0.75, body=0.75),
        step(1, "mib", 0.5, body=0.5),
        step(1, "ours", 0.1, body=0.1) | {"order": "B"},
    ]
    panels = steps_figures.panels_of({"orders": {"A": ["body", "chest"]}, "steps": steps}, "A")
    assert [panel.title for panel in panels] == ["all organs learned", "body", "forgotten (%)"]
    assert panels[0].values == {"ours": [75, 50], "mib": [50]}
    assert panels[1].values["ours"] == [75, 60]
    assert isnan(panels[2].values["ours"][0])
    assert panels[2].values["ours"][1] == 25


def test_packs_are_drawn_thick_and_their_second_view_dashed(steps_figures):
    assert steps_figures.line_by_name("ours") == Line(thick=True, dashed=False)
    assert steps_figures.line_by_name("ours, own pack") == Line(thick=True, dashed=True)
    assert steps_figures.line_by_name("upper-bound:start=first encoder") == Line(thick=False, dashed=False)
