"""The two figures of a panel, as SVG: curves over an axis, and bars on a time axis."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from labkit.display import svg
from labkit.display.formatting import number, plural, seconds
from labkit.panel.run import Span
from labkit.panel.shown import Curve, Plot

# Of a plot, in SVG units. Its frame has room for a legend above it and for numbers around it.
_WIDTH = 300.0
_HEIGHT = 150.0
_TOP = 22.0
_LEFT = 34.0
_BOTTOM = _HEIGHT - 28
_CHARACTER = 5.6  # mean width of a letter
_PALE = {"width": 1, "opacity": 0.4}
_LOOKS: dict[str, dict[str, Any]] = {
    "main": {"stroke": svg.MAIN},
    # Two scales can be read, three cannot.
    "second": {"stroke": svg.OK, "dash": "4 3"},
    "pale": {"stroke": svg.MAIN, **_PALE},
    "pale second": {"stroke": svg.OK, **_PALE},
    "grey": {"stroke": "currentColor", "width": 1, "opacity": 0.35},
}
_NAMED = ("main", "second")  # looks of curves whose name is shown

# Of the time axis; the panel is as many pixels wide.
_AXIS_WIDTH = 856.0
_AXIS_LEFT = 76.0
_AXIS_RIGHT = 10.0
_ROW = 22
_BAR = 14
_FILLS = {"training": svg.MAIN, "validation": svg.OK}
_BAD = ("failed", "timed out")


def plot(shown: Plot) -> Markup:
    """Draw curves with dots at their ends. Lowest and highest value are at the left, those of a second scale
    at the right. Only "main" and "second" are named, above the frame, so that no curve crosses its name."""
    named = [curve for curve in shown.curves if curve.look in _NAMED]
    right = [curve for curve in shown.curves if "second" in curve.look]
    left = [curve for curve in shown.curves if curve not in right]
    end = _WIDTH - (_LEFT if right else 8.0)
    x = svg.Axis(shown.begin, shown.end, _LEFT, end)
    frame = [
        (_LEFT, _TOP),
        (_LEFT, _BOTTOM),
        (end, _BOTTOM),
    ]
    if right:
        frame.append((end, _TOP))
    middle = (_LEFT + end) / 2
    parts = [
        svg.line(frame, width=1, opacity=0.35),
        svg.text(middle, _BOTTOM + 24, shown.label, "middle"),
    ]
    for mark in shown.marks:
        place = x(mark)
        vertical = [(place, _TOP), (place, _BOTTOM)]
        parts.append(svg.line(vertical, width=1, dash="2 3", opacity=0.3))
    if left:
        parts += _scaled(left, x, _LEFT - 4, "end")
    if right:
        parts += _scaled(right, x, end + 4, "start")
    parts += _legend(named)
    ticks = {0.0, shown.end, *shown.marks}
    parts += _ticks(x, ticks)
    label = "no metrics yet"
    if named:
        names = " and ".join(curve.name for curve in named)
        label = f"curve of {names} by {shown.label}"
    return svg.svg(_WIDTH, _HEIGHT, label, *parts)


def _scaled(
    curves: list[Curve],
    x: svg.Axis,
    place: float,
    anchor: str,
) -> list[Markup]:
    """Draw curves in one scale, and its ends."""
    low, high = _range(curves)
    y = svg.Axis(low, high, _BOTTOM, _TOP)
    parts = []
    for curve in curves:
        look = _LOOKS[curve.look]
        places = [(x(at), y(value)) for at, value in curve.points]
        last = places[-1]
        parts.append(svg.line(places, **look))
        parts.append(svg.dot(*last, **look))
    for value, at in ((high, _TOP + 4), (low, _BOTTOM)):
        parts.append(svg.text(place, at, number(value), anchor))
    return parts


def _range(curves: list[Curve]) -> tuple[float, float]:
    """Return the lowest and the highest value of a scale."""
    values = [value for curve in curves for _, value in curve.points]
    low = min(values)
    high = max(values)
    is_crowded = any(curve.look == "grey" for curve in curves)  # many lines need the room
    if not is_crowded:
        low = min(low, 0.0)
    if "accuracy" in curves[0].name and low >= 0 and high <= 1:
        return 0.0, 1.0  # a share is seen against the whole; all else gets the range that it had
    if high <= low:
        return low - 0.5, low + 0.5
    return low, high


def _legend(curves: list[Curve]) -> list[Markup]:
    parts = []
    x = _LEFT
    for curve in curves:
        sample = [(x, 8), (x + 16, 8)]
        parts.append(svg.line(sample, **_LOOKS[curve.look]))
        parts.append(svg.text(x + 20, 11.5, curve.name))
        x += 20 + len(curve.name) * _CHARACTER + 12
    return parts


def _ticks(x: svg.Axis, values: set[float]) -> list[Markup]:
    """Draw numbers below the axis; from the right, those that have room."""
    parts = []
    y = _BOTTOM + 12
    taken = _WIDTH + 50
    for value in sorted(values, reverse=True):
        text = number(value)
        place = x(value)
        half = len(text) * _CHARACTER / 2 + 3
        if place + half > taken:
            continue
        taken = place - half
        if place + half > _WIDTH:
            parts.append(svg.text(_WIDTH, y, text, "end"))
        else:
            parts.append(svg.text(place, y, text, "middle"))
    return parts


def timeline(spans: Sequence[Span]) -> Markup:
    """Draw training and validations on one time axis: what overlaps, and what failed."""
    begin = min(span.begin for span in spans)
    end = max(span.end for span in spans)
    end = max(end, begin + 0.1)
    axis = svg.Axis(begin, end, _AXIS_LEFT, _AXIS_WIDTH - _AXIS_RIGHT)
    bars = []
    counts = []
    top = 0
    for row in _FILLS:
        of_row = [span for span in spans if span.row == row]
        if not of_row:
            continue
        bars.append(svg.text(0, top + 15, row))
        for span in of_row:
            bars += _bar(axis, span, top)
        counts.append(plural(len(of_row), row))
        top += _ROW
    grid = axis.time_grid(top)
    label = f"time axis of {' and '.join(counts)}"
    return svg.svg(_AXIS_WIDTH, top + 20, label, grid, *bars)


def _bar(axis: svg.Axis, span: Span, top: float) -> list[Markup]:
    """Draw a bar with the number of its epoch. What went wrong is written there, too."""
    is_bad = span.status in _BAD
    left = axis(span.begin)
    width = max(axis(span.end) - left - 1.5, 1.5)  # a little short: a gap between neighbours
    title = f"{span.row} {span.label}".strip()
    title += f": {seconds(span.end - span.begin)}"
    if span.status:
        title += f", {span.status}"
    fill = svg.BAD if is_bad else _FILLS[span.row]
    bar = svg.bar(left, top + 4, width, _BAR, fill, title)
    parts = [bar]
    label = f"✕ {span.label}" if is_bad else span.label
    y = top + 15
    if len(label) * 6.5 + 4 <= width:
        parts.append(svg.text(left + width / 2, y, label, "middle", on_bar=True))
    elif is_bad and left < _AXIS_WIDTH - 120:
        parts.append(svg.text(left + width + 3, y, label))
    elif is_bad:
        parts.append(svg.text(left - 3, y, label, "end"))
    return parts
