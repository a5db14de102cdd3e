"""The curves of a sweep as SVG: the metric of every trial by iteration, and the best so far by time."""

import itertools
from html import escape

from labkit.display import formatting
from labkit.tune.state import SweepState, TrialState

_WIDTH, _LEFT, _RIGHT, _TOP = 300, 34, 10, 10  # SVG units
_TRIALS_DRAWN = 60  # more grey lines are one grey area
_POINTS_DRAWN = 24  # of one trial

_Range = tuple[float, float]


def trials(state: SweepState, height: int = 132) -> str:
    """One grey line for each trial, the best one in colour, a dotted line for each rung."""
    drawn = [trial for trial in state.ranked() if trial.curve][:_TRIALS_DRAWN]
    bottom = height - 28
    last = max((trial.curve[-1][0] for trial in drawn), default=1)
    span = float(max(last, 1))
    values = [value for trial in drawn for _, value in _thinned(trial)]
    low, high = _range(values, state.metric)
    parts = [_frame(bottom)]
    for rung in state.rungs:
        if rung <= span:
            x = _x(rung, span)
            line = f'd="M{x:.1f} {_TOP}V{bottom}" stroke="currentColor"'
            parts.append(f'<path {line} opacity=".3" stroke-dasharray="2 3"/>')
    for trial in reversed(drawn):
        parts.append(_trial(trial, trial is state.best, span, (low, high), bottom))
    parts += _ticks([rung for rung in state.rungs if rung <= span], span, bottom)
    words = "iteration (dotted: rungs)" if state.rungs else "iteration"
    parts.append(_text(_WIDTH / 2, bottom + 24, "middle", words))
    if values:
        parts += [
            _text(_LEFT - 4, _TOP + 4, "end", formatting.number(high)),
            _text(_LEFT - 4, bottom, "end", formatting.number(low)),
        ]
    label = f"{state.metric or 'metric'} of {len(drawn)} trials by iteration"
    return _svg(height, label, parts)


def best(state: SweepState, height: int = 80) -> str:
    """The best value so far by the seconds of the sweep, from its first report on; empty before that."""
    points = state.best_so_far()
    if not points:
        return ""
    bottom = height - 16
    begin, end = points[0][0], max(seconds for seconds, _ in points)
    span = max(1e-3, end - begin)
    low, high = _range([value for _, value in points], None)
    path, before = "", None
    for seconds, value in points[-120:]:
        x, y = _x(seconds - begin, span), _y(value, (low, high), bottom)
        path += f"M{x:.1f} {y:.1f}" if before is None else f"H{x:.1f}V{y:.1f}"
        before = value
    x, y = _WIDTH - _RIGHT, _y(points[-1][1], (low, high), bottom)
    words = f"best so far {formatting.number(points[-1][1])}"
    parts = [
        _frame(bottom),
        f'<path d="{path}" fill="none" stroke="var(--lk-main)" stroke-width="2"/>',
        f'<circle cx="{x}" cy="{y:.1f}" r="2.5" fill="var(--lk-main)"/>',
        _text(_WIDTH / 2, bottom + 12, "middle", words),
        _text(_LEFT, bottom + 12, "start", formatting.seconds(begin)),
        _text(_WIDTH - _RIGHT, bottom + 12, "end", formatting.seconds(end)),
    ]
    return _svg(height, words, parts)


def _ticks(rungs: list[int], span: float, bottom: int) -> list[str]:
    """The numbers below the axis: the last iteration, and the rungs that have room beside each other."""
    ticks, taken = [], _WIDTH + 20.0
    for value in sorted({int(span), *rungs}, reverse=True):
        x = _x(value, span)
        if taken - x >= 16:
            ticks.append(_text(x, bottom + 12, "middle", formatting.number(value)))
            taken = x
    return ticks


def _trial(trial: TrialState, is_best: bool, span: float, values: _Range, bottom: int) -> str:
    spots = [(_x(iteration, span), _y(value, values, bottom)) for iteration, value in _thinned(trial)]
    look = 'stroke="var(--lk-main)" stroke-width="2"' if is_best else 'stroke="currentColor" opacity=".3"'
    x, y = spots[-1]
    fill = 'fill="var(--lk-main)"' if is_best else 'fill="currentColor" opacity=".45"'
    dot = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{2.5 if is_best else 1.6}" {fill}/>'
    if len(spots) > 1:
        path = _path(spots)
        dot = f'<path d="{path}" fill="none" {look}/>' + dot
    if is_best:
        anchor, x = ("end", x - 5) if x > _WIDTH * 0.6 else ("start", x + 6)
        dot += _text(x, y + 14 if y < bottom / 2 else y - 7, anchor, f"trial {trial.number}")
    return dot


def _path(spots: list[tuple[float, float]]) -> str:
    """A line; where a trial went back to the checkpoint of another (population-based training), a new one."""
    steps = ["M", *("L" if x >= before else "M" for (before, _), (x, _) in itertools.pairwise(spots))]
    return "".join(f"{step}{x:.1f} {y:.1f}" for step, (x, y) in zip(steps, spots, strict=True))


def _thinned(trial: TrialState) -> list[tuple[int, float]]:
    step = len(trial.curve) // _POINTS_DRAWN + 1
    return [*trial.curve[:-1:step], trial.curve[-1]]


def _range(values: list[float], metric: str | None) -> _Range:
    low, high = min(values, default=0.0), max(values, default=1.0)
    if metric and "accuracy" in metric and low >= 0 and high <= 1:
        return 0.0, 1.0  # a share is seen against the whole
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _x(value: float, span: float) -> float:
    return _LEFT + value / span * (_WIDTH - _LEFT - _RIGHT)


def _y(value: float, values: _Range, bottom: int) -> float:
    low, high = values
    return bottom - (value - low) / (high - low) * (bottom - _TOP)


def _frame(bottom: int) -> str:
    line = f"M{_LEFT} {_TOP}V{bottom}H{_WIDTH - _RIGHT}"
    return f'<path d="{line}" fill="none" stroke="currentColor" opacity=".35"/>'


def _text(x: float, y: float, anchor: str, words: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(height: int, label: str, parts: list[str]) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )
