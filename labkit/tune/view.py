"""How a sweep looks: the panel while it runs, the summary that stays, and its lines in a log."""

import time
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from markupsafe import Markup

from labkit.display import cards, svg
from labkit.display.formatting import UNKNOWN, duration, number, plural, seconds, short
from labkit.panel.state.base import Failure
from labkit.panel.view.base import View
from labkit.tune.state import OVER, STATUSES, SweepState, TrialState

_ROWS_SHOWN, _ROWS_KEPT = 10, 200
_PARAMETERS_SHOWN = 4
_CURVES_DRAWN, _POINTS_DRAWN = 60, 24  # more grey lines are one grey area
_ERRORS_SHOWN, _ERROR_LENGTH = 3, 4_000
_STEPS_TOLD = 4  # lines with counts in a log
_MARKS = {
    "finished": "ok", "running": "wait", "paused": "wait", "cut off": "wait", "failed": "bad",
}  # fmt: skip


class SweepView(View):
    """Draws a sweep."""

    output = "errors"

    def subtitle(self, state: SweepState) -> str:
        total = _total(state)
        parts = [state.engine] + ([plural(total, "trial")] if total else [])
        return " · ".join(parts + ([f"{state.at_once} at a time"] if state.at_once else []))

    def body(self, state: SweepState, now: float) -> Markup:
        ranked = state.ranked()
        shown = _live(ranked)
        marks = [(_MARKS.get(status, "dim"), words) for status, words in _counts(state)]
        left = cards.steps(marks) + cards.bar(_progress(state, now), _fraction(state))
        left += _table(state, shown)
        if len(ranked) > len(shown):
            left += cards.mark("dim", f"and {plural(len(ranked) - len(shown), 'more trial')}")
        if state.failures:
            failed = cards.mark("bad", f"✕ {self.failed(state.failures[0])}")
            left += Markup("<div>{}</div>").format(failed)
        return cards.columns(left, _charts(state, ranked, now))

    def figures(self, state: SweepState) -> Markup:
        ranked = state.ranked()
        parts = []
        if ranked:
            charts = _charts(state, ranked, state.ended_at)
            parts.append(cards.columns(_table(state, ranked[:_ROWS_SHOWN]), charts))
        if state.failures and state.status != "failed":
            parts.append(self.details(state))
        if len(ranked) > _ROWS_SHOWN:
            words = plural(len(ranked) - _ROWS_SHOWN, "more trial")
            parts.append(cards.fold(words, _table(state, ranked[_ROWS_SHOWN:_ROWS_KEPT])))
        return cards.join(parts)

    def details(self, state: SweepState) -> Markup:
        errors = (cards.pre(f"{who}\n{text}" if who else text) for who, text in _errors(state))
        return cards.join(errors) or cards.text("no trial has failed so far")

    def result(self, state: SweepState) -> str:
        return best_line(state)

    def note(self, state: SweepState) -> str:
        spent = [f"{name} {seconds(value)}" for name, value in state.phase_seconds().items()]
        return f"{_counted(state)} in {duration(state.elapsed())}: {' · '.join(spent)}"

    def news(self, state: SweepState) -> Iterator[tuple[Hashable, str]]:
        if step := int((_fraction(state) or 0) * _STEPS_TOLD):
            yield ("step", step), f"{_progress(state, time.time())} · {best_line(state)}"
        if state.over:
            for who, text in _errors(state):
                if "\n" in text:  # one line was in the news when it happened
                    yield ("error", text), f"{who}\n{text}"
            yield "best", best_line(state)

    def failed(self, failure: Failure) -> str:
        who = "the sweep" if failure.rank is None else f"trial {failure.rank}"
        return f"{who} failed: {short(failure.message, 160)}"

    def last_line(self, state: SweepState) -> str:
        return f"{super().last_line(state)}: {_counted(state)}"


