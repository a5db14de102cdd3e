"""A simulation as lanes: one for each rank, with what it computes, sends and holds over simulated time."""

import itertools
from typing import TYPE_CHECKING

from markupsafe import Markup

from course.schedule.ops import COLLECTIVES
from labkit.display import svg

if TYPE_CHECKING:
    from course.schedule.simulation import Event, Simulated

_WIDTH, _LEFT, _RIGHT, _TOP = 660, 46, 58, 18  # in SVG units
_BAR, _LINK, _MEMORY, _GAP = 20, 6, 16, 10  # heights: computing, messages, memory, between two lanes
_LANE = _BAR + _LINK + _MEMORY + _GAP
_LETTER = 5.6
_WAIT = "var(--lk-wait)"
_COLOURS = (svg.MAIN, svg.OK, "var(--lk-dim)")  # of computing, by the first letter of its label
_MOST_ARROWS = 120  # more than that hide what is below


def drawing(run: "Simulated") -> Markup:
    """The lanes of a simulation, as SVG."""
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


def _lane(run: "Simulated", rank: int, axis: svg.Axis, top: float, colours: dict[str, str]) -> list[Markup]:
    """What a rank computes, when it doesn't (bubbles), what it sends (arrows show to whom) and holds."""
    parts, free = [svg.text(0, top + 14, f"rank {rank}")], 0.0  # free: since when it doesn't compute
    for event in sorted((one for one in run.events if one.rank == rank), key=lambda one: one.begin):
        left, width = axis(event.begin), max(axis(event.end) - axis(event.begin) - 1, 1)
        when, label = f"{event.begin:.2f} to {event.end:.2f}", event.op.label
        if event.kind == "compute":
            parts += _bubble(free, event.begin, axis, top)
            title, free = f"{label or 'compute'}: {when}", event.end
            parts.append(svg.bar(left, top, width, _BAR, colours[label[:1]], title, opacity=0.85))
            if len(label) * _LETTER + 2 <= width:
                parts.append(svg.text(left + width / 2, top + 14, label, "middle", on_bar=True))
        elif event.kind != "recv":
            title = f"{event.kind} of {event.mb:.3g} MB: {when}"
            parts.append(svg.bar(left, top + _BAR + 1, width, _LINK - 1, _WAIT, title))
    parts += _bubble(free, run.time, axis, top)
    return parts + _memory(run, rank, axis, top + _LANE - _GAP)


def _bubble(begin: float, end: float, axis: svg.Axis, top: float) -> list[Markup]:
    if end - begin <= 1e-9:
        return []
    title = f"doesn't compute: {begin:.2f} to {end:.2f}"
    return [_shaded(axis(begin), axis(end) - 1, top, _BAR, title)]


def _shaded(left: float, right: float, top: float, height: float, title: str) -> Markup:
    """A bar with slanted lines, which show it without a colour."""
    parts = svg.bar(left, top, max(right - left, 1), height, "currentColor", title, opacity=0.1)
    for number in range(int((right - left) / 8)):
        x = left + 8 * number
        parts += svg.line([(x, top + height), (x + 8, top)], width=1, opacity=0.25)
    return parts


def _memory(run: "Simulated", rank: int, axis: svg.Axis, bottom: float) -> list[Markup]:
    """A step line of the megabytes that a rank holds; all ranks have one scale."""
    most, points, y = max(run.memory) or 1.0, [], bottom
    for now, mb in run.held[rank]:
        points.append((axis(now), y))
        y = bottom - (_MEMORY - 2) * mb / most
        points.append((axis(now), y))
    points.append((axis(run.time), y))
    base = svg.line([(axis(0), bottom), (axis(run.time), bottom)], width=1, opacity=0.2)
    words = svg.text(axis(run.time) + 4, bottom, f"{run.memory[rank]:.3g} MB")
    return [base, svg.line(points, width=1.2, opacity=0.65), words]


def _arrows(events: list["Event"], axis: svg.Axis) -> list[Markup]:
    """From a sender's lane to its receiver's."""
    sends = [event for event in events if event.kind == "send"]
    parts = []
    for event in sends if len(sends) <= _MOST_ARROWS else ():
        up = event.op.peer < event.rank
        begin = (axis(event.begin), _TOP + _LANE * event.rank + (0 if up else _BAR + _LINK))
        end = (axis(event.end), _TOP + _LANE * event.op.peer + (_BAR + _LINK if up else 0))
        length = ((end[0] - begin[0]) ** 2 + (end[1] - begin[1]) ** 2) ** 0.5 or 1.0
        x, y = ((end[i] - begin[i]) / length for i in (0, 1))
        wings = [(end[0] - 6 * x - 3 * s * y, end[1] - 6 * y + 3 * s * x) for s in (1, -1)]
        parts += [svg.line(sorted([point, end]), _WAIT, width=1.4) for point in (begin, *wings)]
    return parts


def _collectives(events: list["Event"], axis: svg.Axis) -> list[Markup]:
    """A line through the lanes of each collective, when it ends."""
    together: dict[tuple[str, float, float], list[int]] = {}
    for event in (one for one in events if one.kind in COLLECTIVES):
        together.setdefault((event.kind, event.begin, event.end), []).append(event.rank)
    parts = []
    for (_, _, at), ranks in together.items() if len(together) <= _MOST_ARROWS else ():
        low, high = (_TOP + _LANE * one + _BAR + _LINK / 2 for one in (min(ranks), max(ranks)))
        parts.append(svg.line([(axis(at) - 1, low), (axis(at) - 1, high)], _WAIT, width=1.5, dash="3 2"))
    return parts


def _legend(y: float) -> list[Markup]:
    left = [_LEFT, _LEFT + 92, _LEFT + 224, _LEFT + 300]
    words = ("computes", "doesn't (bubble)", "sends", "holds, and the most of it")
    step = [(left[3], y - 1), (left[3] + 10, y - 1), (left[3] + 10, y - 7), (left[3] + 22, y - 7)]
    return [
        svg.bar(left[0], y - 9, 22, 10, svg.MAIN, "computing", opacity=0.85),
        _shaded(left[1], left[1] + 24, y - 9, 10, "bubble"),
        svg.bar(left[2], y - 7, 22, 5, _WAIT, "messages"),
        svg.line(step),
        *(svg.text(x + 27, y, word) for x, word in zip(left, words, strict=True)),
    ]
