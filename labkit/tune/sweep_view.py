"""What a panel shows of a sweep. `labkit.tune.sweep` has the facts."""

from typing import Any

from labkit.display.formatting import UNKNOWN, joined, number, plural, seconds, short
from labkit.panel.shown import Curve, Mark, Plot, Shown, Table
from labkit.tune.sweep import SweepRun, TrialState

_MARKS = {  # how each status is marked, in the order in which they are listed
    "finished": "ok",
    "stopped early": "dim",
    "running": "wait",
    "paused": "wait",
    "waiting": "dim",
    "cut off": "wait",
    "failed": "bad",
}
_CURVES_DRAWN = 60  # more grey lines are one grey area
_ROWS_KEPT = 200
_PARAMETERS_SHOWN = 4
_VALUE_SHOWN = 18  # characters
_STEPS_LOGGED = 4  # lines with counts in a log


def shown(run: SweepRun, now: float) -> Shown:
    """Return what is shown of a sweep at `now` (Unix seconds)."""
    counts = run.counts()
    ranked = run.ranked()
    progress = _progress(run, now)
    result = best_line(run)
    numbers = {status: f"{counts[status]} {status}" for status in _MARKS if counts[status]}
    notes = [run.warning, *run.names, run.not_finite]
    if not run.over:
        notes.append(run.waits)
    elif "waiting" in numbers:
        numbers["waiting"] = f"{counts['waiting']} not begun"
    share = None
    news = []
    if run.total:
        share = run.done / run.total
        step = run.done * _STEPS_LOGGED // run.total
        if step:
            news.append((("progress", step), joined(progress, result)))
    return Shown(
        subtitle=joined(
            run.engine,
            plural(run.expected, "trial") if run.expected else "",
            f"{run.at_once} at a time" if run.at_once else "",
        ),
        steps=[(_MARKS[status], text) for status, text in numbers.items()],
        progress=(share, progress),
        tables=[_table(run, ranked)] if ranked else [],
        plot=_curves(run, ranked) if ranked or not run.over else None,
        notes=list(filter(None, notes)),
        what=joined(*numbers.values()) or "no trial",
        result=result,
        news=news,
    )


def best_line(run: SweepRun) -> str:
    """Return the best of the trials' last values: ``best accuracy 0.979, trial 9 · lr 0.043``."""
    best = run.best
    if best is not None:
        names = [name for name in _parameters(run) if name in best.config]
        values = [f"{name} {_value(best.config[name])}" for name in names]
        return joined(f"best {run.metric} {number(best.value)}, trial {best.number}", *values)
    if run.metric:
        return f"no trial reported {run.metric}"
    return "no metric to compare trials by"


def _progress(run: SweepRun, now: float) -> str:
    if run.phase != "training" and not run.done:  # a restored sweep may have trials that are over
        return "starting the first trial's process"
    progress = f"{run.done} of {run.expected} trials are over"
    left = run.eta(now)
    if left is None:
        return progress
    if left < 1:
        return joined(progress, "nearly done")
    return joined(progress, f"about {seconds(left)} left")


def _curves(run: SweepRun, ranked: list[TrialState]) -> Plot:
    """Draw one grey line for each trial, the best one in colour, a dotted line for each rung."""
    name = run.metric or "metric"
    curves = []
    for trial in ranked[:_CURVES_DRAWN]:
        points = [(time, value) for _, time, value in trial.curve]
        if points:
            curves.append(Curve(name, points, "grey"))
    if curves and ranked[0].value is not None:  # the best is the first, if any has a value
        curves[0].name = f"{short(name, 24)}, trial {ranked[0].number}"
        curves[0].look = "main"
    times = [time for curve in curves for time, _ in curve.points] or [1.0]
    label = "iteration"
    rungs: list[float] = []
    if run.rungs and not run.warning:  # a scheduler whose figure is in no result compares nothing
        rungs = [rung for rung in run.rungs if rung <= max(times)]
        if run.time != "training_iteration":
            label = short(run.time, 24)
    if rungs:
        label += " (dotted: rungs)"
    return Plot(
        label,
        curves[::-1],  # the best is on top
        end=max(*times, 1),
        begin=min(*times, 0),
        marks=rungs,
    )


def _table(run: SweepRun, ranked: list[TrialState]) -> Table:
    names = _parameters(run)
    best = run.best
    columns = [short(name, 14) for name in names]
    head = [
        "trial",
        *columns,
        short(run.metric or "metric", 16),
        "iteration",
        "seconds",
        "",
    ]
    rows = [_row(trial, names, is_best=trial is best) for trial in ranked[:_ROWS_KEPT]]
    return Table(head, rows, more=len(ranked) - len(rows))


def _row(trial: TrialState, names: list[str], *, is_best: bool) -> list[str | Mark]:
    """Return the row of a trial, with its values of the parameters `names`."""
    value = UNKNOWN if trial.value is None else number(trial.value)
    state = [trial.why or trial.status]
    if is_best:
        state.append("best")
    if trial.changes:
        state.append(f"changed {trial.changes} ×")
    if trial.verdict and trial.verdict.causes:
        state.append(trial.verdict.causes[0].name)
    return [
        str(trial.number),
        *(_value(trial.config.get(name, UNKNOWN)) for name in names),
        ("now", value) if is_best else value,
        str(trial.iteration),
        f"{trial.seconds:.1f}" if trial.iteration else UNKNOWN,
        ("ok" if is_best else _MARKS[trial.status], short(joined(*state), 36)),
    ]


def _parameters(run: SweepRun) -> list[str]:
    """Return the parameters in which trials differ; all of them if there is one trial."""
    values: dict[str, set[str]] = {}
    for trial in run.trials.values():
        for name, value in trial.config.items():
            values.setdefault(name, set()).add(repr(value))
    least = 2 if len(run.trials) > 1 else 1
    return [name for name in values if len(values[name]) >= least][:_PARAMETERS_SHOWN]


def _value(value: Any) -> str:
    """Shorten a number, and a long text by its middle, because objects often differ at the end."""
    if isinstance(value, (int, float)):
        return number(value)
    text = " ".join(str(value).split())
    if len(text) <= _VALUE_SHOWN:
        return text
    return f"{text[:9]}…{text[-8:]}"
