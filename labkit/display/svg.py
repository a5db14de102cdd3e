"""Lines, bars, axes and words as SVG, for all figures that a panel draws live; and a time axis of tasks.

matplotlib would cost a sixth of a core at five drawings per second, and a chart in JavaScript is lost in an
export. Colours are the CSS variables of `labkit.display.cards`, so figures follow JupyterLab's theme.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from labkit.display import cards, formatting
from labkit.display.formatting import plural
from labkit.errors import LabError

MAIN, OK, BAD = "var(--lk-main)", "var(--lk-ok)", "var(--lk-bad)"
Points = Sequence[tuple[float, float]]

_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600)  # seconds


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


def dot(x: float, y: float, *, stroke: str, opacity: float = 1, **_: object) -> Markup:
    """A dot at the end of a line that has this look."""
    return _tag("circle", cx=x, cy=y, r=2.5, fill=stroke, opacity=opacity)


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
    return Markup(f"<{name}{given}>{Markup().join(content)}</{name}>")


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
        return Markup("".join(parts))


_WIDTH, _LEFT, _RIGHT, _ROW = 640, 110, 16, 20  # in SVG units


class Timeline:
    """When each of several tasks ran, and where: bars, one row for each worker process; shows itself.

        >>> Timeline([{"node": "head", "pid": 7, "begin": 0.0, "end": 1.0},
        ...           {"node": "head", "pid": 7, "begin": 1.0, "end": 2.0}])
        2 tasks on 1 worker, at most 1 at once, 2.0 s

    Tasks report their own begin and end (``time.time()``), so the clocks of a cluster's machines must agree.

    Args:
        spans: one dict for each task, with "node", "pid", "begin" and "end" (seconds); others are ignored.
    """

    def __init__(self, spans: Sequence[dict[str, Any]]) -> None:
        try:
            self._spans = sorted((s["begin"], s["end"], s["node"], s["pid"]) for s in spans)
        except (TypeError, KeyError):
            fact = f"a list of dicts with node, pid, begin and end is expected, not {spans!r:.80}"
            fix = "Timeline(ray.get([task.remote() for _ in range(4)]))"
            raise LabError("draw a timeline", fact, fix) from None
        self._workers = sorted({span[2:] for span in self._spans})
        self._zero = min((begin for begin, *_ in self._spans), default=0.0)
        self.seconds = max((end for _, end, *_ in self._spans), default=0.0) - self._zero

    @property
    def at_once(self) -> int:
        """The most tasks that ran at one moment."""
        edges = sorted(edge for begin, end, *_ in self._spans for edge in ((begin, 1), (end, -1)))
        return max(itertools.accumulate(change for _, change in edges), default=0)

    def __repr__(self) -> str:
        nodes = Counter(node for _, _, node, _ in self._spans)
        listed = ", ".join(f"{node} {count}" for node, count in sorted(nodes.items()))
        where = plural(len(self._workers), "worker") + (f" ({listed})" if len(nodes) > 1 else "")
        tasks = plural(len(self._spans), "task")
        return f"{tasks} on {where}, at most {self.at_once} at once, {self.seconds:.1f} s"

    def _repr_html_(self) -> str:
        bottom, axis = _ROW * len(self._workers), Axis(0.0, self.seconds, _LEFT, _WIDTH - _RIGHT)
        parts = [axis.time_grid(bottom)]
        for row, (node, pid) in enumerate(self._workers):
            parts.append(text(0, row * _ROW + 14, f"{node} · {pid}"))
        for begin, end, *worker in self._spans:
            left, right = axis(begin - self._zero), axis(end - self._zero)
            top, width = self._workers.index(tuple(worker)) * _ROW + 3, max(right - left - 1.5, 1)
            parts.append(bar(left, top, width, _ROW - 6, MAIN, f"{end - begin:.2f} s", opacity=0.75))
        return str(cards.figure(repr(self), svg(_WIDTH, bottom + 24, repr(self), *parts)))
