"""The state of a sweep: takes in the results of trials, and counts, ranks and draws them.

A trial is waiting, running, paused (its scheduler put it aside for others), finished, stopped early (its
scheduler ended it, because others were better), failed, or cut off (the sweep ended before it).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.display.formatting import UNKNOWN, number, plural, seconds, short
from labkit.panel.run import Curve, Failure, Mark, Plot, Run, Table, Thinned, joined
from labkit.panel.workers import WorkerState
from labkit.runs.verdict import Verdict, verdict

OVER = ("finished", "stopped early", "failed")
_KINDS = {  # how each status is marked, in the order in which they are listed
    "finished": "ok",
    "stopped early": "dim",
    "running": "wait",
    "paused": "wait",
    "waiting": "dim",
    "cut off": "wait",
    "failed": "bad",
}
_POINTS_KEPT = 60  # of one trial's curve
_CURVES_DRAWN = 60  # more grey lines are one grey area
_ROWS_KEPT, _PARAMETERS_SHOWN, _VALUE_SHOWN = 200, 4, 18
_STEPS_LOGGED = 4  # lines with counts in a log


@dataclass
class TrialState:
    """One trial."""

    number: int  # its place in the order of creation, from 0
    config: dict[str, Any] = field(default_factory=dict)  # on one level ("optimizer/lr")
    status: str = "waiting"
    why: str = ""  # what ended it, in a few words
    iteration: int = 0  # results that it has reported
    seconds: float = 0.0  # of training, as Tune counts them
    value: float | None = None  # the metric in its newest result; None if that is no finite number
    # (iteration, time, value), thinned for long trials; `time` is what the scheduler counts
    curve: Thinned = field(default_factory=lambda: Thinned(_POINTS_KEPT))
    changes: int = 0  # how often its configuration was changed during the sweep
    process: WorkerState = field(default_factory=lambda: WorkerState(0))  # that runs it, and its steps
    _verdict: Verdict | None = None  # on its steps up to now, computed when it is asked for

    @property
    def verdict(self) -> Verdict | None:
        """Why its steps are slow; None if none was seen."""
        if self._verdict is None and (self.process.samples or self.process.unseen):
            ranks = {"0": self.process.samples} if self.process.samples else {}
            self._verdict = verdict({"unseen": self.process.unseen, "ranks": ranks})
        return self._verdict

    def note_steps(self, event: dict[str, Any]) -> None:
        """Take in where the time of its steps went up to now."""
        process, parts = self.process, event.get("parts", {})
        if process.samples and parts.get("steps", 0) < process.samples[-1][0]:
            process.samples.clear()  # Tune has called its function once more, maybe in another process
        process.memory = event.get("memory", process.memory)
        process.note_parts(parts)
        self._verdict = None

    def to_record(self) -> dict[str, Any]:
        left_out = ("curve", "process", "_verdict")
        record = {name: value for name, value in vars(self).items() if name not in left_out}
        return record if self.verdict is None else {**record, "verdict": self.verdict.to_json()}

    def row(self, names: Sequence[str], *, is_best: bool) -> list[str | Mark]:
        """Return its row in the table, with the values of these parameters."""
        value = UNKNOWN if self.value is None else number(self.value)
        state = joined(
            self.why or self.status,
            "best" if is_best else "",
            f"changed {self.changes} ×" if self.changes else "",
            self.verdict.causes[0].name if self.verdict and self.verdict.causes else "",
        )
        return [
            str(self.number),
            *(_shown(self.config.get(name, UNKNOWN)) for name in names),
            ("now", value) if is_best else value,
            str(self.iteration),
            f"{self.seconds:.1f}" if self.iteration else UNKNOWN,
            ("ok" if is_best else _KINDS[self.status], short(state, 36)),
        ]


@dataclass(eq=False, repr=False)
class SweepRun(Run):
    """The state of one sweep."""

    engine: str = "Ray Tune"
    unit: str = "trial"
    metric: str | None = None  # what is compared; "max" or "min" of it is better
    mode: str = "max"
    time: str = "training_iteration"  # what the scheduler counts
    rungs: Sequence[float] = ()  # the times at which it compares trials, ascending
    dataset: str | None = None
    path: str | None = None  # the folder of the results
    total: int | None = None  # trials that there will be, if that is known
    at_once: int = 0  # the most trials that ran at a time
    trials: dict[str, TrialState] = field(default_factory=dict)  # by Tune's id
    warning: str = ""  # what is wrong with the sweep although it runs

    # -- what happens -------------------------------------------------------------------------------

    def add(self, id: str, config: dict[str, Any]) -> None:
        self.trials[id] = TrialState(len(self.trials), config)

    def set_status(self, id: str, status: str, *, why: str = "", now: float | None = None) -> None:
        trial = self.trials[id]
        trial.status = status
        trial.why = why
        if status == "running":
            self.at_once = max(self.at_once, self.counts()["running"])
            if self.phase != "training":
                self.enter("training", now)

    def reported(
        self, id: str, *, iteration: int, value: Any, seconds: float, time: float | None = None
    ) -> None:
        """Take in a trial's result; only a finite `value` counts. `time` is the iteration by default."""
        trial = self.trials[id]
        trial.iteration = iteration
        trial.seconds = seconds
        trial.value = None
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            trial.value = float(value)
            trial.curve.add((iteration, iteration if time is None else time, trial.value))

    def trial_failed(self, id: str, text: str) -> None:
        """Take in that a trial has raised; `text` is its short traceback."""
        self.set_status(id, "failed", why=Failure(None, text).message)
        self.fail(text, rank=self.trials[id].number)

    # -- what it comes to ---------------------------------------------------------------------------

    def counts(self) -> Counter:
        """Count trials by status; those that are not drawn yet wait, too."""
        counts = Counter(trial.status for trial in self.trials.values())
        counts["waiting"] += self.expected - len(self.trials)
        return +counts

    @property
    def expected(self) -> int:
        """The number of trials that there are or will be, as far as that is known."""
        return max(self.total or 0, len(self.trials))

    @property
    def done(self) -> int:
        return sum(trial.status in OVER for trial in self.trials.values())

    @property
    def all_failed(self) -> bool:
        return bool(self.trials) and all(trial.status == "failed" for trial in self.trials.values())

    @property
    def best(self) -> TrialState | None:
        """The trial whose newest value is the best: the one that `ResultGrid.get_best_result` returns."""
        return next((trial for trial in self.ranked() if trial.value is not None), None)

    def ranked(self) -> list[TrialState]:
        """Return all trials, the best first and those without a value last."""
        sign = 1 if self.mode == "min" else -1

        def rank(trial: TrialState) -> float:
            return math.inf if trial.value is None else sign * trial.value

        return sorted(self.trials.values(), key=rank)

    def eta(self, now: float | None = None) -> float | None:
        """Return the seconds left, if the trials to come take as long as those that are over."""
        if self.over or self.done < 2 or self.phase != "training" or not self.total:
            return None
        return self.phase_seconds(now)["training"] / self.done * (self.total - self.done)

    def to_record(self) -> dict[str, Any]:
        best = self.best
        spent = self.phase_seconds()
        curve = best.curve if best else ()
        return {
            "workers": self.at_once,
            "dataset": self.dataset,
            "storage_path": self.path,
            "seconds": spent,
            "seconds_to_start": spent.get("start") if "training" in spent else None,
            "config": best.config if best else {},
            "metrics": {self.metric: best.value} if best else {},
            "history": [{"epoch": iteration - 1, self.metric: value} for iteration, _, value in curve],
            "extra": {
                "counts": dict(self.counts()),
                "best": best.number if best else None,
                "trials": [trial.to_record() for trial in self.trials.values()],
            },
        }

    # -- what is shown ------------------------------------------------------------------------------

    def fill(self, now: float) -> None:
        counts = self.counts()
        ranked = self.ranked()
        progress = self._progress(now)
        numbers = {status: f"{counts[status]} {status}" for status in _KINDS if counts[status]}
        if self.over and "waiting" in numbers:
            numbers["waiting"] = f"{counts['waiting']} not begun"
        self.subtitle = joined(
            self.engine,
            plural(self.expected, "trial") if self.expected else "",
            f"{self.at_once} at a time" if self.at_once else "",
        )
        self.steps = [(_KINDS[status], text) for status, text in numbers.items()]
        self.progress = self.done / self.total if self.total else None, progress
        self.tables = [self._table(ranked)] if ranked else []
        self.plot = self._curves(ranked) if ranked or not self.over else None
        self.notes = [note for note in (self.warning, "" if self.over else self.waits) if note]
        self.what = joined(*numbers.values()) or "no trial"
        self.result = self.best_line()
        step = self.done * _STEPS_LOGGED // self.total if self.total else 0
        self.news = [(("progress", step), joined(progress, self.result))] if step else []

    def best_line(self) -> str:
        """Return the best of the trials' last values: ``best accuracy 0.979, trial 9 · lr 0.043``."""
        best = self.best
        if best is None:
            return f"no trial reported {self.metric}" if self.metric else "no metric to compare trials by"
        shown = [f"{name} {_shown(best.config[name])}" for name in self._parameters() if name in best.config]
        return joined(f"best {self.metric} {number(best.value)}, trial {best.number}", *shown)

    def _progress(self, now: float) -> str:
        if self.phase != "training" and not self.done:  # a restored sweep may have trials that are over
            return "starting the first trial's process"
        left = self.eta(now)
        eta = "" if left is None else f"about {seconds(left)} left" if left >= 1 else "nearly done"
        return joined(f"{self.done} of {self.expected} trials are over", eta)

    def _curves(self, ranked: list[TrialState]) -> Plot:
        """Draw one grey line for each trial, the best one in colour, a dotted line for each rung."""
        name = self.metric or "metric"
        curves = []
        for trial in ranked[:_CURVES_DRAWN]:
            if trial.curve:
                curves.append(Curve(name, [(time, value) for _, time, value in trial.curve], "grey"))
        if curves:  # the best is the first
            curves[0].name = f"{short(name, 24)}, trial {ranked[0].number}"
            curves[0].look = "main"
        times = [time for curve in curves for time, _ in curve.points] or [1.0]
        # A scheduler whose figure is in no result compares nothing.
        all_rungs = () if self.warning else self.rungs
        rungs = [rung for rung in all_rungs if rung <= max(times)]
        counted = self.time if all_rungs else "training_iteration"
        axis = "iteration" if counted == "training_iteration" else short(counted, 24)
        label = f"{axis} (dotted: rungs)" if rungs else axis
        on_top = curves[::-1]
        return Plot(label, on_top, end=max(*times, 1), begin=min(*times, 0), marks=rungs)

    def _table(self, ranked: list[TrialState]) -> Table:
        names = self._parameters()
        best = self.best
        columns = [short(name, 14) for name in names]
        head = ["trial", *columns, short(self.metric or "metric", 16), "iteration", "seconds", ""]
        rows = [trial.row(names, is_best=trial is best) for trial in ranked[:_ROWS_KEPT]]
        return Table(head, rows, more=len(ranked) - len(rows))

    def _parameters(self) -> list[str]:
        """Return the parameters in which trials differ; all of them if there is one trial."""
        values: dict[str, set[str]] = {}
        for trial in self.trials.values():
            for name, value in trial.config.items():
                values.setdefault(name, set()).add(repr(value))
        least = 2 if len(self.trials) > 1 else 1
        return [name for name in values if len(values[name]) >= least][:_PARAMETERS_SHOWN]


def _shown(value: Any) -> str:
    """Shorten a number, and a long text by its middle, because objects often differ at the end."""
    if isinstance(value, (int, float)):
        return number(value)
    text = " ".join(str(value).split())
    return text if len(text) <= _VALUE_SHOWN else f"{text[:9]}…{text[-8:]}"
