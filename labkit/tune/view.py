"""How a sweep looks: the panel while it runs, the summary that stays, and its lines in a log."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from labkit.display import cards, svg
from labkit.display.formatting import UNKNOWN, duration, number, plural, seconds, short
from labkit.panel.state.base import Failure
from labkit.panel.view.base import Snapshot, View
from labkit.tune.state import OVER, STATUSES, SweepState, TrialState

_ROWS_SHOWN, _ROWS_KEPT = 10, 200
_PARAMETERS_SHOWN = 4
_CURVES_DRAWN, _POINTS_DRAWN = 60, 24  # more grey lines are one grey area
_ERRORS_SHOWN, _ERROR_LENGTH = 3, 4_000
_STEPS_TOLD = 4  # lines with counts in a log
_MARKS = {
    "finished": "ok", "running": "wait", "paused": "wait", "cut off": "wait", "failed": "bad",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class SweepSnapshot(Snapshot):
    """What a sweep's panel shows.

    Attributes:
        counts: (kind, words) by status.
        progress, fraction: the words above the bar, and the share of trials that are over, if known.
        head, rows: the table of trials; `trials` is how many there are.
        curves: (iteration, value) points of each trial, with a label for the best one.
        rungs: iterations at which trials are compared.
        improvements: (seconds, best value so far), up to now.
        errors: (trial numbers, traceback), each traceback once.
    """

    counts: tuple[tuple[str, str], ...]
    progress: str
    fraction: float | None
    metric: str | None
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    trials: int
    curves: tuple[tuple[svg.Points, str], ...]
    rungs: tuple[int, ...]
    improvements: tuple[tuple[float, float], ...]
    errors: tuple[tuple[str, str], ...]
    best: str
    spent: str


class SweepView(View):
    """Draws a sweep."""

    output = "errors"

    def snapshot(self, state: SweepState, now: float) -> SweepSnapshot:
        ranked, names = state.ranked(), parameters(state)
        nodes = len({trial.node for trial in ranked if trial.node}) > 1
        shown = ranked[:_ROWS_KEPT] if state.over else _live(ranked)
        values = f"best {short(state.metric or 'metric', 16)}", "last", "iteration", "seconds"
        total = max(state.total or 0, len(ranked))
        points = state.improvements
        return SweepSnapshot(
            **self.common(state, now, _subtitle(state, total)),
            counts=tuple((_MARKS.get(status, "dim"), words) for status, words in _counts(state)),
            progress=_progress(state, now, total),
            fraction=state.done / total if state.total else None,
            metric=state.metric,
            head=("trial", *(short(name, 14) for name in names), *values, *["node"] * nodes, ""),
            rows=tuple(_row(state, trial, names, nodes) for trial in shown),
            trials=len(ranked),
            curves=tuple(
                _curve(trial, trial is state.best) for trial in ranked[:_CURVES_DRAWN] if trial.curve
            ),
            rungs=state.rungs,
            improvements=(*points, (state.elapsed(now), points[-1][1])) if points else (),
            errors=_errors(state),
            best=best_line(state),
            spent=" · ".join(f"{name} {seconds(value)}" for name, value in state.phase_seconds(now).items()),
        )

    def body(self, snapshot: SweepSnapshot) -> Markup:
        left = cards.steps(snapshot.counts) + cards.bar(snapshot.progress, snapshot.fraction)
        left += self._table(snapshot, snapshot.rows[:_ROWS_SHOWN])
        if snapshot.trials > len(snapshot.rows):
            left += cards.mark("dim", f"and {plural(snapshot.trials - len(snapshot.rows), 'more trial')}")
        if snapshot.errors:
            left += Markup("<div>{}</div>").format(
                cards.mark("bad", f"✕ {self.failed(snapshot.failures[0])}")
            )
        return cards.columns(left, self._charts(snapshot))

    def figures(self, snapshot: SweepSnapshot) -> Markup:
        parts = [self.details(snapshot)] if snapshot.errors and snapshot.status != "failed" else []
        if snapshot.rows:
            table = self._table(snapshot, snapshot.rows[:_ROWS_SHOWN])
            parts.insert(0, cards.columns(table, self._charts(snapshot)))
        if len(snapshot.rows) > _ROWS_SHOWN:
            words = plural(snapshot.trials - _ROWS_SHOWN, "more trial")
            parts.append(cards.fold(words, self._table(snapshot, snapshot.rows[_ROWS_SHOWN:])))
        return cards.join(parts)

    def details(self, snapshot: SweepSnapshot) -> Markup:
        errors = (cards.pre(f"{who}\n{text}" if who else text) for who, text in snapshot.errors)
        return cards.join(errors) or cards.text("no trial has failed so far")

    def result(self, snapshot: SweepSnapshot) -> str:
        return snapshot.best

    def note(self, snapshot: SweepSnapshot) -> str:
        words = " · ".join(words for _, words in snapshot.counts) or "no trial"
        return f"{words} in {duration(snapshot.seconds)}: {snapshot.spent}"

    def news(self, snapshot: SweepSnapshot) -> Iterator[tuple[Hashable, str]]:
        if step := int((snapshot.fraction or 0) * _STEPS_TOLD):
            yield ("step", step), f"{snapshot.progress} · {snapshot.best}"
        if snapshot.over:
            for who, text in snapshot.errors:
                if "\n" in text:  # one line was in the news when it happened
                    yield ("error", text), f"{who}\n{text}"
            yield "best", snapshot.best

    def failed(self, failure: Failure) -> str:
        who = "the sweep" if failure.rank is None else f"trial {failure.rank}"
        return f"{who} failed: {short(failure.message, 160)}"

    def last_line(self, snapshot: SweepSnapshot) -> str:
        words = " · ".join(words for _, words in snapshot.counts) or "no trial"
        return f"{super().last_line(snapshot)}: {words}"

    def _table(self, snapshot: SweepSnapshot, rows: Sequence[tuple[str, ...]]) -> Markup:
        return cards.table(snapshot.head, rows)

    def _charts(self, snapshot: SweepSnapshot) -> Markup:
        return _curves(snapshot) + (_best_so_far(snapshot) if snapshot.improvements else cards.NOTHING)


# -- charts -----------------------------------------------------------------------------------------


def _curves(snapshot: SweepSnapshot) -> Markup:
    """One grey line for each trial, the best one in colour, a dotted line for each rung."""
    values = [value for points, _ in snapshot.curves for _, value in points]
    low, high = min(values, default=0.0), max(values, default=1.0)
    if "accuracy" in (snapshot.metric or "") and low >= 0 and high <= 1:
        low, high = 0.0, 1.0  # a share is seen against the whole
    last = max((points[-1][0] for points, _ in snapshot.curves), default=1)
    rungs = [rung for rung in snapshot.rungs if rung <= last]
    label = "iteration (dotted: rungs)" if rungs else "iteration"
    plot = svg.Plot((0, max(last, 1)), (low, high), label=label, top=10)
    for rung in rungs:
        plot.vertical(rung)
    for points, name in reversed(snapshot.curves):  # the best is the first, and drawn on top
        if name:
            plot.curve(points, svg.MAIN)
            x, y = plot.x(points[-1][0]), plot.y(points[-1][1])
            x, anchor = (x - 5, "end") if x > plot.width * 0.6 else (x + 6, "start")
            plot.add(svg.text(x, y + (14 if y < plot.height / 2 else -7), name, anchor))
        else:
            plot.curve(points, "currentColor", width=1, opacity=0.35)
    plot.ticks([(value, number(value)) for value in {int(last), *rungs}])
    return plot.svg(f"{snapshot.metric or 'metric'} of {len(snapshot.curves)} trials by iteration")


def _best_so_far(snapshot: SweepSnapshot) -> Markup:
    points = snapshot.improvements[-120:]
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


def _subtitle(state: SweepState, total: int) -> str:
    parts = [state.engine] + ([plural(total, "trial")] if total else [])
    return " · ".join(parts + ([f"{state.at_once} at a time"] if state.at_once else []))


def _counts(state: SweepState) -> list[tuple[str, str]]:
    counts, words = state.counts(), {"waiting": "not begun"} if state.over else {}
    return [(one, f"{counts[one]} {words.get(one, one)}") for one in STATUSES if counts[one]]


def _progress(state: SweepState, now: float, total: int) -> str:
    if not state.first_trial_at:
        return "starting the first trial's process"
    left = state.eta(now)
    eta = "" if left is None else f" · about {seconds(left)} left" if left >= 1 else " · nearly done"
    return f"{state.done} of {total} trials are over{eta}"


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
