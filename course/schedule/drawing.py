"""A simulation as lanes: one for each rank, with what it computes, sends and holds over simulated time."""

import itertools
import math
from collections import defaultdict
from typing import Any, Protocol

from markupsafe import Markup

from course.schedule.ops import COLLECTIVES, Event
from labkit.display import svg

_WIDTH, _LEFT, _RIGHT, _TOP = 660, 46, 58, 18  # in SVG units
_BAR, _LINK, _MEMORY, _GAP = 20, 6, 16, 10  # heights: computing, messages, memory, between two lanes
_LANE = _BAR + _LINK + _MEMORY + _GAP
_LETTER = 5.6
_WAIT = "var(--lk-wait)"
_COLOURS = (svg.MAIN, svg.OK, "var(--lk-dim)")  # of computing, by the first letter of its label
_MOST_ARROWS = 120  # more than that hide what is below


class Lanes(Protocol):
    """What is drawn of a simulation; see `course.schedule.simulation.Simulated`."""

    results: list[Any]
    events: list[Event]
    held: list[list[tuple[float, float]]]

    @property
    def time(self) -> float: ...

    @property
    def memory(self) -> list[float]: ...


def drawing(run: Lanes) -> Markup:
    """Draw the lanes of a simulation as SVG."""
    axis = svg.Axis(0.0, run.time or 1.0, _LEFT, _WIDTH - _RIGHT)
    height = _TOP + _LANE * len(run.results)
    letters = dict.fromkeys(event.op.label[:1] for event in run.events if event.kind == "compute")
    colours = dict(zip(letters, itertools.cycle(_COLOURS), strict=False))
    parts = _grid(axis, height)
    for rank in range(len(run.results)):
        parts += _lane(run, rank, axis, _TOP + _LANE * rank, colours)
    parts += _arrows(run.events, axis) + _collectives(run.events, axis)
    return svg.svg(_WIDTH, height + 26, f"One lane for each rank. {run!r}", *parts, *_legend(height + 22))


def _grid(axis: svg.Axis, height: float) -> list[Markup]:
    step = next(step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1e9) if axis.high / step <= 12)
    parts = []
    for number in range(int(axis.high / step + 1e-9) + 1):
        x = axis(number * step)
        parts.append(svg.line([(x, _TOP - 4), (x, height)], width=1, opacity=0.12))
        parts.append(svg.text(x, 9, f"{number * step:g}", "middle"))
    return parts


def _lane(run: Lanes, rank: int, axis: svg.Axis, top: float, colours: dict[str, str]) -> list[Markup]:
    """Draw what a rank computes, its bubbles, what it sends (arrows show to whom) and what it holds."""
    parts = [svg.text(0, top + 14, f"rank {rank}")]
    idle_since = 0.0
    events = [event for event in run.events if event.rank == rank]
    for event in sorted(events, key=lambda event: event.begin):
        left = axis(event.begin)
        width = max(axis(event.end) - left - 1, 1)
        time = f"{event.begin:.2f} to {event.end:.2f}"
        label = event.op.label
        if event.kind == "compute":
            parts += _bubble(idle_since, event.begin, axis, top)
            idle_since = event.end
            title = f"{label or 'compute'}: {time}"
            parts.append(svg.bar(left, top, width, _BAR, colours[label[:1]], title, opacity=0.85))
            if len(label) * _LETTER + 2 <= width:
                parts.append(svg.text(left + width / 2, top + 14, label, "middle", on_bar=True))
        elif event.kind != "recv":
            title = f"{event.kind} of {event.mb:.3g} MB: {time}"
            parts.append(svg.bar(left, top + _BAR + 1, width, _LINK - 1, _WAIT, title))
    parts += _bubble(idle_since, run.time, axis, top)
    return parts + _memory(run, rank, axis, top + _LANE - _GAP)


def _bubble(begin: float, end: float, axis: svg.Axis, top: float) -> list[Markup]:
    if end - begin <= 1e-9:
        return []
    title = f"doesn't compute: {begin:.2f} to {end:.2f}"
    return [_shaded(axis(begin), axis(end) - 1, top, _BAR, title)]


