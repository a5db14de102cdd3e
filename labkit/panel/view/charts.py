"""The two figures of a training: its metrics over the epochs, and what took place when."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from labkit.display import svg
from labkit.display.formatting import number, plural, seconds, short
from labkit.panel.state.checkpoints import CheckpointState
from labkit.panel.state.run import RunState

_REPORTS_DRAWN = 240
_NAME_SHOWN = 16  # characters
_LOOKS = ((svg.MAIN, ""), (svg.OK, "4 3"))  # two scales can be read, three cannot

_WIDTH, _LEFT, _RIGHT = 856.0, 76.0, 10.0  # of the time axis, in SVG units; the panel is as many pixels wide
_ROW, _BAR, _LANES = 22, 14, 4
_CHARACTER = 6.5  # width of a letter in a bar
_WAITED = 0.25  # seconds: what is shorter is no queue, it is the way to it
_FILLS = {"training": svg.MAIN, "upload": svg.WAIT, "validation": svg.OK}
_BAD = ("failed", "timed out")


@dataclass(frozen=True)
class Series:
    """A metric over the epochs that are done.

    Attributes:
        steps: the values logged in steps.
        points: those reported for epochs, or `steps` if there are none.
        value: the latest, as the panel's tile shows it.
    """

    name: str
    steps: tuple[tuple[float, float], ...]
    points: tuple[tuple[float, float], ...]
    value: float


@dataclass(frozen=True)
class Bar:
    """A stretch of time of the time axis, in seconds since its begin.

    Attributes:
        row: "training", "upload", "waiting" or "validation".
        label: the epoch, counted from 1, or "".
        lasting: whether it still goes on.
    """

    row: str
    label: str
    begin: float
    end: float
    status: str = ""
    lasting: bool = False


def ranked(names: Iterable[str]) -> list[str]:
    """The most telling first: the loss, then an accuracy."""
    return sorted(names, key=lambda name: (name != "loss", "accuracy" not in name, name))


def series_of(state: RunState) -> tuple[Series, ...]:
    """The metrics to draw, at most as many as have a scale."""
    steps: dict[str, dict[float, float]] = {}
    for x, metrics in state.curve:
        _take(steps, x, metrics)
    reported: dict[str, dict[float, float]] = {}
    for report in state.history[:: -(len(state.history) // _REPORTS_DRAWN + 1)][::-1]:
        _take(reported, report["epoch"] + 1.0, report)
    for checkpoint in state.checkpoints:  # what a validation brings comes when its epoch is long over
        if checkpoint.epoch:
            _take(reported, float(checkpoint.epoch), checkpoint.late)
    latest = {name: value for name, value in state.metrics().items() if _is_drawable(value)}
    found = []
    for name in ranked(steps | reported)[: len(_LOOKS)]:
        # One value for each place, in order: an epoch that was repeated must not draw a way back.
        logged = tuple(sorted(steps.get(name, {}).items()))
        points = tuple(sorted(reported.get(name, {}).items())) or logged
        found.append(Series(name, logged, points, latest.get(name, points[-1][1])))
    return tuple(found)


def curve(series: Sequence[Series], epochs: int | None) -> Markup:
    """The metrics: the first with its scale at the left, the second with its own at the right."""
    last = max((x for one in series for x, _ in (*one.points, *one.steps)), default=0.0)
    span = max(epochs or 0, math.ceil(last), 1)
    scales = [_scale(one) for one in series] + [None, None]
    plot = svg.Plot((0, span), scales[0], right=scales[1], label="epoch")
    for one, (stroke, dash), right in zip(series, _LOOKS, (False, True), strict=False):
        if one.points != one.steps and one.steps:
            plot.curve(one.steps, stroke, right=right, width=1, opacity=0.4)
        plot.curve(one.points, stroke, right=right, dash=dash)
    names = [f"{short(one.name, _NAME_SHOWN)} {number(one.value)}" for one in series]
    plot.legend((words, *look) for words, look in zip(names, _LOOKS, strict=False))
    plot.ticks([(0, "0")] + [(span, number(span))] * bool(epochs or series))
    return plot.svg("curve of " + " and ".join(names) if names else "no metrics yet")


def timeline_of(state: RunState, now: float) -> tuple[Bar, ...]:
    """What took place when, of a run that validates; other runs need no such figure."""
    if not state.spans.row("validation"):
        return ()
    zero = min(span.begin for span in state.spans)
    bars = [
        Bar(s.row, s.label, s.begin - zero, (now if s.end is None else s.end) - zero, s.status, s.end is None)
        for s in state.spans
    ]
    for one in state.checkpoints:
        if (since := one.committed_at) is not None and _waited(one, now, over=state.over):
            bars.append(Bar("waiting", one.label, since - zero, (one.begun_at or now) - zero))
    return tuple(bars)


def timeline(bars: Sequence[Bar]) -> Markup:
    """Training, uploads and validations on one time axis: what overlaps, what waits, what failed."""
    end = max(max(bar.end for bar in bars), 0.1)
    axis = svg.Axis(0.0, end, _LEFT, _WIDTH - _RIGHT)
    rows = [row for row in (*_FILLS, "waiting") if any(bar.row == row for bar in bars)]
    rows.sort(key=("training", "upload", "waiting", "validation").index)
    parts = [axis.time_grid(_ROW * len(rows))]
    for place, row in enumerate(rows):
        top = place * _ROW
        parts.append(svg.text(0, top + 15, row))
        lanes = itertools.cycle(range(_LANES))
        for bar in (bar for bar in bars if bar.row == row):
            parts += (
                [_wait(axis, bar, top + 5 + next(lanes) * 4)] if row == "waiting" else _bar(axis, bar, top)
            )
    counts = [sum(bar.row == row for bar in bars) for row in ("training", "validation")]
    label = f"timeline of {plural(counts[0], 'epoch')} of training and {plural(counts[1], 'validation')}"
    return svg.svg(_WIDTH, _ROW * len(rows) + 20, label, *parts)


def _take(found: dict[str, dict[float, float]], x: float, metrics: dict[str, Any]) -> None:
    for name, value in metrics.items():
        if name != "epoch" and _is_drawable(value):
            found.setdefault(name, {})[x] = value


def _is_drawable(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e12


def _scale(one: Series) -> tuple[float, float]:
    values = [value for _, value in (*one.points, *one.steps)]
    low, high = min(0.0, *values), max(values)
    # A share is seen against the whole; all else gets the range that it had.
    return (0.0, 1.0) if "accuracy" in one.name and low == 0 and high <= 1 else (low, high)


def _bar(axis: svg.Axis, bar: Bar, top: float) -> list[Markup]:
    """A bar with the number of its epoch; one that went wrong says so, one that lasts is pale."""
    left = axis(bar.begin)
    width = max(axis(bar.end) - left - 1.5, 1.5)  # a little short: a gap between neighbours
    bad = bar.status in _BAD
    said = f"{bar.row} {bar.label}".strip() + f": {seconds(bar.end - bar.begin)}"
    said += f", {bar.status}" if bar.status else ""
    fill = svg.BAD if bad else _FILLS[bar.row]
    parts = [svg.bar(left, top + 4, width, _BAR, fill, said, opacity=0.45 if bar.lasting else 1)]
    number = f"{'✕ ' * bad}{bar.label}"
    for words in [f"{number} {bar.status}"] * bad + [number]:
        if words.strip() and len(words) * _CHARACTER + 4 <= width:
            # A pale bar is no ground for light letters.
            middle = left + width / 2
            return [*parts, svg.text(middle, top + 15, words, "middle", on_bar=not bar.lasting)]
    if bad:
        x, anchor = (left + width + 3, "start") if left < _WIDTH - 120 else (left - 3, "end")
        parts.append(svg.text(x, top + 15, number, anchor))
    return parts


def _waited(checkpoint: CheckpointState, now: float, *, over: bool) -> bool:
    """Whether a checkpoint waited for its validation long enough to be worth a line."""
    if checkpoint.status == "committed" or (checkpoint.begun_at is None and over):
        return False  # it is not validated, or the run ended before its turn
    until = now if checkpoint.begun_at is None else checkpoint.begun_at
    return until - (checkpoint.committed_at or until) >= _WAITED


def _wait(axis: svg.Axis, bar: Bar, y: float) -> Markup:
    """A thin line from the commit to the begin of the validation."""
    path = svg.line([(axis(bar.begin), y), (axis(bar.end), y)], svg.OK, dash="3 2")
    return Markup("<g><title>{} waits for its validation</title>{}</g>").format(bar.label, path)
