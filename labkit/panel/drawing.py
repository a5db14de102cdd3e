"""From a `Run` and what is `Shown` of it to a frozen `Snapshot`: HTML, live and as the summary, and lines.

The two figures of a panel are SVG: curves over an axis, and bars on a time axis.
"""

import itertools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from labkit.display import cards, svg
from labkit.display.formatting import clock, duration, joined, number, plural, seconds, short
from labkit.panel.run import Run, Span
from labkit.panel.shown import Curve, Plot, Shown
from labkit.runs.verdict import PARTS, in_words

_TEXT_SHOWN, _FAILURE_SHOWN, _NAME_SHOWN = 16_000, 4_000, 80  # characters
_ERRORS_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A panel at one moment, drawn. Reporters need no lock for it, and only put it where it shows."""

    name: str
    subtitle: str  # what it runs on, behind the name
    over: bool
    seconds: float  # how long it took so far
    html: Markup  # what is below the head of the live panel; of a run that is over, the summary that stays
    lines: tuple[tuple[Hashable, str], ...]  # the latest of a log by keys that stay; the last: how it ended


def snapshot(run: Run, shown: Shown, now: float, files: Sequence[tuple[str, str]] = ()) -> Snapshot:
    """Draw a run at `now` (Unix seconds). It must not change meanwhile.

    Args:
        shown: what is shown of it at that time.
        files: those that the summary lists, as (what, path).
    """
    return Snapshot(
        name=short(run.name, _NAME_SHOWN),
        subtitle=shown.subtitle,
        over=run.over,
        seconds=run.elapsed(now),
        html=Markup(_template().render(run=run, shown=shown, now=now, files=files)),
        lines=tuple(_lines(run, shown)),
    )


def _lines(run: Run, shown: Shown) -> Iterator[tuple[Hashable, str]]:
    if shown.brief and not run.over:
        return
    if not shown.brief:
        yield "begin", shown.subtitle
    for place, line in enumerate(run.prints, run.printed - len(run.prints)):
        yield ("print", place), line
    yield from shown.news
    for note in shown.notes:
        yield ("note", note), note
    for place, line in enumerate(run.hang):
        yield ("hang", run.heard_at, place), line
    for place, failure in enumerate(run.failures):
        yield ("failure", place), run.failed(failure)
    if run.over:
        for who, shares in shown.strip:
            yield ("strip", who), f"{who}: {in_words(shares)}"
        if shown.verdict:
            yield "verdict", shown.verdict
        for who, text in _errors(run):
            yield ("error", text), f"{who}\n{text}".lstrip()
        yield "end", joined(f"{run.status} after {_time(run)}", shown.what, shown.result)


def _time(run: Run) -> str:
    """Return ``01:41: start 8.1 s · data 2.0 s · training 84 s``."""
    spent = [f"{name} {seconds(value)}" for name, value in run.time_breakdown().items() if value >= 0.05]
    return ": ".join(filter(None, [duration(run.elapsed()), joined(*spent)]))


def _errors(run: Run) -> list[tuple[str, str]]:
    """(whose, traceback): that which ended the run or, if it went on, the different ones."""
    last = run.failures[-1] if run.failures else None
    if last is not None and run.status == "failed" and (run.unit == "rank" or last.rank is None):
        return [("", last.text[-_FAILURE_SHOWN:])]
    whose: dict[str, list[str]] = {}
    for failure in run.failures:
        whose.setdefault(failure.text[-_FAILURE_SHOWN:], []).append(f"{run.unit} {failure.rank}")
    return [(f"{', '.join(who)}:", text) for text, who in whose.items()][:_ERRORS_SHOWN]


def _means(strip: Sequence[tuple[str, Sequence[float]]]) -> list[tuple[str, float]]:
    """The parts with the mean share of all ranks."""
    shares = zip(*(shares for _, shares in strip), strict=True)
    return [(part, sum(of_part) / len(strip)) for part, of_part in zip(PARTS, shares, strict=True)]


def _printed(run: Run) -> str:
    """The last printed lines, as many as a notebook can carry."""
    lines = "\n".join(run.prints)
    cut = len(lines) > _TEXT_SHOWN or run.printed > len(run.prints)
    return f"… the lines before are in the logs\n{lines[-_TEXT_SHOWN:]}" if cut else lines


@cache
def _template() -> jinja2.Template:
    folder = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=folder, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {"plot": plot, "timeline": timeline, "table": cards.table, "errors": _errors}
    environment.globals |= {"style": Markup(cards.STYLE), "printed": _printed, "plural": plural}
    environment.globals |= {"in_words": in_words, "means": _means, "time": _time}
    environment.filters |= {"short": short, "seconds": seconds, "clock": clock}
    return environment.get_template("panel.html.j2")


# -- the two figures -------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _TOP, _LEFT = 300.0, 150.0, 22.0, 34.0  # of a plot, in SVG units
_BOTTOM = _HEIGHT - 28  # of its frame
_CHARACTER = 5.6  # mean width of a letter
_LOOKS: dict[str, dict[str, Any]] = {
    "main": {"stroke": svg.MAIN},
    "second": {"stroke": svg.OK, "dash": "4 3"},  # two scales can be read, three cannot
    "pale": {"stroke": svg.MAIN, "width": 1, "opacity": 0.4},
    "pale second": {"stroke": svg.OK, "width": 1, "opacity": 0.4},
    "grey": {"stroke": "currentColor", "width": 1, "opacity": 0.35},
}

_AXIS_WIDTH, _AXIS_LEFT, _AXIS_RIGHT = 856.0, 76.0, 10.0  # of the time axis; the panel is as many pixels wide
_ROW, _BAR = 22, 14
_FILLS = {"training": svg.MAIN, "validation": svg.OK}
_BAD = ("failed", "timed out")


def plot(shown: Plot) -> Markup:
    """Curves with dots at their ends; lowest and highest value are at the left, and those of a second scale
    at the right. Only "main" and "second" are named, above the frame, so that no curve crosses its name."""
    right = [curve for curve in shown.curves if "second" in curve.look]
    left = [curve for curve in shown.curves if curve not in right]
    end = _WIDTH - (_LEFT if right else 8.0)
    x = svg.Axis(shown.begin, shown.end, _LEFT, end)
    corners = [(_LEFT, _TOP), (_LEFT, _BOTTOM), (end, _BOTTOM), (end, _TOP)]
    parts = [svg.line(corners if right else corners[:3], width=1, opacity=0.35)]
    parts.append(svg.text((_LEFT + end) / 2, _BOTTOM + 24, shown.label, "middle"))
    for mark in shown.marks:
        parts.append(svg.line([(x(mark), _TOP), (x(mark), _BOTTOM)], width=1, dash="2 3", opacity=0.3))
    for curves, place, anchor in ((left, _LEFT - 4, "end"), (right, end + 4, "start")):
        if curves:
            parts += _scaled(curves, x, place, anchor)
    parts += _legend([curve for curve in shown.curves if curve.look in ("main", "second")])
    parts += _ticks(x, {0.0, shown.end, *shown.marks})
    names = " and ".join(curve.name for curve in shown.curves if curve.look in ("main", "second"))
    label = f"curve of {names} by {shown.label}" if names else "no metrics yet"
    return svg.svg(_WIDTH, _HEIGHT, label, *parts)


def _scaled(curves: list[Curve], x: svg.Axis, place: float, anchor: str) -> list[Markup]:
    """Curves in one scale, and its ends."""
    values = [value for curve in curves for _, value in curve.points]
    from_zero = [] if any(curve.look == "grey" for curve in curves) else [0.0]  # many lines need the room
    low, high = min(values + from_zero), max(values)
    if "accuracy" in curves[0].name and low >= 0 and high <= 1:
        low, high = 0.0, 1.0  # a share is seen against the whole; all else gets the range that it had
    if high <= low:
        low, high = low - 0.5, low + 0.5
    y, parts = svg.Axis(low, high, _BOTTOM, _TOP), []
    for curve in curves:
        places = [(x(at), y(value)) for at, value in curve.points]
        parts += [svg.line(places, **_LOOKS[curve.look]), svg.dot(*places[-1], **_LOOKS[curve.look])]
    ends = ((_TOP + 4, high), (_BOTTOM, low))
    return parts + [svg.text(place, at, number(value), anchor) for at, value in ends]


def _legend(curves: list[Curve]) -> list[Markup]:
    x, parts = _LEFT, []
    for curve in curves:
        parts += [svg.line([(x, 8), (x + 16, 8)], **_LOOKS[curve.look]), svg.text(x + 20, 11.5, curve.name)]
        x += 20 + len(curve.name) * _CHARACTER + 12
    return parts


def _ticks(x: svg.Axis, values: set[float]) -> list[Markup]:
    """Numbers below the axis; from the right, those that have room."""
    parts, taken = [], _WIDTH + 50
    for value in sorted(values, reverse=True):
        place, half = x(value), len(number(value)) * _CHARACTER / 2 + 3
        if place + half <= taken:
            at, anchor = (_WIDTH, "end") if place + half > _WIDTH else (place, "middle")
            parts.append(svg.text(at, _BOTTOM + 12, number(value), anchor))
            taken = place - half
    return parts


def timeline(spans: Sequence[Span]) -> Markup:
    """Training and validations on one time axis: what overlaps, and what failed."""
    zero, end = min(span.begin for span in spans), max(span.end for span in spans)
    axis = svg.Axis(zero, max(end, zero + 0.1), _AXIS_LEFT, _AXIS_WIDTH - _AXIS_RIGHT)
    rows = {row: [span for span in spans if span.row == row] for row in _FILLS}
    rows = {row: of_row for row, of_row in rows.items() if of_row}
    parts = [axis.time_grid(_ROW * len(rows))]
    for top, (row, of_row) in zip(itertools.count(step=_ROW), rows.items(), strict=False):
        parts.append(svg.text(0, top + 15, row))
        for span in of_row:
            parts += _bar(axis, span, top)
    counts = " and ".join(plural(len(of_row), row) for row, of_row in rows.items())
    return svg.svg(_AXIS_WIDTH, _ROW * len(rows) + 20, f"time axis of {counts}", *parts)


def _bar(axis: svg.Axis, span: Span, top: float) -> list[Markup]:
    """A bar with the number of its epoch; one that went wrong says so in words, too."""
    left, bad = axis(span.begin), span.status in _BAD
    width = max(axis(span.end) - left - 1.5, 1.5)  # a little short: a gap between neighbours
    said = f"{span.row} {span.label}".strip() + f": {seconds(span.end - span.begin)}"
    said += f", {span.status}" if span.status else ""
    bar = svg.bar(left, top + 4, width, _BAR, svg.BAD if bad else _FILLS[span.row], said)
    words = f"✕ {span.label}" if bad else span.label
    if len(words) * 6.5 + 4 <= width:
        return [bar, svg.text(left + width / 2, top + 15, words, "middle", on_bar=True)]
    if not bad:
        return [bar]
    x, anchor = (left + width + 3, "start") if left < _AXIS_WIDTH - 120 else (left - 3, "end")
    return [bar, svg.text(x, top + 15, words, anchor)]