def _shaded(left: float, right: float, top: float, height: float, title: str) -> Markup:
    """Draw a bar with slanted lines, which show it without a colour."""
    parts = svg.bar(left, top, max(right - left, 1), height, "currentColor", title, opacity=0.1)
    for number in range(int((right - left) / 8)):
        x = left + 8 * number
        parts += svg.line([(x, top + height), (x + 8, top)], width=1, opacity=0.25)
    return parts


def _memory(run: Lanes, rank: int, axis: svg.Axis, bottom: float) -> list[Markup]:
    """Draw a step line of the megabytes that a rank holds; all ranks have one scale."""
    scale = (_MEMORY - 2) / (max(run.memory) or 1.0)
    points = []
    y = bottom
    for now, mb in run.held[rank]:
        points.append((axis(now), y))
        y = bottom - scale * mb
        points.append((axis(now), y))
    points.append((axis(run.time), y))
    base = svg.line([(axis(0), bottom), (axis(run.time), bottom)], width=1, opacity=0.2)
    most = svg.text(axis(run.time) + 4, bottom, f"{run.memory[rank]:.3g} MB")
    return [base, svg.line(points, width=1.2, opacity=0.65), most]


def _arrows(events: list[Event], axis: svg.Axis) -> list[Markup]:
    """Draw an arrow from each sender's lane to its receiver's."""
    sends = [event for event in events if event.kind == "send"]
    if len(sends) > _MOST_ARROWS:
        return []
    parts = []
    for event in sends:
        begin_y = _TOP + _LANE * event.rank
        end_y = _TOP + _LANE * event.op.peer
        if event.op.peer < event.rank:  # upwards
            end_y += _BAR + _LINK
        else:
            begin_y += _BAR + _LINK
        parts += _arrow(axis(event.begin), begin_y, axis(event.end), end_y)
    return parts


def _arrow(begin_x: float, begin_y: float, end_x: float, end_y: float) -> list[Markup]:
    length = math.hypot(end_x - begin_x, end_y - begin_y) or 1.0
    x = (end_x - begin_x) / length
    y = (end_y - begin_y) / length
    end = (end_x, end_y)
    tails = [(begin_x, begin_y)]
    for side in (3, -3):
        tails.append((end_x - 6 * x - side * y, end_y - 6 * y + side * x))
    # A line to the left would have a gap: `svg.line` begins a new one there.
    return [svg.line(sorted([tail, end]), _WAIT, width=1.4) for tail in tails]


def _collectives(events: list[Event], axis: svg.Axis) -> list[Markup]:
    """Draw a line through the lanes of each collective, where it ends."""
    ranks_of = defaultdict(list)
    for event in events:
        if event.kind in COLLECTIVES:
            ranks_of[event.kind, event.begin, event.end].append(event.rank)
    if len(ranks_of) > _MOST_ARROWS:
        return []
    parts = []
    for (_, _, end), ranks in ranks_of.items():
        x = axis(end) - 1
        points = [(x, _TOP + _LANE * rank + _BAR + _LINK / 2) for rank in (min(ranks), max(ranks))]
        parts.append(svg.line(points, _WAIT, width=1.5, dash="3 2"))
    return parts


def _legend(y: float) -> list[Markup]:
    computes = _LEFT
    bubble = _LEFT + 92
    sends = _LEFT + 224
    holds = _LEFT + 300
    return [
        svg.bar(computes, y - 9, 22, 10, svg.MAIN, "computing", opacity=0.85),
        svg.text(computes + 27, y, "computes"),
        _shaded(bubble, bubble + 24, y - 9, 10, "bubble"),
        svg.text(bubble + 27, y, "doesn't (bubble)"),
        svg.bar(sends, y - 7, 22, 5, _WAIT, "messages"),
        svg.text(sends + 27, y, "sends"),
        svg.line([(holds, y - 1), (holds + 10, y - 1), (holds + 10, y - 7), (holds + 22, y - 7)]),
        svg.text(holds + 27, y, "holds, and the most of it"),
    ]