def _table(state: SweepState, trials: Sequence[TrialState]) -> Markup:
    names = parameters(state)
    nodes = len({trial.node for trial in state.trials.values() if trial.node}) > 1
    values = f"best {short(state.metric or 'metric', 16)}", "last", "iteration", "seconds"
    head = ("trial", *(short(name, 14) for name in names), *values, *["node"] * nodes, "")
    return cards.table(head, [_row(state, trial, names, nodes) for trial in trials])


def _charts(state: SweepState, ranked: Sequence[TrialState], now: float) -> Markup:
    return _curves(state, ranked) + (_best_so_far(state, now) if state.improvements else cards.NOTHING)


# -- charts -----------------------------------------------------------------------------------------


def _curves(state: SweepState, ranked: Sequence[TrialState]) -> Markup:
    """One grey line for each trial, the best one in colour, a dotted line for each rung."""
    curves = [_curve(trial, trial is state.best) for trial in ranked[:_CURVES_DRAWN] if trial.curve]
    values = [value for points, _ in curves for _, value in points]
    low, high = min(values, default=0.0), max(values, default=1.0)
    if "accuracy" in (state.metric or "") and low >= 0 and high <= 1:
        low, high = 0.0, 1.0  # a share is seen against the whole
    last = max((points[-1][0] for points, _ in curves), default=1)
    rungs = [rung for rung in state.rungs if rung <= last]
    label = "iteration (dotted: rungs)" if rungs else "iteration"
    plot = svg.Plot((0, max(last, 1)), (low, high), label=label, top=10)
    for rung in rungs:
        plot.vertical(rung)
    for points, name in reversed(curves):  # the best is the first, and drawn on top
        if name:
            plot.curve(points, svg.MAIN)
            x, y = plot.x(points[-1][0]), plot.y(points[-1][1])
            x, anchor = (x - 5, "end") if x > plot.width * 0.6 else (x + 6, "start")
            plot.add(svg.text(x, y + (14 if y < plot.height / 2 else -7), name, anchor))
        else:
            plot.curve(points, "currentColor", width=1, opacity=0.35)
    plot.ticks([(value, number(value)) for value in {int(last), *rungs}])
    return plot.svg(f"{state.metric or 'metric'} of {len(curves)} trials by iteration")


def _best_so_far(state: SweepState, now: float) -> Markup:
    points = [*state.improvements[-120:], (state.elapsed(now), state.improvements[-1][1])]
    begin, end, best = points[0][0], max(points[-1][0], points[0][0] + 1e-3), points[-1][1]
    steps = [points[0]]
    for (_, before), (at, value) in zip(points, points[1:], strict=False):
        steps += [(at, before), (at, value)]
    values = [value for _, value in points]
    label = f"best so far {number(best)}"
    plot = svg.Plot((begin, end), (min(values), max(values)), label=label, height=88, top=10)
    plot.curve(steps, svg.MAIN)
    plot.ticks([(begin, seconds(begin)), (end, seconds(end))])
    return plot.svg(label)


# -- words ------------------------------------------------------------------------------------------


def best_line(state: SweepState) -> str:
    """Return the best value of all results, and the best last one: that is what `get_best_result` goes by.

    ``best accuracy 0.986, trial 17 · lr 0.081 (last 0.962) · best at its end: 0.979, trial 9 · lr 0.043``
    """
    best, at_end = state.best, state.best_at_end
    if best is None or at_end is None:
        return f"no trial reported {state.metric}" if state.metric else "no metric to compare trials by"
    line = f"best {state.metric} {number(best.best)}, {_trial_line(state, best)}"
    if best.value != best.best:
        line += f" (last {number(best.value)})"
    if at_end is not best:
        line += f" · best at its end: {number(at_end.value)}, {_trial_line(state, at_end)}"
    return line


