"""What a panel shows of a sweep. `labkit.tune.sweep` has the facts."""

from typing import Any

from labkit.display.formatting import UNKNOWN, joined, number, plural, seconds, short
from labkit.panel.shown import Curve, Mark, Plot, Shown, Table
from labkit.tune.sweep import SweepRun, TrialState

_KINDS = {  # how each status is marked, in the order in which they are listed
    "finished": "ok",
    "stopped early": "dim",
    "running": "wait",
    "paused": "wait",
    "waiting": "dim",
    "cut off": "wait",
    "failed": "bad",
}
_CURVES_DRAWN = 60  # more grey lines are one grey area
_ROWS_KEPT, _PARAMETERS_SHOWN, _VALUE_SHOWN = 200, 4, 18
_STEPS_LOGGED = 4  # lines with counts in a log


def shown(run: SweepRun, now: float) -> Shown:
    """Return what is shown of a sweep at `now` (Unix seconds)."""
    counts = run.counts()
    ranked = run.ranked()
    progress = _progress(run, now)
    numbers = {status: f"{counts[status]} {status}" for status in _KINDS if counts[status]}
    if run.over and "waiting" in numbers:
        numbers["waiting"] = f"{counts['waiting']} not begun"
    result = best_line(run)
    waits = "" if run.over else run.waits
    step = run.done * _STEPS_LOGGED // run.total if run.total else 0
    return Shown(
        subtitle=joined(
            run.engine,
            plural(run.expected, "trial") if run.expected else "",
            f"{run.at_once} at a time" if run.at_once else "",
        ),
        steps=[(_KINDS[status], text) for status, text in numbers.items()],
        progress=(run.done / run.total if run.total else None, progress),
        tables=[_table(run, ranked)] if ranked else [],
        plot=_curves(run, ranked) if ranked or not run.over else None,
        notes=[note for note in (run.warning, *run.names, run.not_finite, waits) if note],
        what=joined(*numbers.values()) or "no trial",
        result=result,
        news=[(("progress", step), joined(progress, result))] if step else [],
    )


def best_line(run: SweepRun) -> str:
    """Return the best of the trials' last values: ``best accuracy 0.979, trial 9 · lr 0.043``."""
    best = run.best
    if best is None:
        return f"no trial reported {run.metric}" if run.metric else "no metric to compare trials by"
    values = [f"{name} {_value(best.config[name])}" for name in _parameters(run) if name in best.config]
    return joined(f"best {run.metric} {number(best.value)}, trial {best.number}", *values)


def _progress(run: SweepRun, now: float) -> str:
    if run.phase != "training" and not run.done:  # a restored sweep may have trials that are over
        return "starting the first trial's process"
    left = run.eta(now)
    eta = "" if left is None else f"about {seconds(left)} left" if left >= 1 else "nearly done"
    return joined(f"{run.done} of {run.expected} trials are over", eta)


def _curves(run: SweepRun, ranked: list[TrialState]) -> Plot:
    """Draw one grey line for each trial, the best one in colour, a dotted line for each rung."""
    name = run.metric or "metric"
    curves = []
    for trial in ranked[:_CURVES_DRAWN]:
        if trial.curve:
            curves.append(Curve(name, [(time, value) for _, time, value in trial.curve], "grey"))
    if curves:  # the best is the first
        curves[0].name = f"{short(name, 24)}, trial {ranked[0].number}"
        curves[0].look = "main"
    times = [time for curve in curves for time, _ in curve.points] or [1.0]
    # A scheduler whose figure is in no result compares nothing.
    all_rungs = () if run.warning else run.rungs
    rungs = [rung for rung in all_rungs if rung <= max(times)]
    counted = run.time if all_rungs else "training_iteration"
    axis = "iteration" if counted == "training_iteration" else short(counted, 24)
    label = f"{axis} (dotted: rungs)" if rungs else axis
    on_top = curves[::-1]
    return Plot(label, on_top, end=max(*times, 1), begin=min(*times, 0), marks=rungs)


def _table(run: SweepRun, ranked: list[TrialState]) -> Table:
    names = _parameters(run)
    best = run.best
    columns = [short(name, 14) for name in names]
    head = ["trial", *columns, short(run.metric or "metric", 16), "iteration", "seconds", ""]
    rows = [_row(trial, names, is_best=trial is best) for trial in ranked[:_ROWS_KEPT]]
    return Table(head, rows, more=len(ranked) - len(rows))


def _row(trial: TrialState, names: list[str], *, is_best: bool) -> list[str | Mark]:
    """Return the row of a trial, with its values of the parameters `names`."""
    value = UNKNOWN if trial.value is None else number(trial.value)
    state = joined(
        trial.why or trial.status,
        "best" if is_best else "",
        f"changed {trial.changes} ×" if trial.changes else "",
        trial.verdict.causes[0].name if trial.verdict and trial.verdict.causes else "",
    )
    return [
        str(trial.number),
        *(_value(trial.config.get(name, UNKNOWN)) for name in names),
        ("now", value) if is_best else value,
        str(trial.iteration),
        f"{trial.seconds:.1f}" if trial.iteration else UNKNOWN,
        ("ok" if is_best else _KINDS[trial.status], short(state, 36)),
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
    return text if len(text) <= _VALUE_SHOWN else f"{text[:9]}…{text[-8:]}"
