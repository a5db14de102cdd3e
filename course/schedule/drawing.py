"""A simulation as lanes: one for each rank, with what it computes, sends and holds over simulated time."""

import itertools
import math
from collections import defaultdict
from typing import TYPE_CHECKING

from markupsafe import Markup

from course.schedule.ops import COLLECTIVES, Event
from labkit.display import svg

if TYPE_CHECKING:
    from course.schedule.simulation import Simulated

# All in SVG units.
_WIDTH = 660
_LEFT = 46
_RIGHT = 58
_TOP = 18
_BAR = 20  # the height of computing
_LINK = 6  # of messages
_MEMORY = 16
_GAP = 10  # between two lanes
_LANE = _BAR + _LINK + _MEMORY + _GAP
_LETTER = 5.6
_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1e9)  # units of time

_WAIT = "var(--lk-wait)"
_COLOURS = (svg.MAIN, svg.OK, "var(--lk-dim)")  # of computing, by the first letter of its label
_MOST_ARROWS = 120  # more than that hide what is below


def drawing(run: "Simulated") -> Markup:
    """Draw the lanes of a simulation as SVG."""
    axis = svg.Axis(0.0, run.time or 1.0, _LEFT, _WIDTH - _RIGHT)
    world = len(run.results)
    height = _top_of(world)
    letters = dict.fromkeys(event.op.label[:1] for event in run.events if event.kind == "compute")
    colours = dict(zip(letters, itertools.cycle(_COLOURS), strict=False))
    parts = _grid(axis, height)
    for rank in range(world):
        parts += _lane(run, rank, axis, colours)
    parts += _arrows(run.events, axis)
    parts += _collectives(run.events, axis)
    return svg.svg(
        _WIDTH,
        height + 26,
        f"One lane for each rank. {run!r}",
        *parts,
        *_legend(height + 22),
    )


def _top_of(rank: int) -> int:
    """Return where the lane of a rank begins."""
    return _TOP + _LANE * rank


def _grid(axis: svg.Axis, height: float) -> list[Markup]:
    step = next(tick for tick in _TICKS if axis.high / tick <= 12)
    parts = []
    for number in range(int(axis.high / step + 1e-9) + 1):
        x = axis(number * step)
        parts.append(svg.line([(x, _TOP - 4), (x, height)], width=1, opacity=0.12))
        parts.append(svg.text(x, 9, f"{number * step:g}", "middle"))
    return parts


def _lane(
    run: "Simulated",
    rank: int,
    axis: svg.Axis,
    colours: dict[str, str],
) -> list[Markup]:
    """Draw what a rank computes, its bubbles, what it sends (arrows show to whom) and what it holds."""
    top = _top_of(rank)
    parts = [svg.text(0, top + 14, f"rank {rank}")]
    idle_since = 0.0
    events = [event for event in run.events if event.rank == rank]
    events.sort(key=lambda event: event.begin)
    for event in events:
        if event.kind == "recv":
            continue
        left = axis(event.begin)
        width = max(axis(event.end) - left - 1, 1)
        time = f"{event.begin:.2f} to {event.end:.2f}"
        if event.kind != "compute":
            bar = svg.bar(
                left,
                top + _BAR + 1,
                width,
                _LINK - 1,
                _WAIT,
                f"{event.kind} of {event.mb:.3g} MB: {time}",
            )
            parts.append(bar)
            continue
        parts += _bubble(idle_since, event.begin, axis, top)
        idle_since = event.end
        label = event.op.label
        bar = svg.bar(
            left,
            top,
            width,
            _BAR,
            colours[label[:1]],
            f"{label or 'compute'}: {time}",
            opacity=0.85,
        )
        parts.append(bar)
        if len(label) * _LETTER + 2 <= width:
            middle = left + width / 2
            parts.append(svg.text(middle, top + 14, label, "middle", on_bar=True))
    parts += _bubble(idle_since, run.time, axis, top)
    parts += _memory(run, rank, axis, top + _LANE - _GAP)
    return parts


