"""Lines, bars, axes and words as SVG: one set for all figures that a panel draws live.

matplotlib would cost a sixth of a core at five drawings per second, and a chart in JavaScript is lost in an
export. Colours are the CSS variables of `labkit.display.style`, so figures follow JupyterLab's theme.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from labkit.display import formatting
from labkit.display.cards import NOTHING, join

MAIN, OK, WAIT, BAD = "var(--lk-main)", "var(--lk-ok)", "var(--lk-wait)", "var(--lk-bad)"
Points = Sequence[tuple[float, float]]

_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600)  # seconds
_CHARACTER = 5.6  # mean width of a letter, in SVG units


def svg(width: float, height: float, label: str, *parts: str) -> Markup:
    """The figure; `label` is what a screen reader says."""
    return Markup('<svg viewBox="0 0 {:g} {:g}" role="img" aria-label="{}">{}</svg>').format(
        width, height, label, join(parts)
    )


def text(x: float, y: float, words: str, anchor: str = "start", *, on_bar: bool = False) -> Markup:
    """Words at a place; `anchor` is "start", "middle" or "end"."""
    kind = Markup(' class="lk-on"') if on_bar else NOTHING
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}"{}>{}</text>').format(
        x, y, anchor, kind, words
    )


def line(
    points: Points, stroke: str = "currentColor", *, width: float = 2, dash: str = "", opacity: float = 1
) -> Markup:
    """A line through points. Where x goes back (a trial that went back to a checkpoint), a new one begins."""
    moves = ["M", *("L" if after[0] >= before[0] else "M" for before, after in itertools.pairwise(points))]
    path = "".join(f"{move}{x:.1f} {y:.1f}" for move, (x, y) in zip(moves, points, strict=False))
    return Markup(
        '<path d="{}" fill="none" stroke="{}" stroke-width="{:g}" stroke-linejoin="round"{}{}/>'
    ).format(path, stroke, width, _dash(dash), _opacity(opacity))


def dot(x: float, y: float, fill: str, *, radius: float = 2.5, opacity: float = 1) -> Markup:
    """A point."""
    return Markup('<circle cx="{:.1f}" cy="{:.1f}" r="{:g}" fill="{}"{}/>').format(
        x, y, radius, fill, _opacity(opacity)
    )


def bar(
    x: float, y: float, width: float, height: float, fill: str, title: str, *, opacity: float = 1
) -> Markup:
    """A rectangle; `title` is what the pointer shows."""
    return Markup(
        '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:g}" rx="2" fill="{}"{}><title>{}</title></rect>'
    ).format(x, y, width, height, fill, _opacity(opacity), title)


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

    def time_grid(self, bottom: float, *, most: int = 10) -> Markup:
        """Vertical lines at round seconds since `low`, with their labels below."""
        seconds = self.high - self.low
        step = next((tick for tick in _TICKS if seconds / tick <= most), seconds / 5 or 1.0)
        parts = []
        for number in range(int(seconds / step + 1e-9) + 1):
            x, at = self(self.low + number * step), number * step
            parts.append(line([(x, 0), (x, bottom)], width=1, opacity=0.15))
            words = formatting.clock(at) if step >= 60 else f"{at:g} s"
            parts.append(text(x, bottom + 14, words, "end" if x > self.end - 20 else "middle"))
        return join(parts)


class Plot:
    """A frame with axes for lines: the lowest and the highest value stand at the left.

    Args:
        x, y: (low, high) of the axes.
        right: (low, high) of a second scale, at the right.
        label: below the x axis.
    """

    width = 300.0

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float] | None,
        *,
        right: tuple[float, float] | None = None,
        label: str = "",
        height: float = 150,
        top: float = 22,
    ) -> None:
        self.height, self._top, self._bottom = height, top, height - 28
        self._left, self._right = 34.0, self.width - (34.0 if right else 8.0)
        self.x = Axis(*x, self._left, self._right)
        self.y = Axis(*_with_room(y), self._bottom, self._top) if y else None
        self.right = Axis(*_with_room(right), self._bottom, self._top) if right else None
        self._parts = [text((self._left + self._right) / 2, self._bottom + 24, label, "middle")]
        self._draw_frame()

    def _draw_frame(self) -> None:
        left, right, top, bottom = self._left, self._right, self._top, self._bottom
        corners = [(left, top), (left, bottom), (right, bottom)] + [(right, top)] * bool(self.right)
        self.add(line(corners, width=1, opacity=0.35))
        for axis, place, anchor in ((self.y, left - 4, "end"), (self.right, right + 4, "start")):
            if axis is not None:
                self.add(text(place, top + 4, formatting.number(axis.high), anchor))
                self.add(text(place, bottom, formatting.number(axis.low), anchor))

    def add(self, *parts: str) -> None:
        """Put parts made by this module on top."""
        self._parts += parts

    def curve(self, points: Points, stroke: str, *, right: bool = False, **look: float | str) -> None:
        """A line through (x, y) values, with a dot at its end."""
        axis = self.right if right else self.y
        places = [(self.x(x), axis(y)) for x, y in points]
        if len(places) > 1:
            self.add(line(places, stroke, **look))
        self.add(dot(*places[-1], stroke, opacity=float(look.get("opacity", 1))))

    def vertical(self, x: float) -> None:
        """A dotted line over the whole height."""
        place = self.x(x)
        self.add(line([(place, self._top), (place, self._bottom)], width=1, dash="2 3", opacity=0.3))

    def ticks(self, values: Iterable[tuple[float, str]]) -> None:
        """(value, words) below the x axis; from the right, those that have room."""
        taken = self.width + 50
        for value, words in sorted(values, reverse=True):
            place, half = self.x(value), len(words) * _CHARACTER / 2 + 3
            if place + half <= taken:
                anchor = "end" if place + half > self.width else "middle"
                self.add(text(self.width if anchor == "end" else place, self._bottom + 12, words, anchor))
                taken = place - half

    def legend(self, entries: Iterable[tuple[str, str, str]]) -> None:
        """(words, stroke, dash) above the frame, so that no curve crosses its name."""
        x = self._left
        for words, stroke, dash in entries:
            self.add(line([(x, 8), (x + 16, 8)], stroke, dash=dash), text(x + 20, 11.5, words))
            x += 20 + len(words) * _CHARACTER + 12

    def svg(self, label: str) -> Markup:
        """The figure."""
        return svg(self.width, self.height, label, *self._parts)


def _with_room(values: tuple[float, float]) -> tuple[float, float]:
    low, high = values
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _dash(dash: str) -> Markup:
    return Markup(' stroke-dasharray="{}"').format(dash) if dash else NOTHING


def _opacity(opacity: float) -> Markup:
    return Markup(' opacity="{:g}"').format(opacity) if opacity != 1 else NOTHING
