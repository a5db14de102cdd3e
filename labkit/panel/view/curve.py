"""The curve of a run as SVG: at most two metrics over the epochs, readable without a legend."""

import math
from collections.abc import Iterable
from html import escape
from typing import Any

from labkit.display import formatting
from labkit.panel.state.run import RunState

_WIDTH, _HEIGHT = 300, 132  # SVG units
_LEFT, _RIGHT, _TOP, _BOTTOM = 34, 8, 8, 104
_REPORTS_DRAWN = 240
_LABEL_WIDTH = 20  # characters
_STYLES = ("stroke='var(--lk-main)'", "stroke='var(--lk-ok)' stroke-dasharray='4 3'")
_FILLS = ("var(--lk-main)", "var(--lk-ok)")

_Points = list[tuple[float, float]]  # (epochs done, value)


def ranked(names: Iterable[str]) -> list[str]:
    """The most telling first: the loss, then an accuracy."""
    return sorted(names, key=lambda name: (name != "loss", "accuracy" not in name, name))


def draw(state: RunState) -> str:
    """The metrics of rank 0: live points where there are some, else what was reported."""
    series = _series(state)
    last = max((x for points in series.values() for x, _ in points), default=0.0)
    span = max(state.epochs or 0, math.ceil(last), 1)
    frame = f"M{_LEFT} {_TOP}V{_BOTTOM}H{_WIDTH - _RIGHT}"
    parts = [f'<path d="{frame}" fill="none" stroke="currentColor" opacity=".35"/>']
    # Two scales can be read, three cannot.
    taken: list[float] = []
    for name, style, fill in zip(ranked(series), _STYLES, _FILLS, strict=False):
        parts.append(_line(name, series[name], style, fill, span, taken))
    parts.append(_axis_text(_LEFT, "start", "0"))
    if state.epochs or series:
        parts.append(_axis_text(_WIDTH - _RIGHT, "end", formatting.number(span)))
    parts.append(_axis_text((_LEFT + _WIDTH) / 2, "middle", "epoch"))
    drawn = [formatting.short(name, _LABEL_WIDTH) for name in ranked(series)[: len(_STYLES)]]
    label = "curve of " + " and ".join(drawn) if drawn else "no metrics yet"
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def _series(state: RunState) -> dict[str, _Points]:
    live: dict[str, dict[float, float]] = {}
    for x, metrics in state.curve:
        for name, value in metrics.items():
            if _is_drawable(value):
                live.setdefault(name, {})[x] = value
    reported: dict[str, dict[float, float]] = {}
    for report in state.history[:: -(len(state.history) // _REPORTS_DRAWN + 1)][::-1]:
        for name, value in report.items():
            if name != "epoch" and name not in live and _is_drawable(value):
                reported.setdefault(name, {})[report["epoch"] + 1] = value
    for checkpoint in state.checkpoints:  # what a validation brings comes when its epoch is long over
        for name, value in checkpoint.late.items():
            if name not in live and _is_drawable(value) and checkpoint.epoch:
                reported.setdefault(name, {})[checkpoint.epoch] = value
    # One value for each place, in order: an epoch that was repeated must not draw a way back.
    return {name: sorted(values.items()) for name, values in {**reported, **live}.items()}


def _is_drawable(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12


def _line(name: str, points: _Points, style: str, fill: str, span: float, taken: list[float]) -> str:
    values = [value for _, value in points]
    low, high = min(0.0, *values), max(values)
    if "accuracy" in name and low == 0 and high <= 1:
        high = 1.0  # a share is seen against the whole; all else gets the range that it had
    height = (high - low) or 1.0
    wide, tall = _WIDTH - _LEFT - _RIGHT, _BOTTOM - _TOP
    spots = [(_LEFT + x / span * wide, _BOTTOM - (value - low) / height * tall) for x, value in points]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
    x, y = spots[-1]
    dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{fill}"/>'
    anchor, x = ("end", x - 6) if x > _WIDTH * 0.6 else ("start", x + 6)
    y = y + 16 if y < (_TOP + _BOTTOM) / 2 else y - 8
    while any(abs(y - other) < 11 for other in taken):
        y += 11 if y < _BOTTOM - 26 else -22
    taken.append(y)
    words = f"{formatting.short(name, _LABEL_WIDTH)} {formatting.number(values[-1])}"
    text = f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
    return f'<path d="{path}" fill="none" {style} stroke-width="2" stroke-linejoin="round"/>{dot}{text}'


def _axis_text(x: float, anchor: str, words: str) -> str:
    return f'<text x="{x}" y="{_BOTTOM + 14}" text-anchor="{anchor}">{words}</text>'