def _bubble(begin: float, end: float, axis: svg.Axis, top: float) -> list[Markup]:
    if end - begin <= 1e-9:
        return []
    title = f"doesn't compute: {begin:.2f} to {end:.2f}"
    return [_shaded(axis(begin), axis(end) - 1, top, _BAR, title)]


def _shaded(
    left: float,
    right: float,
    top: float,
    height: float,
    title: str,
) -> Markup:
    """Draw a bar with slanted lines, which show it without a colour."""
    width = right - left
    parts = svg.bar(
        left,
        top,
        max(width, 1),
        height,
        "currentColor",
        title,
        opacity=0.1,
    )
    for number in range(int(width / 8)):
        x = left + 8 * number
        slanted = [(x, top + height), (x + 8, top)]
        parts += svg.line(slanted, width=1, opacity=0.25)
    return parts


def _memory(run: "Simulated", rank: int, axis: svg.Axis, bottom: float) -> list[Markup]:
    """Draw a step line of the megabytes that a rank holds; all ranks have one scale."""
    scale = (_MEMORY - 2) / (max(run.memory) or 1.0)
    points = []
    y = bottom
    for now, mb in run.held[rank]:
        x = axis(now)
        points.append((x, y))
        y = bottom - scale * mb
        points.append((x, y))
    end = axis(run.time)
    points.append((end, y))
    return [
        svg.line([(axis(0), bottom), (end, bottom)], width=1, opacity=0.2),
        svg.line(points, width=1.2, opacity=0.65),
        svg.text(end + 4, bottom, f"{run.memory[rank]:.3g} MB"),
    ]


def _arrows(events: list[Event], axis: svg.Axis) -> list[Markup]:
    """Draw an arrow from each sender's lane to its receiver's."""
    sends = [event for event in events if event.kind == "send"]
    if len(sends) > _MOST_ARROWS:
        return []
    parts = []
    for event in sends:
        begin_y = _top_of(event.rank)
        end_y = _top_of(event.op.peer)
        if begin_y > end_y:  # upwards
            end_y += _BAR + _LINK
        else:
            begin_y += _BAR + _LINK
        parts += _arrow(axis(event.begin), begin_y, axis(event.end), end_y)
    return parts


def _arrow(begin_x: float, begin_y: float, end_x: float, end_y: float) -> list[Markup]:
    length = math.hypot(end_x - begin_x, end_y - begin_y) or 1.0
    x = (end_x - begin_x) / length
    y = (end_y - begin_y) / length
    tails = [(begin_x, begin_y)]
    for side in (3, -3):
        tail_x = end_x - 6 * x - side * y
        tail_y = end_y - 6 * y + side * x
        tails.append((tail_x, tail_y))
    end = (end_x, end_y)
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
        points = [(x, _top_of(rank) + _BAR + _LINK / 2) for rank in (min(ranks), max(ranks))]
        parts.append(svg.line(points, _WAIT, width=1.5, dash="3 2"))
    return parts


def _legend(y: float) -> list[Markup]:
    computes = _LEFT
    bubble = _LEFT + 92
    sends = _LEFT + 224
    holds = _LEFT + 300
    step = [
        (holds, y - 1),
        (holds + 10, y - 1),
        (holds + 10, y - 7),
        (holds + 22, y - 7),
    ]
    return [
        svg.bar(computes, y - 9, 22, 10, svg.MAIN, "computing", opacity=0.85),
        svg.text(computes + 27, y, "computes"),
        _shaded(bubble, bubble + 24, y - 9, 10, "bubble"),
        svg.text(bubble + 27, y, "doesn't (bubble)"),
        svg.bar(sends, y - 7, 22, 5, _WAIT, "messages"),
        svg.text(sends + 27, y, "sends"),
        svg.line(step),
        svg.text(holds + 27, y, "holds, and the most of it"),
    ]
