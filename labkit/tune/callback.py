"""What Tune's loop tells the panel that is open in the same process."""

import functools
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, ClassVar

from ray import tune
from ray.tune.utils import flatten_dict

from labkit.panel.base import LivePanel
from labkit.tune import saved
from labkit.tune.sweep import OVER, SweepRun, TrialState
from labkit.tune.trials import (
    metrics_in,
    newest_result,
    number,
    place_of,
    shown_config,
    staging_folder,
    status_of,
    why_failed,
)

_LOOKS_PER_SECOND = 2  # at the status of all trials; the panel draws about once a second


def _if_open(hook: Callable) -> Callable:
    """Call `hook` only while a panel is open; what the panel cannot show does not end the sweep."""

    @functools.wraps(hook)
    def call(self: "SweepCallback", *args: Any, **info: Any) -> None:
        if self.panel is not None:
            try:
                hook(self, *args, **info)
            except Exception as error:
                warnings.warn(f"the panel could not follow the sweep: {error!r}", stacklevel=2)

    return call


class SweepCallback(tune.Callback):
    """Brings what Tune's loop does into the state of the panel that is open in this process.

    Tune pickles it into the sweep's folder, without a panel: a process that restores the sweep has its own.
    """

    panel: ClassVar["LivePanel | None"] = None

    def __init__(self) -> None:
        self._warned = False
        self._save_from = 0.0  # after a save that failed, not at once again: a store that hangs holds up Tune
        self._trials: Sequence[Any] = ()
        self._configs: dict[str, Any] = {}  # by trial, what is shown: Tune replaces one that it changes
        self._has_time = False  # whether any result had what the scheduler counts
        self._next_look = 0.0

    def __reduce__(self) -> tuple:
        return type(self), ()

    # -- what Tune calls ----------------------------------------------------------------------------

    @_if_open
    def setup(self, total_num_samples: int | None = None, **_: Any) -> None:
        self.__init__()
        with self.panel.update() as state:
            if total_num_samples and total_num_samples < 10**6:  # more stands for "until stopped"
                state.total = total_num_samples
        self._hear_interrupts()

    @_if_open
    def on_step_begin(self, trials: Sequence[Any], **_: Any) -> None:
        self._trials = trials

    @_if_open
    def on_trial_complete(self, **_: Any) -> None:
        self._next_look = 0.0  # at the end of this step, when Tune has set its status

    on_trial_error = on_trial_complete

    @_if_open
    def on_step_end(self, trials: Sequence[Any], **_: Any) -> None:
        if time.monotonic() < self._next_look:  # a step takes a few milliseconds
            return
        self._next_look = time.monotonic() + 1 / _LOOKS_PER_SECOND
        with self.panel.update() as state:
            over = {id for id, known in state.trials.items() if known.status in OVER}
            for trial in sorted((one for one in trials if one.trial_id not in over), key=place_of):
                self._look(state, trial)

    @_if_open
    def get_state(self) -> None:
        """Save the sweep's state: Tune asks for that of callbacks when it has written all others."""
        began = time.monotonic()
        if not self._trials or began < self._save_from:
            return
        try:
            saved.save(*self.panel.plan.storage, staging_folder(self._trials[0]))
        except Exception as error:  # the storage's own kinds are many
            self._save_from = time.monotonic() + 10 * (time.monotonic() - began)
            if not self._warned:
                warnings.warn(f"the sweep could not be restored after a kill: {error}", stacklevel=2)
            self._warned = True

    @_if_open
    def on_trial_result(self, trial: Any, result: dict[str, Any], **_: Any) -> None:
        with self.panel.update() as state:
            known = self._known(state, trial)
            if self._configs[trial.trial_id] is not trial.config:
                before, known.config = known.config, self._shown_config(trial)
                known.changes += before != known.config
            self._take(state, trial, flatten_dict(result))
            state.set_status(trial.trial_id, "running")
            known.why = self.panel.plan.stopped.get(trial.trial_id, "")

    @_if_open
    def on_experiment_end(self, trials: Sequence[Any], **_: Any) -> None:
        # Tune has ended all trials by now, and calls that the same, whatever the reason.
        rest = "cut off" if self.panel.interrupted or sys.exc_info()[0] is not None else "finished"
        with self.panel.update() as state:
            for trial in trials:
                known = self._known(state, trial)
                if status_of(trial) == "failed":
                    self._look(state, trial)
                elif known.status not in OVER:
                    state.set_status(trial.trial_id, rest)

    # -- inside -------------------------------------------------------------------------------------

    def _known(self, state: SweepRun, trial: Any) -> TrialState:
        if trial.trial_id not in state.trials:
            state.add(trial.trial_id, self._shown_config(trial))
            if result := newest_result(trial):  # of an interrupted sweep
                self._take(state, trial, result)
        return state.trials[trial.trial_id]

    def _shown_config(self, trial: Any) -> dict[str, Any]:
        self._configs[trial.trial_id] = trial.config
        return shown_config(trial.config)

    def _take(self, state: SweepRun, trial: Any, result: dict[str, Any]) -> None:
        plan = self.panel.plan
        self._has_time = self._has_time or plan.time in result
        missing = f"no result has {plan.time!r}, the time_attr of {type(plan.scheduler).__name__}"
        has = ", ".join(metrics_in(result)) or "nothing of their own"
        state.warning = "" if self._has_time else f"{missing}, so it stops no trial early; results have {has}"
        state.reported(
            trial.trial_id,
            iteration=result.get("training_iteration", 0),
            value=number(result.get(plan.metric)),
            seconds=result.get("time_total_s", 0.0),
            time=number(result.get(plan.time)) if plan.rungs else None,
        )

    def _look(self, state: SweepRun, trial: Any) -> None:
        known, status = self._known(state, trial), status_of(trial)
        if known.status in OVER or known.status == status:
            return
        if status == "failed":
            state.trial_failed(trial.trial_id, why_failed(trial))
        elif status == "finished" and (why := known.why or self.panel.plan.stopped_in_a_pause(trial)):
            state.set_status(trial.trial_id, "stopped early", why=why)
        else:
            state.set_status(trial.trial_id, status)

    def _hear_interrupts(self) -> None:
        """Note an interrupt: Tune handles SIGINT itself, ends its loop and returns as after any sweep."""
        handler, panel = signal.getsignal(signal.SIGINT), self.panel

        def heard(signal_number: int, frame: FrameType | None) -> None:
            panel.interrupted = True
            handler(signal_number, frame)

        if handler == panel.hear:
            # Tune's handler has put it back: there was an interrupt since, and Tune's loop ends at once.
            panel.interrupted = panel.interrupted or not os.environ.get("TUNE_DISABLE_SIGINT_HANDLER")
        # Only the main thread can be interrupted, and only one that handles interrupts.
        elif callable(handler) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, heard)
            if panel.interrupted:
                heard(signal.SIGINT, None)
