"""What happens in a sweep: trials and their results go in, the state that the panel draws comes out.

No drawing and no ray: `labkit.tune.panel` reads Tune's trials and tells this state. A trial is in one of

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
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from labkit.panel.state.base import Failure

STATUSES = ("finished", "stopped early", "running", "paused", "waiting", "cut off", "failed")
OVER = ("finished", "stopped early", "failed")
_POINTS_KEPT = 200  # of one trial's curve
_FAILURES_KEPT = 20


@dataclass
class TrialState:
    """One trial.

    Attributes:
        id: Tune's.
        number: place in the order of creation, from 0.
        config: what was drawn for it, flat: "optimizer/lr" → value.
        status: one of `STATUSES`.
        iteration: results it has reported.
        value: the sweep's metric in the newest of them; None before the first.
        curve: (iteration, value), thinned for very long trials.
        seconds: of training, as Tune counts them.
        node: where it runs, or ran.
        why: what ended it, in a few words.
        error: the short traceback of one that failed.
        changes: how often its configuration was changed under way.
        best: the best of its values so far.
    """

    id: str
    number: int
    config: dict[str, Any] = field(default_factory=dict)
    status: str = "waiting"
    iteration: int = 0
    value: float | None = None
    curve: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0
    node: str = ""
    why: str = ""
    error: str = ""
    changes: int = 0
    best: float | None = None

    @property
    def message(self) -> str:
        """The error in one line."""
        return Failure(0, self.error).message if self.error else ""


class SweepState:
    """All that is known of one sweep.

    Attributes:
        name: of the sweep.
        metric, mode: what is compared, and whether "max" or "min" is better; metric may be None.
        total: trials that there will be; None while nobody knows.
        at_once: the most trials that ran at one time.
        rungs: iterations at which the scheduler compares trials, ascending.
        status: ``ready``, ``running``, ``finished``, ``failed`` or ``stopped``.
        improvements: (seconds since the start, best value so far, number of its trial).
    """

    engine = "Ray Tune"

    def __init__(self, name: str, *, metric: str | None = None, mode: str = "max") -> None:
        self.name, self.metric, self.mode = name, metric, mode
        self.total: int | None = None
        self.at_once = 0
        self.rungs: list[int] = []
        self.scheduler = ""
        self.dataset: str | None = None
        self.status = "ready"
        self.started_at = self.ended_at = self.first_trial_at = 0.0
        self.trials: dict[str, TrialState] = {}
        self.improvements: list[tuple[float, float, int]] = []
        self.failures: list[Failure] = []
        self.prints: deque[str] = deque()
        self.version = 0  # grows with each change: a reporter draws only what is new
        self._best: TrialState | None = None
        self._best_value = math.nan
        self._done_before = 0  # trials that a restored sweep had finished already

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""
        return -1 if self.mode == "min" else 1

    @property
    def printed(self) -> int:
        """Failures that the panel can show."""
        return len(self.failures)

    # -- what happens -------------------------------------------------------------------------------

    def start(self, phase: str = "", now: float | None = None) -> None:
        self.status, self.started_at = "running", now or time.time()
        self.version += 1

    def end(self, status: str, now: float | None = None) -> None:
        """The sweep is over. What still ran was cut off."""
        self.status, self.ended_at = status, now or time.time()
        self.version += 1

    def apply(self, event: dict[str, Any]) -> None:
        """Take in what the panel itself has to say: the failure that ended the sweep."""
        if event.get("kind") == "failure":
            self._keep_failure(-1, event.get("text", ""))

    def add(self, id: str, config: dict[str, Any], number: int | None = None) -> TrialState:
        """A trial that was not known yet; `number` is its place, where it has one that outlives a restart."""
        trial = self.trials[id] = TrialState(id, len(self.trials) if number is None else number, config)
        self.version += 1
        return trial

    def set_status(self, id: str, status: str, *, why: str = "", now: float | None = None) -> None:
        """`status` is the trial's from now on."""
        trial = self.trials[id]
        if trial.status == status and (not why or trial.why == why):
            return
        trial.status, trial.why = status, why or trial.why
        if status == "running":
            trial.why = ""
            self.first_trial_at = self.first_trial_at or now or time.time()
            self.at_once = max(self.at_once, sum(one.status == "running" for one in self.trials.values()))
        self.version += 1

    def restored(self, id: str, status: str, *, iteration: int, value: Any, seconds: float) -> None:
        """A trial of an interrupted sweep, as it was left."""
        trial = self.trials[id]
        trial.status, trial.iteration, trial.seconds = status, iteration, seconds
        self._take_value(trial, value)
        if status in OVER:
            trial.why, self._done_before = trial.why or "before the restart", self._done_before + 1
        self.version += 1

    def result(
        self, id: str, *, iteration: int, value: Any, seconds: float, node: str, now: float | None = None
    ) -> None:
        """A trial reported."""
        trial = self.trials[id]
        trial.iteration, trial.seconds, trial.node = iteration, seconds, node
        if self._take_value(trial, value):
            self.improvements.append((self.elapsed(now), trial.value, trial.number))
        self.version += 1

    def changed(self, id: str, config: dict[str, Any]) -> None:
        """A trial goes on with another configuration."""
        trial = self.trials[id]
        trial.config, trial.changes = config, trial.changes + 1
        self.version += 1

    def failed(self, id: str, text: str) -> None:
        """A trial raised; `text` is its short traceback."""
        trial = self.trials[id]
        trial.status, trial.error = "failed", text
        trial.why = trial.message
        self._keep_failure(trial.number, text)
        self.version += 1

    # -- what it comes to ---------------------------------------------------------------------------

    def counts(self) -> Counter:
        """Trials by status."""
        return Counter(trial.status for trial in self.trials.values())

    @property
    def done(self) -> int:
        """Trials that are over."""
        return sum(trial.status in OVER for trial in self.trials.values())

    @property
    def waiting(self) -> int:
        """Trials without a process, those that Tune has not even drawn yet included."""
        return self.counts()["waiting"] + max((self.total or 0) - len(self.trials), 0)

    @property
    def best(self) -> TrialState | None:
        """The trial with the best value that was reported at any time."""
        return self._best

    @property
    def best_at_end(self) -> TrialState | None:
        """The trial whose newest value is the best: the one that `ResultGrid.get_best_result` returns."""
        known = [trial for trial in self.trials.values() if trial.value is not None]
        return max(known, key=lambda trial: (self.sign * trial.value, -trial.number), default=None)

    def ranked(self) -> list[TrialState]:
        """All trials, the best first; those without a value last, failures before the rest of them."""
        order = {"failed": 0, "running": 1, "paused": 2}

        def key(trial: TrialState) -> tuple:
            if trial.best is None:
                return (1, order.get(trial.status, 3), trial.number)
            return (0, -self.sign * (trial.best or 0.0), trial.number)

        return sorted(self.trials.values(), key=key)

    def elapsed(self, now: float | None = None) -> float:
        """Seconds since the start."""
        if not self.started_at:
            return 0.0
        return max((self.ended_at or now or time.time()) - self.started_at, 0.0)

    def eta(self, now: float | None = None) -> float | None:
        """Seconds left, if the trials to come take as long as those that are over."""
        done = self.done - self._done_before
        if self.status != "running" or not self.total or done < 2 or not self.first_trial_at:
            return None
        spent = max((now or time.time()) - self.first_trial_at, 0.0)
        return spent / done * max(self.total - self.done, 0)

    def seconds(self, now: float | None = None) -> dict[str, float]:
        """Where the time went: until the first trial trained, and after it."""
        total = self.elapsed(now)
        if not self.first_trial_at:
            return {"start": total}
        start = min(max(self.first_trial_at - self.started_at, 0.0), total)
        return {"start": start, "training": total - start}

    def best_so_far(self) -> list[tuple[float, float]]:
        """(seconds, best value), a step for each improvement, up to now."""
        points = [(seconds, value) for seconds, value, _ in self.improvements]
        return [*points, (self.elapsed(), points[-1][1])] if points else []

    # -- inside -------------------------------------------------------------------------------------

    def _take_value(self, trial: TrialState, value: Any) -> bool:
        """Keep a value of the metric; whether it is the best of all trials so far."""
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            return False
        trial.value = float(value)
        trial.curve.append((trial.iteration, trial.value))
        if len(trial.curve) > _POINTS_KEPT:
            del trial.curve[1:-1:2]
        if trial.best is None or self.sign * (trial.value - trial.best) > 0:
            trial.best = trial.value
        if self._best is None or self.sign * (trial.value - self._best_value) > 0:
            self._best, self._best_value = trial, trial.value
            return True
        return False

    def _keep_failure(self, number: int, text: str) -> None:
        if len(self.failures) < _FAILURES_KEPT:
            self.failures.append(Failure(rank=number, text=text))


def flat(config: Iterable[tuple[str, Any]] | dict[str, Any], before: str = "") -> dict[str, Any]:
    """A nested configuration as one level: ``{"optimizer": {"lr": 1}}`` → ``{"optimizer/lr": 1}``."""
    found: dict[str, Any] = {}
    for key, value in dict(config).items():
        if isinstance(value, dict) and value:
            found.update(flat(value, f"{before}{key}/"))
        else:
            found[f"{before}{key}"] = value
    return found
