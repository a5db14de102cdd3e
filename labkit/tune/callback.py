"""What Tune's loop tells the panel that is open in the same process."""

import contextlib
import functools
import logging
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, ClassVar

from ray import tune

from labkit.errors import LabError, RunError
from labkit.panel.base import LivePanel
from labkit.tune import saved
from labkit.tune.state import OVER, SweepState, TrialState
from labkit.tune.trials import (
    NO_RESET,
    end_of,
    missing_stop_metric,
    newest_result,
    node_name,
    number,
    number_of,
    reported_names,
    shown_config,
    staging_folder,
    status_of,
    why_failed,
)

_LOOKS_PER_SECOND = 5  # at the status of all trials


def _if_open(hook: Callable) -> Callable:
    """Call `hook` only while a panel is open; what the panel cannot show does not end the sweep."""

    @functools.wraps(hook)
    def call(self: "SweepCallback", *args: Any, **info: Any) -> None:
        if self.panel is not None:
            try:
                hook(self, *args, **info)
            except LabError:
                raise
            except Exception:
                logging.getLogger(__name__).debug("the panel could not take in %s", hook, exc_info=True)

    return call


class SweepCallback(tune.Callback):
    """Brings what Tune's loop does into the state of the panel that is open in this process.

    Tune pickles it into the sweep's folder, without a panel: a process that restores the sweep has its own.
    """

    panel: ClassVar["LivePanel | None"] = None

    def __init__(self, panel_name: str) -> None:
        self.panel_name = panel_name
        self._saves = True
        self._trials: Sequence[Any] = ()
        self._next_look = 0.0
        self._ends: dict[str, tuple[str, str]] = {}  # how each trial ends if its newest result is its last

    def __reduce__(self) -> tuple:
        return type(self), (self.panel_name,)

    # -- what Tune calls ----------------------------------------------------------------------------

    @_if_open
    def setup(self, total_num_samples: int | None = None, **_: Any) -> None:
        self.__init__(self.panel_name)
        with self.panel.update() as state:
            if total_num_samples and total_num_samples < 10**6:  # more stands for "until stopped"
                state.total = total_num_samples
        self._hear_interrupts()

    @_if_open
    def on_step_begin(self, trials: Sequence[Any], **_: Any) -> None:
        self._look(trials)
        if self.panel.problem is not None:
            raise self.panel.problem

    @_if_open
    def get_state(self) -> None:
        """Save the sweep's state: Tune asks for that of callbacks when it has written all others."""
        staging = staging_folder(self._trials[0]) if self._trials else None
        if staging is None or self.panel.plan is None or not self._saves:
            return
        try:
            saved.save(*self.panel.plan.storage, staging)
        except Exception as error:  # the storage's own kinds are many
            self._saves = False  # said once; the sweep itself goes on
            warnings.warn(f"the sweep could not be restored after a kill: {error}", stacklevel=2)

    @_if_open
    def on_trial_start(self, trial: Any, **_: Any) -> None:
        with self.panel.update() as state:
            state.set_status(self._known(state, trial).id, "running")

    @_if_open
    def on_trial_result(self, trial: Any, result: dict[str, Any], **_: Any) -> None:
        with self.panel.update() as state:
            known = self._known(state, trial)
            first, config = not known.iteration, shown_config(trial.config)
            if config != known.config:
                known.config, known.changes = config, known.changes + 1
            self._take_result(state, trial, result)
            limit = self.panel.plan.max_iterations if self.panel.plan else None
            self._ends[known.id] = end_of(trial, result, rungs=state.rungs, max_iterations=limit)
        if first:
            self._check_reported(state, trial, result)

    @_if_open
    def on_trial_complete(self, trial: Any, **_: Any) -> None:
        with self.panel.update() as state:
            status, why = self._ends.get(trial.trial_id, ("finished", ""))
            state.set_status(self._known(state, trial).id, status, why=why or status)

    @_if_open
    def on_trial_error(self, trial: Any, **_: Any) -> None:
        with self.panel.update() as state:
            state.trial_failed(self._known(state, trial).id, why_failed(trial))

    @_if_open
    def on_experiment_end(self, trials: Sequence[Any], **_: Any) -> None:
        self._look(trials, now=True)
        panel, in_error = self.panel, sys.exc_info()[0] is not None
        # Tune has ended all trials by now, and calls that the same, whatever the reason.
        cut_off = panel.interrupted or panel.problem is not None or in_error
        for trial in trials:
            with panel.update() as state:
                if state.trials[trial.trial_id].status not in OVER:
                    if cut_off:
                        state.set_status(trial.trial_id, "cut off")
                    else:
                        self.on_trial_complete(trial)
        if panel.problem is not None and not in_error:
            raise panel.problem

    # -- inside -------------------------------------------------------------------------------------

    def _known(self, state: SweepState, trial: Any) -> TrialState:
        if trial.trial_id not in state.trials:
            state.add(trial.trial_id, shown_config(trial.config), number_of(trial))
        return state.trials[trial.trial_id]

    def _take_result(self, state: SweepState, trial: Any, result: dict[str, Any]) -> None:
        state.result(
            trial.trial_id,
            iteration=result.get("training_iteration", 0),
            value=number(result.get(state.metric)) if state.metric else None,
            seconds=result.get("time_total_s", 0.0),
            node=node_name(result.get("node_ip", ""), result.get("pid", 0)),
        )

    def _look(self, trials: Sequence[Any], *, now: bool = False) -> None:
        """Look at all trials a few times a second, and at once at those that failed."""
        clock = time.monotonic()
        first, due = not self._next_look, now or clock >= self._next_look
        if due:
            self._trials, self._next_look = trials, clock + 1 / _LOOKS_PER_SECOND
        for trial in trials:
            if due or trial.status == "ERROR":
                with self.panel.update() as state:
                    self._look_at(state, trial, first)

    def _look_at(self, state: SweepState, trial: Any, first: bool) -> None:
        known = self._known(state, trial)
        if first and (result := newest_result(trial)):  # of an interrupted sweep
            self._take_result(state, trial, result)
            if trial.status in ("TERMINATED", "ERROR"):
                state.restored(known.id, "failed" if trial.status == "ERROR" else "finished")
        if known.status in OVER:
            return
        if trial.status == "ERROR":
            self._failed_unheard(state, trial)
        elif trial.status != "TERMINATED":
            state.set_status(known.id, status_of(trial))

    def _failed_unheard(self, state: SweepState, trial: Any) -> None:
        """A trial that failed without a call: its process could not be reset for it.

        Tune does not tell the searcher of such a trial either. If that limits how many trials run at a time,
        the next step of the loop waits for this one, for ten minutes.
        """
        self.on_trial_error(trial)
        known = state.trials[trial.trial_id]
        if NO_RESET in known.error:
            self.panel.problem = RunError(
                "reuse the actors of the sweep",
                f"their {NO_RESET}: trial {known.number} has no process, and others would follow",
                "return True at the end of reset_config, when all is as after setup; or reuse_actors=False",
            )

    def _check_reported(self, state: SweepState, trial: Any, result: dict[str, Any]) -> None:
        names = reported_names(result)
        if state.metric and "/" not in state.metric and state.metric not in result:
            self.panel.problem = never_reported(state.metric, names)
        elif missing := missing_stop_metric(trial, result):
            self.panel.problem = RunError(
                f"stop trials by {missing!r}",
                f"they report {', '.join(map(repr, names))} but never {missing!r}: no trial would ever stop",
                f"stop= one of those or 'training_iteration', or report {missing!r}",
            )
        if self.panel.problem is not None:
            raise self.panel.problem

    def _hear_interrupts(self) -> None:
        """Note an interrupt: Tune handles SIGINT itself, ends its loop and returns as after any sweep."""
        tunes, panel = signal.getsignal(signal.SIGINT), self.panel
        if not callable(tunes):
            return

        def heard(signal_number: int, frame: FrameType | None) -> None:
            panel.interrupted = True
            tunes(signal_number, frame)

        with contextlib.suppress(ValueError):  # only the main thread can be interrupted
            signal.signal(signal.SIGINT, heard)


def never_reported(metric: str | None, names: Sequence[str]) -> RunError:
    """Return the error of a sweep whose trials do not report its metric."""
    said = f"they report {', '.join(map(repr, names))}" if names else "the trials report other metrics"
    return RunError(
        f"compare trials by {metric!r}",
        f"{said} but never {metric!r}, so there is nothing to compare",
        f"TuneConfig(metric=…) with one that is reported, or report {metric!r}",
    )
