"""Lines, bars, axes and words as SVG: one set for all figures that a panel draws live.

matplotlib would cost a sixth of a core at five drawings per second, and a chart in JavaScript is lost in an
export. Colours are the CSS variables of `labkit.display.style`, so figures follow JupyterLab's theme.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from labkit.display import formatting
from labkit.display.cards import join

MAIN, OK, BAD = "var(--lk-main)", "var(--lk-ok)", "var(--lk-bad)"
Points = Sequence[tuple[float, float]]

_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600)  # seconds
_CHARACTER = 5.6  # mean width of a letter, in SVG units


def svg(width: float, height: float, label: str, *parts: str) -> Markup:
    """The figure; `label` is what a screen reader says."""
    return _tag("svg", *parts, viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label)


def text(x: float, y: float, words: str, anchor: str = "start", *, on_bar: bool = False) -> Markup:
    """Words at a place; `anchor` is "start", "middle" or "end"."""
    return _tag("text", words, x=x, y=y, text_anchor=anchor, class_="lk-on" if on_bar else None)


def line(
    points: Points, stroke: str = "currentColor", *, width: float = 2, dash: str = "", opacity: float = 1
) -> Markup:
    """A line through points. Where x goes back (a trial that went back to a checkpoint), a new one begins."""
    moves = ["M", *("L" if after[0] >= before[0] else "M" for before, after in itertools.pairwise(points))]
    path = "".join(f"{move}{x:.1f} {y:.1f}" for move, (x, y) in zip(moves, points, strict=True))
    look = {"fill": "none", "stroke_linejoin": "round", "stroke_dasharray": dash or None}
    return _tag("path", d=path, stroke=stroke, stroke_width=width, opacity=opacity, **look)


def bar(
    x: float, y: float, width: float, height: float, fill: str, title: str, *, opacity: float = 1
) -> Markup:
    """A rectangle; `title` is what the pointer shows."""
    place = {"x": x, "y": y, "width": width, "height": height, "rx": 2}
    return _tag("rect", _tag("title", title), **place, fill=fill, opacity=opacity)


def _tag(name: str, *content: str, **attributes: object) -> Markup:
    """An element. ``stroke_width`` is the attribute ``stroke-width``; None leaves one out."""
    given = ""
    for key, value in attributes.items():
        if value is not None:
            value = round(value, 1) if isinstance(value, float) else value
            # Escaped by hand: Markup.format() takes ten times as long, and a panel is drawn often.
            given += f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"'
    return Markup(f"<{name}{given}>{join(content)}</{name}>")


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` on the stretch from `begin` to `end`, in SVG units."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        """The place of a value; one outside of the axis is at its end."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.begin + min(max(share, 0.0), 1.0) * (self.end - self.begin)

    def time_grid(self, bottom: float) -> Markup:
        """Vertical lines at round seconds since `low`, with their labels below."""
        seconds = self.high - self.low
        step = next((tick for tick in _TICKS if seconds / tick <= 10), seconds / 5 or 1.0)
        parts = []
        for number in range(int(seconds / step + 1e-9) + 1):
            x, at = self(self.low + number * step), number * step
            words = formatting.clock(at) if step >= 60 else f"{at:g} s"
            parts.append(line([(x, 0), (x, bottom)], width=1, opacity=0.15))
            parts.append(text(x, bottom + 14, words, "end" if x > self.end - 20 else "middle"))
        return join(parts)


class Plot:
    """A frame with axes for lines: the lowest and the highest value are at the left.

    Args:
        x, y: (low, high) of the axes.
        right: (low, high) of a second scale, at the right.
        label: below the x axis.
    """

    width, height, _top, _left = 300.0, 150.0, 22.0, 34.0
    _bottom = height - 28  # of the frame

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float] | None,
        *,
        right: tuple[float, float] | None = None,
        label: str = "",
    ) -> None:
        left, end = self._left, self.width - (self._left if right else 8.0)
        self.x, self.y, self.right = Axis(*x, left, end), self._scale(y), self._scale(right)
        corners = [(left, self._top), (left, self._bottom), (end, self._bottom), (end, self._top)]
        frame = line(corners if right else corners[:3], width=1, opacity=0.35)
        self._parts = [text((left + end) / 2, self._bottom + 24, label, "middle"), frame]
        for axis, place, anchor in ((self.y, left - 4, "end"), (self.right, end + 4, "start")):
            if axis is not None:
                self._parts.append(text(place, self._top + 4, formatting.number(axis.high), anchor))
                self._parts.append(text(place, self._bottom, formatting.number(axis.low), anchor))

    def _scale(self, values: tuple[float, float] | None) -> Axis | None:
        if values is None:
            return None
        low, high = values if values[1] > values[0] else (values[0] - 0.5, values[0] + 0.5)
        return Axis(low, high, self._bottom, self._top)

    def curve(self, points: Points, stroke: str, *, right: bool = False, **look: float | str) -> None:
        """A line through (x, y) values, with a dot at its end."""
        axis = self.right if right else self.y
        places = [(self.x(x), axis(y)) for x, y in points]
        x, y = places[-1]
        dot = _tag("circle", cx=x, cy=y, r=2.5, fill=stroke, opacity=look.get("opacity", 1))
        self._parts += [line(places, stroke, **look), dot]

    def vertical(self, x: float) -> None:
        """A dotted line over the whole height."""
        ends = [(self.x(x), self._top), (self.x(x), self._bottom)]
        self._parts.append(line(ends, width=1, dash="2 3", opacity=0.3))

    def ticks(self, values: Iterable[tuple[float, str]]) -> None:
        """(value, words) below the x axis; from the right, those that have room."""
        taken = self.width + 50
        for value, words in sorted(values, reverse=True):
            place, half = self.x(value), len(words) * _CHARACTER / 2 + 3
            if place + half <= taken:
                at_end = place + half > self.width
                x, anchor = (self.width, "end") if at_end else (place, "middle")
                self._parts.append(text(x, self._bottom + 12, words, anchor))
                taken = place - half

    def legend(self, entries: Iterable[tuple[str, str, str]]) -> None:
        """(words, stroke, dash) above the frame, so that no curve crosses its name."""
        x = self._left
        for words, stroke, dash in entries:
            self._parts += [line([(x, 8), (x + 16, 8)], stroke, dash=dash), text(x + 20, 11.5, words)]
            x += 20 + len(words) * _CHARACTER + 12

    def svg(self, label: str) -> Markup:
        """The figure."""
        return svg(self.width, self.height, label, *self._parts)
