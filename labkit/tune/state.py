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
        number: its place in the order of creation, from 0.
        config: its configuration on one level ("optimizer/lr").
        status: one of `STATUSES`.
        why: what ended it, in a few words.
        iteration, seconds: results that it has reported, and its training time as Tune counts it.
        value: the sweep's metric in its newest result; None if that is no finite number.
        curve: (iteration, time, value), thinned for very long trials; `time` is what the scheduler counts.
        changes: how often its configuration was changed during the sweep.
    """

    number: int
    config: dict[str, Any] = field(default_factory=dict)
    status: str = "waiting"
    why: str = ""
    iteration: int = 0
    seconds: float = 0.0
    value: float | None = None
    curve: list[tuple[int, float, float]] = field(default_factory=list)
    changes: int = 0


class SweepState(State):
    """All that is known of one sweep.

    Args:
        metric, mode: what is compared, and whether "max" or "min" is better; metric may be None.
        time: what the scheduler counts.
        rungs: the times at which the scheduler compares trials, ascending.
        dataset, path: for the record; `path` is the folder of the results.

    Attributes:
        total: trials that there will be; None if that is not known.
        at_once: the most trials that ran at a time.
        start_seconds: from the beginning until the first trial ran; None before.
        trials: by Tune's id.
        warning: what is wrong with the sweep although it runs.
    """

    engine = "Ray Tune"

    def __init__(
        self,
        name: str,
        *,
        metric: str | None = None,
        mode: str = "max",
        time: str = "training_iteration",
        rungs: Sequence[float] = (),
        dataset: str | None = None,
        path: str | None = None,
    ) -> None:
        super().__init__(name)
        self.metric, self.mode, self.time, self.rungs = metric, mode, time, tuple(rungs)
        self.dataset, self.path = dataset, path
        self.total: int | None = None
        self.warning = ""
        self.at_once = 0
        self.start_seconds: float | None = None
        self.trials: dict[str, TrialState] = {}

    # -- what happens -------------------------------------------------------------------------------

    def add(self, id: str, config: dict[str, Any]) -> None:
        self.trials[id] = TrialState(len(self.trials), config)

    def set_status(self, id: str, status: str, *, why: str = "", now: float | None = None) -> None:
        trial = self.trials[id]
        if (trial.status, trial.why) == (status, why):
            return
        trial.status, trial.why = status, why
        if status == "running":
            self.at_once = max(self.at_once, self.counts()["running"])
            if self.start_seconds is None:
                self.start_seconds = self.elapsed(now)

    def result(
        self, id: str, *, iteration: int, value: Any, seconds: float, time: float | None = None
    ) -> None:
        """The trial has reported; only a finite `value` counts. `time` is the iteration by default."""
        trial = self.trials[id]
        trial.iteration, trial.seconds = iteration, seconds
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        trial.value = float(value) if is_number else None
        if trial.value is not None:
            trial.curve.append((iteration, iteration if time is None else time, trial.value))
            if len(trial.curve) > _POINTS_KEPT:
                del trial.curve[1:-1:2]

    def trial_failed(self, id: str, text: str) -> None:
        """The trial has raised; `text` is its short traceback."""
        self.set_status(id, "failed", why=Failure(None, text).message)
        self.fail(text, rank=self.trials[id].number)

    # -- what it comes to ---------------------------------------------------------------------------

    def counts(self) -> Counter:
        """Trials by status; those that are not drawn yet wait, too."""
        counts = Counter(trial.status for trial in self.trials.values())
        counts["waiting"] += self.expected - len(self.trials)
        return +counts

    @property
    def expected(self) -> int:
        """Trials that there are or will be, as far as that is known."""
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
        """All trials, the best first and those without a value last."""
        sign = 1 if self.mode == "min" else -1

        def merit(trial: TrialState) -> float:
            return math.inf if trial.value is None else sign * trial.value

        return sorted(self.trials.values(), key=merit)

    def eta(self, now: float | None = None) -> float | None:
        """Seconds left, if the trials to come take as long as those that are over."""
        if self.status != "running" or self.done < 2 or self.start_seconds is None or not self.total:
            return None
        spent = max(self.elapsed(now) - self.start_seconds, 0.0)
        return spent / self.done * (self.total - self.done)

    def phase_seconds(self, now: float | None = None) -> dict[str, float]:
        """How long it took until the first trial ran, and from then on."""
        total = self.elapsed(now)
        if self.start_seconds is None:
            return {"start": total}
        start = min(self.start_seconds, total)
        return {"start": start, "training": total - start}

    def to_record(self) -> dict[str, Any]:
        best = self.best
        trials = [asdict(trial) for trial in self.trials.values()]
        return {
            "workers": self.at_once,
            "dataset": self.dataset,
            "storage_path": self.path,
            "seconds": self.phase_seconds(),
            "seconds_to_start": self.start_seconds,
            "config": best.config if best else {},
            "metrics": {self.metric: best.value} if best else {},
            "history": [{"epoch": i - 1, self.metric: value} for i, _, value in best.curve] if best else [],
            "extra": {
                "counts": dict(self.counts()),
                "best": best.number if best else None,
                "trials": [{name: row[name] for name in row if name != "curve"} for row in trials],
            },
        }
