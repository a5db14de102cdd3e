"""Lines, bars, axes and texts as SVG, for all figures that a panel draws live.

matplotlib would cost a sixth of a core at five drawings per second, and a chart in JavaScript is lost in an
export. Colours are the CSS variables of `labkit.display.cards`, so figures follow JupyterLab's theme.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from labkit.display import formatting

MAIN, OK, BAD = "var(--lk-main)", "var(--lk-ok)", "var(--lk-bad)"
Points = Sequence[tuple[float, float]]

_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600)  # seconds


def svg(width: float, height: float, label: str, *parts: str) -> Markup:
    """Draw a figure; `label` is what a screen reader says."""
    view_box = f"0 0 {width:g} {height:g}"
    return _tag("svg", *parts, viewBox=view_box, role="img", aria_label=label)


def text(
    x: float,
    y: float,
    content: str,
    anchor: str = "start",
    *,
    on_bar: bool = False,
) -> Markup:
    """Draw a text at a place; `anchor` is "start", "middle" or "end"."""
    return _tag(
        "text",
        content,
        x=x,
        y=y,
        text_anchor=anchor,
        class_="lk-on" if on_bar else None,
    )


def line(
    points: Points,
    stroke: str = "currentColor",
    *,
    width: float = 2,
    dash: str = "",
    opacity: float = 1,
) -> Markup:
    """Draw a line through points. Where x goes back (a trial that went back to a checkpoint), it's broken."""
    path = []
    last_x = math.inf
    for x, y in points:
        path.append(f"{'L' if x >= last_x else 'M'}{x:.1f} {y:.1f}")
        last_x = x
    return _tag(
        "path",
        d="".join(path),
        stroke=stroke,
        stroke_width=width,
        opacity=opacity,
        fill="none",
        stroke_linejoin="round",
        stroke_dasharray=dash or None,
    )


def dot(x: float, y: float, *, stroke: str, opacity: float = 1, **_: object) -> Markup:
    """Draw a dot at the end of a line that has this look."""
    return _tag("circle", cx=x, cy=y, r=2.5, fill=stroke, opacity=opacity)


def bar(
    x: float,
    y: float,
    width: float,
    height: float,
    fill: str,
    title: str,
    *,
    opacity: float = 1,
) -> Markup:
    """Draw a rectangle; `title` is what the pointer shows."""
    return _tag(
        "rect",
        _tag("title", title),
        x=x,
        y=y,
        width=width,
        height=height,
        rx=2,
        fill=fill,
        opacity=opacity,
    )


def _tag(name: str, *content: str, **attributes: object) -> Markup:
    """Write an element. ``stroke_width`` is the attribute ``stroke-width``; None leaves one out."""
    written = ""
    for key, value in attributes.items():
        if value is None:
            continue
        if isinstance(value, float):
            value = round(value, 1)
        # Escaped by hand: Markup.format() takes ten times as long, and a panel is drawn often.
        attribute = key.rstrip("_").replace("_", "-")
        written += f' {attribute}="{escape(value)}"'
    return Markup(f"<{name}{written}>{Markup().join(content)}</{name}>")


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` on the stretch from `begin` to `end`, in SVG units."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the place of a value; one outside of the axis is at its end."""
        values = (self.high - self.low) or 1.0
        share = (value - self.low) / values
        share = min(max(share, 0.0), 1.0)
        return self.begin + share * (self.end - self.begin)

    def time_grid(self, bottom: float) -> Markup:
        """Draw vertical lines at round seconds since `low`, with their labels below."""
        seconds = self.high - self.low
        step = next((tick for tick in _TICKS if seconds / tick <= 10), seconds / 5 or 1.0)
        last = int(seconds / step + 1e-9)
        parts = []
        for number in range(last + 1):
            elapsed = number * step
            x = self(self.low + elapsed)
            parts.append(line([(x, 0), (x, bottom)], width=1, opacity=0.15))
            label = formatting.clock(elapsed) if step >= 60 else f"{elapsed:g} s"
            anchor = "end" if x > self.end - 20 else "middle"
            parts.append(text(x, bottom + 14, label, anchor))
        return Markup("".join(parts))
