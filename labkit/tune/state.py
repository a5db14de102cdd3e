"""What has happened in a sweep: results of trials go in, counts, order, the best one and the ETA come out.

A trial has one of these statuses:

=============== ======================================================================================
waiting         it has no process yet
running         it trains
paused          its scheduler put it aside for others (population-based training does)
finished        it came to its end: a stop criterion, or its function returned
stopped early   its scheduler ended it: others were better at the same rung
failed          it raised, or its process was killed
cut off         the sweep ended before it: an interrupt, or an error of the sweep itself
=============== ======================================================================================
"""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from labkit.panel.state.base import Failure, State

STATUSES = ("finished", "stopped early", "running", "paused", "waiting", "cut off", "failed")
OVER = ("finished", "stopped early", "failed")
_POINTS_KEPT = 200  # of one trial's curve


@dataclass
class TrialState:
    """One trial.

    Attributes:
        id: Tune's.
        number: its place in the order of creation, from 0.
        config: its configuration on one level ("optimizer/lr").
        status: one of `STATUSES`.
        why: what ended it, in a few words.
        iteration, seconds: results that it has reported, and its training time as Tune counts it.
        value, best: the sweep's metric in its newest result, and the best of all; None before the first.
        curve: (iteration, value), thinned for very long trials.
        changes: how often its configuration was changed during the sweep.
        node: where it runs, or ran.
        error: its short traceback, if it failed.
    """

    id: str
    number: int
    config: dict[str, Any] = field(default_factory=dict)
    status: str = "waiting"
    why: str = ""
    iteration: int = 0
    seconds: float = 0.0
    value: float | None = None
    best: float | None = None
    curve: list[tuple[int, float]] = field(default_factory=list)
    changes: int = 0
    node: str = ""
    error: str = ""


