"""How a sweep looks: the panel while it runs, the summary that stays, and its lines in a log."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from markupsafe import Markup

from labkit.display import cards, svg
from labkit.display.formatting import UNKNOWN, duration, number, plural, seconds, short
from labkit.panel.state.base import Failure
from labkit.panel.view.base import View
from labkit.tune.state import STATUSES, SweepState, TrialState

_ROWS_SHOWN, _ROWS_KEPT = 10, 200
_PARAMETERS_SHOWN, _VALUE_SHOWN = 4, 18
_CURVES_DRAWN, _POINTS_DRAWN = 60, 24  # more grey lines are one grey area
_ERRORS_SHOWN, _ERROR_LENGTH = 3, 4_000
_STEPS_TOLD = 4  # lines with counts in a log
_MARKS = {
    "finished": "ok", "running": "wait", "paused": "wait", "cut off": "wait", "failed": "bad",
}  # fmt: skip


class SweepView(View):
    output = "errors"

    def subtitle(self, state: SweepState) -> str:
        parts = [state.engine] + ([plural(state.expected, "trial")] if state.expected else [])
        return " · ".join(parts + ([f"{state.at_once} at a time"] if state.at_once else []))

    def body(self, state: SweepState, now: float) -> Markup:
        marks = [(_MARKS.get(status, "dim"), words) for status, words in _counts(state).items()]
        fraction = state.done / state.total if state.total else None
        ranked = state.ranked()
        left = cards.steps(marks) + cards.bar(_progress(state, now), fraction)
        left += _table(state, ranked[:_ROWS_SHOWN], more=len(ranked) - _ROWS_SHOWN)
        if state.failures:
            failed = cards.mark("bad", f"✕ {self.failed(state.failures[0])}")
            left += Markup("<div>{}</div>").format(failed)
        return cards.columns(left + _warning(state), _curves(state))

    def figures(self, state: SweepState) -> Markup:
        ranked = state.ranked()
        left = _table(state, ranked[:_ROWS_SHOWN]) + _warning(state)
        parts = [cards.columns(left, _curves(state))] if ranked else []
        if state.failures and state.status != "failed":
            parts.append(self.details(state))
        if len(ranked) > _ROWS_SHOWN:
            words = plural(len(ranked) - _ROWS_SHOWN, "more trial")
            parts.append(cards.fold(words, _table(state, ranked[_ROWS_SHOWN:_ROWS_KEPT])))
        return cards.join(parts)

    def details(self, state: SweepState) -> Markup:
        return cards.join(map(cards.pre, _errors(state))) or cards.text("no trial has failed so far")

    def result(self, state: SweepState) -> str:
        return best_line(state)

    def note(self, state: SweepState) -> str:
        spent = [f"{name} {seconds(value)}" for name, value in state.phase_seconds().items()]
        return f"{_counted(state)} in {duration(state.elapsed())}: {' · '.join(spent)}"

    def news(self, state: SweepState) -> Iterator[tuple[Hashable, str]]:
        if state.total and (step := state.done * _STEPS_TOLD // state.total):
            yield ("step", step), f"{_progress(state)} · {best_line(state)}"
        if state.warning:
            yield "warning", state.warning
        if state.over:
            if state.status != "failed":  # otherwise the error of the sweep itself says it
                yield from (("error", text) for text in _errors(state))
            yield "best", best_line(state)

    def failed(self, failure: Failure) -> str:
        return f"{_who(failure)} failed: {short(failure.message, 160)}"

    def last_line(self, state: SweepState) -> str:
        return f"{super().last_line(state)}: {_counted(state)}"


def best_line(state: SweepState) -> str:
    """Return the best of the trials' last values: ``best accuracy 0.979, trial 9 · lr 0.043``."""
    if (best := state.best) is None:
        return f"no trial reported {state.metric}" if state.metric else "no metric to compare trials by"
    shown = [f"{name} {_value(best.config[name])}" for name in _parameters(state) if name in best.config]
    return " · ".join([f"best {state.metric} {number(best.value)}, trial {best.number}", *shown])


