"""Charts of a report: places of points, names from outside, colours left to the page."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from continual_segment.evaluation.charts import Frame, curve_chart, line_chart

EVIL = "<script>alert(1)</script>"
SVG = "{http://www.w3.org/2000/svg}"


def parsed(chart: str) -> ElementTree.Element:
    return ElementTree.fromstring(str(chart).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def test_points_are_placed_from_the_left_bottom_to_the_right_top():
    frame = Frame((1, 3), (0.0, 1.0), width=200, height=100, left=10, right=20, top=5, bottom=15)
    assert frame.place((1, 0)) == (10, 85)
    assert frame.place((3, 1)) == (180, 5)
    assert frame.place((2, 0.5)) == (95, 45)
    assert frame.place((3, 7)) == frame.place((3, 1))


def test_a_level_line_is_level_and_a_falling_one_falls():
    lines = {"kept": [(1, 0.9), (2, 0.9)], "lost": [(1, 0.9), (2, 0.6)]}
    chart = parsed(line_chart(lines, Frame((1, 2), (0.5, 1.0)), ("after step", "Dice"), [1, 2], [0.5, 1]))
    kept, lost = (line.get("points", "").split() for line in chart.iter(f"{SVG}polyline"))
    heights = [[float(point.split(",")[1]) for point in line] for line in (kept, lost)]
    assert heights[0][0] == heights[0][1] == heights[1][0] < heights[1][1]


def test_names_from_outside_are_text_and_do_not_cover_each_other():
    lines = {EVIL: [(1, 0.9)], "a & b": [(1, 0.9)]}
    chart = line_chart(lines, Frame((1, 1), (0, 1)), ("x", "y"), [1], [0, 1])
    assert "<script" not in chart
    names = [text for text in parsed(chart).iter(f"{SVG}text") if "name" in text.get("class", "")]
    assert [text.text for text in names] == [EVIL, "a & b"]
    assert abs(float(names[0].get("y", 0)) - float(names[1].get("y", 0))) >= 12


def test_names_of_lines_that_end_at_the_bottom_are_inside_the_picture():
    frame = Frame((1, 1), (0, 1))
    lines = {f"dataset {number}": [(1.0, 0.001 * number)] for number in range(5)}
    chart = parsed(line_chart(lines, frame, ("x", "y"), [1], [0, 1]))
    heights = [
        float(text.get("y", 0)) for text in chart.iter(f"{SVG}text") if "name" in text.get("class", "")
    ]
    assert max(heights) <= frame.height - frame.bottom + 4
    assert min(abs(one - other) for one in heights for other in heights if one != other) >= 12


def test_a_learning_curve_shows_loss_and_validation_without_colours_of_its_own():
    rows = [
        {"iteration": 0.0, "loss": 1.5, "validation_dice": 0.1, "seconds": 1.0},
        {"iteration": 100.0, "loss": -0.5, "validation_dice": 0.9, "seconds": 9.0},
    ]
    chart = curve_chart(rows)
    loss, dice = (line.get("points", "").split() for line in parsed(chart).iter(f"{SVG}polyline"))
    assert float(loss[0].split(",")[1]) < float(loss[1].split(",")[1])
    assert float(dice[0].split(",")[1]) > float(dice[1].split(",")[1])
    assert "style=" not in chart
    assert "fill=" not in chart


@pytest.mark.parametrize("count", [1, 9])
def test_any_number_of_lines_is_drawn(count):
    lines = {f"dataset {number}": [(1.0, 0.5)] for number in range(count)}
    chart = parsed(line_chart(lines, Frame((1, 1), (0, 1)), ("x", "y"), [1], [0, 1]))
    assert len(list(chart.iter(f"{SVG}circle"))) == count
