"""A simulation as lanes: one for each rank, with what it computes, sends and holds over simulated time."""

from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from labkit.display import svg

if TYPE_CHECKING:
    from labkit.schedule.simulation import Event, Simulated

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
    colours: dict[str, str] = {}
    parts = [_grid(axis, height)]
    most = max(run.memory) or 1.0
    for rank in range(len(run.results)):
        parts += _lane(run, rank, axis, colours, most)
    parts += _arrows(run.events, axis)
    return svg.svg(_WIDTH, height + 26, f"One lane for each rank. {run!r}", *parts, *_legend(height + 22))


def _grid(axis: svg.Axis, height: float) -> Markup:
    step = next(step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1e9) if axis.high / step <= 12)
    parts = []
    for number in range(int(axis.high / step + 1e-9) + 1):
        x = axis(number * step)
        parts.append(svg.line([(x, _TOP - 4), (x, height)], width=1, opacity=0.12))
        parts.append(svg.text(x, 9, f"{number * step:g}", "middle"))
    return Markup("").join(parts)


def _lane(run: "Simulated", rank: int, axis: svg.Axis, colours: dict[str, str], most: float) -> list[Markup]:
    top = _TOP + _LANE * rank
    mine = [event for event in run.events if event.rank == rank]
    parts = [svg.text(0, top + 14, f"rank {rank}")]
    parts += [_bubble(axis, top, *gap) for gap in _gaps(mine, run.time)]
    for event in mine:
        left, width = axis(event.begin), max(axis(event.end) - axis(event.begin) - 1, 1)
        if event.kind == "compute":
            colour = colours.setdefault(event.label[:1], _COLOURS[len(colours) % 3])
            title = f"{event.label or 'compute'}: {event.begin:.2f} to {event.end:.2f}"
            parts.append(svg.bar(left, top, width, _BAR, colour, title, opacity=0.85))
            if len(event.label) * _LETTER + 2 <= width:
                parts.append(svg.text(left + width / 2, top + 14, event.label, "middle", on_bar=True))
        elif event.kind != "recv":  # its sender's bar and the arrow show it
            title = f"{event.kind} of {event.mb:.3g} MB: {event.begin:.2f} to {event.end:.2f}"
            parts.append(svg.bar(left, top + _BAR + 1, width, _LINK - 1, _WAIT, title))
    return [*parts, *_memory(run.held[rank], run.time, axis, top + _BAR + _LINK, most, run.memory[rank])]


def _gaps(events: list["Event"], time: float) -> list[tuple[float, float]]:
    """When a rank doesn't compute."""
    gaps, at = [], 0.0
    for event in sorted((one for one in events if one.kind == "compute"), key=lambda one: one.begin):
        gaps.append((at, event.begin))
        at = event.end
    return [(begin, end) for begin, end in [*gaps, (at, time)] if end - begin > 1e-9]


def _bubble(axis: svg.Axis, top: float, begin: float, end: float) -> Markup:
    """A shaded gap with slanted lines, which show it without a colour."""
    left, right = axis(begin), axis(end) - 1
    title = f"doesn't compute: {begin:.2f} to {end:.2f}"
    parts = [svg.bar(left, top, max(right - left, 1), _BAR, "currentColor", title, opacity=0.1)]
    x = left
    while x + 8 <= right:
        parts.append(svg.line([(x, top + _BAR), (x + 8, top)], width=1, opacity=0.25))
        x += 8
    return Markup("").join(parts)


def _memory(
    held: list[tuple[float, float]], time: float, axis: svg.Axis, top: float, most: float, peak: float
) -> list[Markup]:
    """A step line of the megabytes that a rank holds; all ranks have one scale."""
    bottom, points, last = top + _MEMORY, [], 0.0
    for now, mb in held:
        y = bottom - (_MEMORY - 2) * mb / most
        points += [(axis(now), last or bottom), (axis(now), y)]
        last = y
    points.append((axis(time), last or bottom))
    base = svg.line([(axis(0), bottom), (axis(time), bottom)], width=1, opacity=0.2)
    words = svg.text(axis(time) + 4, bottom, f"{peak:.3g} MB")
    return [base, svg.line(points, width=1.2, opacity=0.65), words]


def _arrows(events: list["Event"], axis: svg.Axis) -> list[Markup]:
    """From a sender's lane to its receiver's, and through the lanes of a collective when it ends."""
    parts: list[Markup] = []
    sends = [event for event in events if event.kind == "send"]
    for event in sends if len(sends) <= _MOST_ARROWS else ():
        up = event.peer < event.rank
        begin = (axis(event.begin), _TOP + _LANE * event.rank + (0 if up else _BAR + _LINK))
        end = (axis(event.end), _TOP + _LANE * event.peer + (_BAR + _LINK if up else 0))
        parts.append(_arrow(begin, end))
    together: dict[tuple[str, float, float], list[int]] = {}
    for event in events:
        if event.kind not in ("compute", "send", "recv"):
            together.setdefault((event.kind, event.begin, event.end), []).append(event.rank)
    for (_, _, at), ranks in together.items() if len(together) <= _MOST_ARROWS else ():
        low, high = (_TOP + _LANE * one + _BAR + _LINK / 2 for one in (min(ranks), max(ranks)))
        parts.append(svg.line([(axis(at) - 1, low), (axis(at) - 1, high)], _WAIT, width=1.5, dash="3 2"))
    return parts


def _arrow(begin: tuple[float, float], end: tuple[float, float]) -> Markup:
    length = ((end[0] - begin[0]) ** 2 + (end[1] - begin[1]) ** 2) ** 0.5 or 1.0
    x, y = ((end[i] - begin[i]) / length for i in (0, 1))
    wings = [(end[0] - 6 * x - 3 * s * y, end[1] - 6 * y + 3 * s * x) for s in (1, -1)]
    tip: Any = Markup("").join(svg.line(sorted([wing, end]), _WAIT, width=1.5) for wing in wings)
    return Markup("").join([svg.line(sorted([begin, end]), _WAIT, width=1.3), tip])


def _legend(y: float) -> list[Markup]:
    parts = [svg.bar(_LEFT, y - 9, 22, 10, svg.MAIN, "computing", opacity=0.85)]
    parts.append(svg.text(_LEFT + 27, y, "computes"))
    parts.append(svg.bar(_LEFT + 92, y - 9, 22, 10, "currentColor", "bubble", opacity=0.1))
    parts += [
        svg.line([(_LEFT + 92 + x, y + 1), (_LEFT + 100 + x, y - 9)], width=1, opacity=0.25)
        for x in (0, 7, 14)
    ]
    parts.append(svg.text(_LEFT + 119, y, "doesn't (bubble)"))
    parts.append(svg.bar(_LEFT + 224, y - 7, 22, 5, _WAIT, "messages"))
    parts.append(svg.text(_LEFT + 251, y, "sends"))
    parts.append(
        svg.line([(_LEFT + 300, y - 1), (_LEFT + 310, y - 1), (_LEFT + 310, y - 7), (_LEFT + 322, y - 7)])
    )
    parts.append(svg.text(_LEFT + 327, y, "holds, and the most of it"))
    return parts
