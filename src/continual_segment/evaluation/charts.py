"""Charts of a report as SVG inside the page: they follow its colours, in the dark and on paper, at any size.

In:  lines of numbers under names that may come from outside
Out: Markup, in which names are escaped
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

Point = tuple[float, float]
COLOURS = 6
"""Lines from the seventh on repeat the colours, which the page's style defines as .line0 to .line5."""


@dataclass(frozen=True)
class Frame:
    """The area of a chart in which lines are drawn, and the numbers at its edges."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int = 640
    height: int = 240
    left: int = 52
    right: int = 150
    """Space for the names of lines."""
    top: int = 14
    bottom: int = 42

    def place(self, point: Point) -> Point:
        """Where on the picture a point is."""
        (x0, x1), (y0, y1) = self.x, self.y
        across = (point[0] - x0) / ((x1 - x0) or 1)
        up = (min(max(point[1], y0), y1) - y0) / ((y1 - y0) or 1)
        inner_width, inner_height = self.width - self.left - self.right, self.height - self.top - self.bottom
        return self.left + across * inner_width, self.height - self.bottom - up * inner_height


def line_chart(
    lines: Mapping[str, Sequence[Point]],
    frame: Frame,
    titles: tuple[str, str],
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
) -> Markup:
    """Lines with a dot at each point and their names at the right; `titles` are those of x and y."""
    parts = [_grid(frame, y_ticks), _x_axis(frame, titles[0], x_ticks), _y_title(frame, titles[1])]
    heights = _apart([frame.place(points[-1])[1] for points in lines.values()], frame.height - frame.bottom)
    for number, (name, points) in enumerate(lines.items()):
        places = [frame.place(point) for point in points]
        parts.append(_line(places, number % COLOURS, dots=len(points) < 20))
        text = Markup('<text class="name line{}" x="{}" y="{:.1f}">{}</text>')
        parts.append(text.format(number % COLOURS, frame.width - frame.right + 12, heights[number] + 4, name))
    return _svg(frame, parts)


def curve_chart(rows: Sequence[Mapping[str, float]]) -> Markup:
    """Loss (left) and validation (right, 0 to 1) of a training, by iterations."""
    measure = next(name for name in rows[0] if name.startswith("validation"))
    losses = [row["loss"] for row in rows]
    x = rows[0]["iteration"], rows[-1]["iteration"]
    frame = Frame(x, (min(0.0, *losses), max(losses)), width=420, height=210, right=48)
    shares = Frame(x, (0.0, 1.0), width=420, height=210, right=48)
    low, high = frame.y
    ticks = [low, (low + high) / 2, high]
    parts = [
        _grid(frame, ticks, css="line0"),
        _x_axis(frame, "iteration", [x[0], x[1]]),
        _right_axis(shares, (0, 0.5, 1)),
    ]
    for number, (each, field) in enumerate(((frame, "loss"), (shares, measure))):
        places = [each.place((row["iteration"], row[field])) for row in rows]
        parts.append(_line(places, number, dots=False))
    return _svg(frame, parts)


def _grid(frame: Frame, ticks: Sequence[float], css: str = "") -> Markup:
    line = Markup(
        '<line class="grid" x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}"/>'
        '<text class="tick {5}" text-anchor="end" x="{3}" y="{4:.1f}">{6:g}</text>'
    )
    right = frame.width - frame.right
    heights = [(tick, frame.place((frame.x[0], tick))[1]) for tick in ticks]
    return Markup("").join(
        line.format(frame.left, right, y, frame.left - 8, y + 4, css, round(tick, 2)) for tick, y in heights
    )


def _right_axis(frame: Frame, ticks: Sequence[float]) -> Markup:
    text = Markup('<text class="tick line1" x="{}" y="{:.1f}">{:g}</text>')
    x = frame.width - frame.right + 8
    return Markup("").join(text.format(x, frame.place((frame.x[0], tick))[1] + 4, tick) for tick in ticks)


def _x_axis(frame: Frame, title: str, ticks: Sequence[float]) -> Markup:
    text = Markup('<text class="tick" text-anchor="middle" x="{:.1f}" y="{}">{}</text>')
    bottom, middle = frame.height - frame.bottom, frame.left + (frame.width - frame.left - frame.right) / 2
    numbers = [text.format(frame.place((tick, 0))[0], bottom + 18, f"{tick:g}") for tick in ticks]
    return Markup("").join([*numbers, text.format(middle, frame.height - 6, title)])


def _y_title(frame: Frame, title: str) -> Markup:
    text = Markup(
        '<text class="tick" text-anchor="middle" transform="translate(12 {:.0f}) rotate(-90)">{}</text>'
    )
    return text.format(frame.top + (frame.height - frame.top - frame.bottom) / 2, title)


def _line(places: Sequence[Point], number: int, dots: bool) -> Markup:
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    line = Markup('<polyline class="curve line{}" points="{}"/>').format(number, joined)
    dot = Markup('<circle class="dot line{}" cx="{:.1f}" cy="{:.1f}" r="3.5"/>')
    return Markup("").join([line, *(dot.format(number, x, y) for x, y in places if dots)])


def _apart(heights: Sequence[float], lowest: float, least: float = 15) -> list[float]:
    """Heights of names, moved where two would cover each other; none is moved below `lowest`."""
    moved: dict[int, float] = {}
    order = sorted(range(len(heights)), key=heights.__getitem__)
    for index in order:
        moved[index] = max([heights[index], *(y + least for y in moved.values())])
    for index in reversed(order):
        moved[index] = min(moved[index], lowest)
        lowest = moved[index] - least
    return [moved[index] for index in range(len(heights))]


def _svg(frame: Frame, parts: Sequence[Markup]) -> Markup:
    start = Markup('<svg class="chart" viewBox="0 0 {} {}" role="img" aria-hidden="true">')
    return start.format(frame.width, frame.height) + Markup("").join(parts) + Markup("</svg>")