class SweepState(State):
    """All that is known of one sweep.

    Args:
        metric, mode: what is compared, and whether "max" or "min" is better; metric may be None.
        rungs: the iterations at which the scheduler compares trials, ascending.
        dataset, path: for the record; `path` is the folder of the results.

    Attributes:
        total: trials that there will be; None if that is not known.
        at_once: the most trials that ran at a time.
        improvements: (seconds since the start, best value so far).
        best: the trial with the best value of all results.
    """

    engine = "Ray Tune"

    def __init__(
        self,
        name: str,
        *,
        metric: str | None = None,
        mode: str = "max",
        rungs: Sequence[int] = (),
        dataset: str | None = None,
        path: str | None = None,
    ) -> None:
        super().__init__(name)
        self.metric, self.mode, self.rungs = metric, mode, tuple(rungs)
        self.dataset, self.path = dataset, path
        self.total: int | None = None
        self.at_once = 0
        self.first_trial_at = 0.0
        self.trials: dict[str, TrialState] = {}
        self.improvements: list[tuple[float, float]] = []
        self.best: TrialState | None = None
        self._done_before = 0  # trials that a restored sweep had finished already

    # -- what happens -------------------------------------------------------------------------------

    def add(self, id: str, config: dict[str, Any], number: int | None = None) -> TrialState:
        """There is a new trial; `number` is its place, if it has one that outlives a restart."""
        trial = self.trials[id] = TrialState(id, len(self.trials) if number is None else number, config)
        return trial

    def set_status(self, id: str, status: str, *, why: str = "", now: float | None = None) -> None:
        """The trial has `status` from now on."""
        trial = self.trials[id]
        trial.status, trial.why = status, "" if status == "running" else why or trial.why
        if status == "running":
            self.first_trial_at = self.first_trial_at or now or time.time()
            self.at_once = max(self.at_once, self.counts()["running"])

    def restored(self, id: str, status: str) -> None:
        """The trial was over before the sweep was interrupted and restored."""
        self.set_status(id, status, why="before the restart")
        self._done_before += 1

    def result(
        self, id: str, *, iteration: int, value: Any, seconds: float, node: str, now: float | None = None
    ) -> None:
        """The trial has reported; only a finite `value` counts."""
        trial = self.trials[id]
        trial.iteration, trial.seconds, trial.node = iteration, seconds, node
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return
        trial.value = float(value)
        trial.curve.append((iteration, trial.value))
        if len(trial.curve) > _POINTS_KEPT:
            del trial.curve[1:-1:2]
        if self.best is None or self._is_better(trial.value, self.best.best):
            self.best = trial
            self.improvements.append((self.elapsed(now), trial.value))
        if self._is_better(trial.value, trial.best):
            trial.best = trial.value

    def trial_failed(self, id: str, text: str) -> None:
        """The trial has raised; `text` is its short traceback."""
        trial = self.trials[id]
        trial.status, trial.error, trial.why = "failed", text, Failure(None, text).message
        self.fail(text, rank=trial.number)

    # -- what it comes to ---------------------------------------------------------------------------

    def counts(self) -> Counter:
        """Trials by status; those that are not drawn yet wait, too."""
        counts = Counter(trial.status for trial in self.trials.values())
        if (to_come := (self.total or 0) - len(self.trials)) > 0:
            counts["waiting"] += to_come
        return counts

    @property
    def done(self) -> int:
        """Trials that are over."""
        return sum(trial.status in OVER for trial in self.trials.values())

    @property
    def all_failed(self) -> bool:
        """Whether there are trials, and every one of them failed."""
        return bool(self.trials) and all(trial.status == "failed" for trial in self.trials.values())

    @property
    def best_at_end(self) -> TrialState | None:
        """The trial whose newest value is the best: the one that `ResultGrid.get_best_result` returns."""
        known = [trial for trial in self.trials.values() if trial.value is not None]
        return max(known, key=lambda trial: (self._sign * trial.value, trial is self.best), default=None)

    def ranked(self) -> list[TrialState]:
        """All trials, the best first; those without a value last, failed ones before the rest of them."""
        order = {"failed": 0, "running": 1, "paused": 2}

        def key(trial: TrialState) -> tuple:
            if trial.best is None:
                return (1, order.get(trial.status, 3), trial.number)
            return (0, -self._sign * trial.best, trial.number)

        return sorted(self.trials.values(), key=key)

    def eta(self, now: float | None = None) -> float | None:
        """Seconds left, if the trials to come take as long as those that are over."""
        done = self.done - self._done_before
        if self.status != "running" or done < 2 or not self.first_trial_at or self.done >= (self.total or 0):
            return None
        spent = max((now or time.time()) - self.first_trial_at, 0.0)
        return spent / done * (self.total - self.done)

    def phase_seconds(self, now: float | None = None) -> dict[str, float]:
        """How long it took until the first trial ran, and from then on."""
        total = self.elapsed(now)
        if not self.first_trial_at:
            return {"start": total}
        start = min(max(self.first_trial_at - self.started_at, 0.0), total)
        return {"start": start, "training": total - start}

    def to_record(self) -> dict[str, Any]:
        """Metrics and history of the best trial, and all trials in "extra"."""
        best, seconds = self.best, self.phase_seconds()
        rows = [asdict(trial) for trial in self.trials.values()]
        return {
            "workers": self.at_once,
            "dataset": self.dataset,
            "seconds": seconds,
            "seconds_to_start": seconds["start"] if self.first_trial_at else None,
            "metrics": {self.metric: best.best} if best else {},
            "history": [{"epoch": i - 1, self.metric: value} for i, value in best.curve] if best else [],
            "extra": {
                "counts": dict(self.counts()),
                "best": best.number if best else None,
                "config": best.config if best else {},
                "trials": [
                    {name: row[name] for name in row if name not in ("curve", "error")} for row in rows
                ],
                "path": self.path,
            },
        }

    # -- inside -------------------------------------------------------------------------------------

    @property
    def _sign(self) -> int:
        return -1 if self.mode == "min" else 1

    def _is_better(self, value: float, other: float | None) -> bool:
        return other is None or self._sign * (value - other) > 0