def _curves(state: SweepState) -> Markup:
    """One grey line for each trial, the best one in colour, a dotted line for each rung."""
    drawn = [trial for trial in state.ranked()[:_CURVES_DRAWN] if trial.curve]
    values = [value for trial in drawn for *_, value in trial.curve]
    low, high = min(values, default=0.0), max(values, default=1.0)
    if "accuracy" in (state.metric or "") and low >= 0 and high <= 1:
        low, high = 0.0, 1.0  # a share is seen against the whole
    first = min((time for trial in drawn for _, time, _ in trial.curve), default=0)
    last = max((time for trial in drawn for _, time, _ in trial.curve), default=1)
    rungs = [rung for rung in state.rungs if rung <= last and not state.warning]
    counts = "training_iteration" if state.warning or not state.rungs else state.time
    axis = "iteration" if counts == "training_iteration" else short(counts, 24)
    label = f"{axis} (dotted: rungs)" if rungs else axis
    plot = svg.Plot((min(first, 0), max(last, 1)), (low, high), label=label)
    for rung in rungs:
        plot.vertical(rung)
    for trial in reversed(drawn):  # the best is the first, and drawn on top
        kept = (*trial.curve[: -1 : len(trial.curve) // _POINTS_DRAWN + 1], trial.curve[-1])
        points = [(time, value) for _, time, value in kept]
        if trial is state.best:
            plot.curve(points, svg.MAIN)
            plot.legend([(f"trial {trial.number}", svg.MAIN, "")])
        else:
            plot.curve(points, "currentColor", width=1, opacity=0.35)
    plot.ticks([(value, number(value)) for value in {int(last), *rungs}])
    return plot.svg(f"{state.metric or 'metric'} of {len(drawn)} trials by {axis}")


def _warning(state: SweepState) -> Markup:
    return (
        Markup("<div>{}</div>").format(cards.mark("wait", state.warning)) if state.warning else cards.NOTHING
    )


def _table(state: SweepState, trials: Sequence[TrialState], *, more: int = 0) -> Markup:
    names = _parameters(state)
    head = ("trial", *(short(name, 14) for name in names), short(state.metric or "metric", 16))
    rows = [_row(trial, names, is_best=trial is state.best) for trial in trials]
    return cards.table((*head, "iteration", "seconds", ""), rows, more=more)


def _row(trial: TrialState, names: Sequence[str], *, is_best: bool) -> tuple[str, ...]:
    words = (trial.why or trial.status) + " · best" * is_best
    words += f" · changed {trial.changes} ×" if trial.changes else ""
    value = UNKNOWN if trial.value is None else number(trial.value)
    return (
        str(trial.number),
        *(_value(trial.config.get(name, UNKNOWN)) for name in names),
        Markup("<b>{}</b>").format(value) if is_best else value,
        str(trial.iteration),
        f"{trial.seconds:.1f}" if trial.iteration else UNKNOWN,
        cards.mark("ok" if is_best else _MARKS.get(trial.status, "dim"), short(words, 36)),
    )


def _value(value: Any) -> str:
    """A number in short; a long text without its middle, because objects often differ at the end."""
    if isinstance(value, (int, float)):
        return number(value)
    text = " ".join(str(value).split())
    return text if len(text) <= _VALUE_SHOWN else f"{text[:9]}…{text[-8:]}"


def _parameters(state: SweepState) -> list[str]:
    """The parameters in which trials differ; all of them if there is one trial."""
    seen: dict[str, set[str]] = {}
    for trial in state.trials.values():
        for name, value in trial.config.items():
            seen.setdefault(name, set()).add(repr(value))
    several = len(state.trials) > 1
    return [name for name, values in seen.items() if len(values) > 1 or not several][:_PARAMETERS_SHOWN]


def _counts(state: SweepState) -> dict[str, str]:
    counts, words = state.counts(), {"waiting": "not begun"} if state.over else {}
    return {one: f"{counts[one]} {words.get(one, one)}" for one in STATUSES if counts[one]}


def _counted(state: SweepState) -> str:
    return " · ".join(_counts(state).values()) or "no trial"


def _progress(state: SweepState, now: float | None = None) -> str:
    if state.start_seconds is None and not state.done:  # a restored sweep may have trials that are over
        return "starting the first trial's process"
    left = state.eta(now)
    eta = "" if left is None else f" · about {seconds(left)} left" if left >= 1 else " · nearly done"
    return f"{state.done} of {state.expected} trials are over{eta}"


def _errors(state: SweepState) -> list[str]:
    known: dict[str, list[str]] = {}
    for failure in state.failures:
        known.setdefault(failure.text[-_ERROR_LENGTH:], []).append(_who(failure))
    return [f"{', '.join(who)}:\n{text}" for text, who in known.items()][:_ERRORS_SHOWN]


def _who(failure: Failure) -> str:
    return "the sweep" if failure.rank is None else f"trial {failure.rank}"
