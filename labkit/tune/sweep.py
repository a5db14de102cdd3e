"""The facts of a sweep: it takes in the results of trials, and counts and ranks them.

A trial is waiting, running, paused (its scheduler put it aside for others), finished, stopped early (its
scheduler ended it, because others were better), failed, or cut off (the sweep ended before it).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.panel.run import Failure, Run, Thinned
from labkit.panel.workers import WorkerState
from labkit.runs.verdict import Verdict, verdict
from labkit.worker.events import Parts

OVER = ("finished", "stopped early", "failed")
_POINTS_KEPT = 60  # of one trial's curve


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
        process = self.process
        if self._verdict is None and (process.samples or process.unseen):
            self._verdict = verdict({"unseen": process.unseen, "ranks": {"0": process.samples}})
        return self._verdict

    def note_steps(self, event: Parts) -> None:
        """Take in where the time of its steps went up to now."""
        process = self.process
        samples = process.samples
        if samples and event.parts.get("steps", 0) < samples[-1][0]:
            samples.clear()  # Tune has called its function once more, maybe in another process
        if event.memory:
            process.memory = event.memory
        process.note_parts(event.parts)
        self._verdict = None

    def to_record(self) -> dict[str, Any]:
        record = dict(vars(self))
        for name in ("curve", "process", "_verdict"):
            del record[name]
        if self.verdict is not None:
            record["verdict"] = self.verdict.to_json()
        return record


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
    over_before: int = 0  # trials that were over when this process restored the sweep
    at_once: int = 0  # the most trials that ran at a time
    trials: dict[str, TrialState] = field(default_factory=dict)  # by Tune's id
    warning: str = ""  # what is wrong with the sweep although it runs
    names: list[str] = field(default_factory=list)  # sentences on names that trials report, and Tune uses
    not_finite: str = ""  # a sentence on the first trial whose metric was no finite number

    # -- what happens -------------------------------------------------------------------------------

    def add(self, id: str, config: dict[str, Any]) -> None:
        self.trials[id] = TrialState(len(self.trials), config)

    def set_status(self, id: str, status: str, *, why: str = "", now: float | None = None) -> None:
        trial = self.trials[id]
        trial.status = status
        trial.why = why
        if status != "running":
            return
        self.at_once = max(self.at_once, self.counts()["running"])
        if self.phase != "training":
            self.enter("training", now)

    def reported(
        self,
        id: str,
        *,
        iteration: int,
        value: Any,
        seconds: float,
        time: float | None = None,
    ) -> None:
        """Take in a trial's result; only a finite `value` counts. `time` is the iteration by default."""
        trial = self.trials[id]
        trial.iteration = iteration
        trial.seconds = seconds
        trial.value = None
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and math.isfinite(value):
            trial.value = float(value)
            if time is None:
                time = iteration
            trial.curve.add((iteration, time, trial.value))

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
        for trial in self.ranked():
            if trial.value is not None:
                return trial
        return None

    def ranked(self) -> list[TrialState]:
        """Return all trials, the best first and those without a value last."""
        sign = 1 if self.mode == "min" else -1

        def rank(trial: TrialState) -> float:
            if trial.value is None:
                return math.inf
            return sign * trial.value

        return sorted(self.trials.values(), key=rank)

    def eta(self, now: float | None = None) -> float | None:
        """Return the seconds left, if the trials to come take as long as those that are over."""
        if self.over or self.phase != "training":
            return None
        done_here = self.done - self.over_before
        if done_here < 2 or not self.total:
            return None
        seconds_each = self.phase_seconds(now)["training"] / done_here
        return seconds_each * (self.total - self.done)

    def to_record(self) -> dict[str, Any]:
        spent = self.phase_seconds()
        best = self.best
        record: dict[str, Any] = {
            "workers": self.at_once,
            "dataset": self.dataset,
            "storage_path": self.path,
            "seconds": spent,
            "seconds_to_start": spent.get("start") if "training" in spent else None,
            "extra": {
                "counts": dict(self.counts()),
                "best": None if best is None else best.number,
                "trials": [trial.to_record() for trial in self.trials.values()],
            },
        }
        if best is not None:
            record["config"] = best.config
            record["metrics"] = {self.metric: best.value}
            record["history"] = [
                {"epoch": iteration - 1, self.metric: value} for iteration, _, value in best.curve
            ]
        return record