def parameters(state: SweepState) -> list[str]:
    """Return the parameters in which trials differ; all of them if there is one trial."""
    seen: dict[str, set[str]] = {}
    for trial in state.trials.values():
        for name, value in trial.config.items():
            seen.setdefault(name, set()).add(repr(value))
    several = len(state.trials) > 1
    return [name for name, values in seen.items() if len(values) > 1 or not several][:_PARAMETERS_SHOWN]


def _total(state: SweepState) -> int:
    return max(state.total or 0, len(state.trials))


def _fraction(state: SweepState) -> float | None:
    return state.done / _total(state) if state.total else None


def _counts(state: SweepState) -> list[tuple[str, str]]:
    counts, words = state.counts(), {"waiting": "not begun"} if state.over else {}
    return [(one, f"{counts[one]} {words.get(one, one)}") for one in STATUSES if counts[one]]


def _counted(state: SweepState) -> str:
    return " · ".join(words for _, words in _counts(state)) or "no trial"


def _progress(state: SweepState, now: float) -> str:
    if not state.first_trial_at:
        return "starting the first trial's process"
    left = state.eta(now)
    eta = "" if left is None else f" · about {seconds(left)} left" if left >= 1 else " · nearly done"
    return f"{state.done} of {_total(state)} trials are over{eta}"


def _trial_line(state: SweepState, trial: TrialState) -> str:
    names = [name for name in parameters(state) if name in trial.config]
    return " · ".join([f"trial {trial.number}", *(f"{name} {_value(trial.config[name])}" for name in names)])


def _live(ranked: Sequence[TrialState]) -> list[TrialState]:
    """The rows while it runs: the best trials, and among them those that run or have failed."""
    busy = [trial for trial in ranked if trial.status in ("running", "failed")][-4:]
    rest = [trial for trial in ranked if trial not in busy][: _ROWS_SHOWN - len(busy)]
    return [trial for trial in ranked if trial in busy or trial in rest]


def _row(state: SweepState, trial: TrialState, names: Sequence[str], nodes: bool) -> tuple[str, ...]:
    is_best, is_over = trial is state.best, trial.status in OVER
    best, last = (UNKNOWN if value is None else number(value) for value in (trial.best, trial.value))
    words = {"finished": "✓ ", "failed": "✕ "}.get(trial.status, "")
    words = (
        "✓ best" if is_best and is_over else words + (trial.why if is_over and trial.why else trial.status)
    )
    words += " · best" if is_best and not is_over else ""
    words += f" · changed {trial.changes} ×" if trial.changes else ""
    return (
        str(trial.number),
        *(_value(trial.config.get(name, UNKNOWN)) for name in names),
        Markup("<b>{}</b>").format(best) if is_best else best,
        last,
        str(trial.iteration),
        f"{trial.seconds:.1f}" if trial.iteration else UNKNOWN,
        *[short(trial.node, 16)] * nodes,
        cards.mark("ok" if is_best else _MARKS.get(trial.status, "dim"), short(words, 36)),
    )


def _value(value: Any) -> str:
    return number(value) if value is None or isinstance(value, (bool, int, float)) else short(str(value), 18)


def _curve(trial: TrialState, is_best: bool) -> tuple[svg.Points, str]:
    step = len(trial.curve) // _POINTS_DRAWN + 1
    return (*trial.curve[:-1:step], trial.curve[-1]), f"trial {trial.number}" if is_best else ""


def _errors(state: SweepState) -> tuple[tuple[str, str], ...]:
    numbers: dict[str, list[int]] = {}
    for failure in state.failures:
        numbers.setdefault(failure.text, []).extend([] if failure.rank is None else [failure.rank])
    found = []
    for text, known in list(numbers.items())[:_ERRORS_SHOWN]:
        listed = ", ".join(map(str, known[:8])) + (" …" if len(known) > 8 else "")
        found.append((f"trial{'s' * (len(known) != 1)} {listed}:" if known else "", text[-_ERROR_LENGTH:]))
    return tuple(found)
