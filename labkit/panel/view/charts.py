"""The two figures of a training run: its metrics over the epochs, and what took place when."""

import math
from collections.abc import Iterable
from typing import Any

from markupsafe import Markup

from labkit.display import svg
from labkit.display.formatting import number, plural, seconds, short
from labkit.panel.state.checkpoints import Span
from labkit.panel.state.run import RunState

# Metrics that merely count: no curve, and no tile.
COUNTS = {"epoch", "epochs", "step", "steps", "global_step", "rank", "workers", "world", "world_size"}
_REPORTS_DRAWN = 240
_LOOKS = ((svg.MAIN, ""), (svg.OK, "4 3"))  # two scales can be read, three cannot

_WIDTH, _LEFT, _RIGHT = 856.0, 76.0, 10.0  # of the time axis, in SVG units; the panel is as many pixels wide
_ROW, _BAR = 22, 14
_FILLS = {"training": svg.MAIN, "validation": svg.OK}
_BAD = ("failed", "timed out")


def ranked(names: Iterable[str]) -> list[str]:
    """The most telling first: the loss, then an accuracy."""
    return sorted(names, key=lambda name: (name != "loss", "accuracy" not in name, name))


def curve(state: RunState) -> Markup:
    """Two metrics over the epochs: the first with its scale at the left, the second at the right.

    Those that are reported are drawn, and pale behind them their values in single steps.
    """
    history = state.history[:: -(len(state.history) // _REPORTS_DRAWN + 1)]
    reports = [(report["epoch"] + 1.0, report) for report in reversed(history)]
    # What a validation brings comes when its epoch is long over.
    reports += [(float(one.epoch), one.late) for one in state.checkpoints if one.epoch]
    steps, reported = _series(state.curve), _series(reports)
    latest, names = state.metrics(), ranked(steps | reported)[:2]
    shown = [reported.get(name) or steps[name] for name in names]
    last = max((points[-1][0] for points in (*steps.values(), *shown)), default=0.0)
    span = max(state.epochs or 0, math.ceil(last), 1)
    scales = [_scale(name, points + steps.get(name, [])) for name, points in zip(names, shown, strict=True)]
    left, right = (*scales, None, None)[:2]
    plot = svg.Plot((0, span), left, right=right, label="report" if state.counts_steps else "epoch")
    for name, points, (stroke, dash), is_right in zip(names, shown, _LOOKS, (False, True), strict=False):
        if name in reported and name in steps:
            plot.curve(steps[name], stroke, right=is_right, width=1, opacity=0.4)
        plot.curve(points, stroke, right=is_right, dash=dash)
    words = [
        f"{short(name, 16)} {number(latest.get(name, points[-1][1]))}"
        for name, points in zip(names, shown, strict=True)
    ]
    plot.legend((one, *look) for one, look in zip(words, _LOOKS, strict=False))
    plot.ticks([(0, "0")] + [(span, number(span))] * bool(state.epochs or names))
    return plot.svg("curve of " + " and ".join(words) if words else "no metrics yet")


def timeline(spans: list[Span]) -> Markup:
    """Training and validations on one time axis: what overlaps, and what failed."""
    zero, end = min(span.begin for span in spans), max(span.end for span in spans)
    axis = svg.Axis(zero, max(end, zero + 0.1), _LEFT, _WIDTH - _RIGHT)
    rows = [(row, [span for span in spans if span.row == row]) for row in _FILLS]
    rows = [(row, of_row) for row, of_row in rows if of_row]
    parts = [axis.time_grid(_ROW * len(rows))]
    for place, (row, of_row) in enumerate(rows):
        top = place * _ROW
        parts.append(svg.text(0, top + 15, row))
        for span in of_row:
            parts += _bar(axis, span, top)
    counts = [sum(span.row == row for span in spans) for row in ("training", "validation")]
    label = f"timeline of {plural(counts[0], 'epoch')} of training and {plural(counts[1], 'validation')}"
    return svg.svg(_WIDTH, _ROW * len(rows) + 20, label, *parts)


def _series(rows: Iterable[tuple[float, dict[str, Any]]]) -> dict[str, list[tuple[float, float]]]:
    """The points of each metric; one for each place, in order: an epoch may have been repeated."""
    found: dict[str, dict[float, float]] = {}
    for x, metrics in rows:
        for name, value in metrics.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and abs(value) < 1e12 and name not in COUNTS:
                found.setdefault(name, {})[x] = value
    return {name: sorted(points.items()) for name, points in found.items()}


def _scale(name: str, points: list[tuple[float, float]]) -> tuple[float, float]:
    values = [value for _, value in points]
    low, high = min(0.0, *values), max(values)
    # A share is seen against the whole; all else gets the range that it had.
    return (0.0, 1.0) if "accuracy" in name and low == 0 and high <= 1 else (low, high)


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
    after = left < _WIDTH - 120
    return [
        bar,
        svg.text(left + width + 3 if after else left - 3, top + 15, words, "start" if after else "end"),
    ]
