"""The panel of a sweep of Ray Tune.

    panel = SweepPanel("05-asha")
    tuner = tune.Tuner(
        Digits,
        param_space={"lr": tune.loguniform(1e-3, 1)},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", num_samples=32),
        run_config=tune.RunConfig(name=panel.run_id, storage_path=..., callbacks=[panel.callback()]),
    )
    with panel.watch(tuner):
        results = tuner.fit()

Tune's own reporters are drawn by the loop that they report on, print tables, and are passed over in some
places; a `tune.Callback` is always called, in the process that runs the loop: this one.
"""

import contextlib
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

import ray
from ray import tune

from labkit import cluster
from labkit.display import tracebacks
from labkit.errors import LabError, RunError, RunFailed
from labkit.panel import legacy_reporters as reporters
from labkit.panel.legacy import Panel
from labkit.runs.record import RunRecord
from labkit.tune import checks as sweep_checks
from labkit.tune import recording as sweep_recording
from labkit.tune import snapshot as sweep_snapshot
from labkit.tune import trials as sweep_trials
from labkit.tune import view as sweep_drawing
from labkit.tune.callback import Silent, SweepCallback, open_panels
from labkit.tune.state import OVER, SweepState
from labkit.tune.text import SweepTextReporter

_LOOKS_PER_SECOND = 5  # at the list of all trials
_SHARE = 0.005  # of the time that drawing may take
_OLD_OUTPUT = "RAY_AIR_NEW_OUTPUT"  # the newer one prints tables in a terminal whatever `verbose` says
# What Tune logs and the panel shows, by logger.
_NOISE = {
    "ray.tune.execution.tune_controller": ("Trial task failed for trial", "Could not re-use actor"),
    "ray.tune.tune": (
        "Trials did not complete",
        "Experiment has been interrupted",
        "Stop signal received",
    ),
    "ray.tune.utils.util": ("may be a performance bottleneck",),
}


class SweepPanel(Panel):
    """The panel of a sweep: which trials live, which were stopped and why, which is the best.

    Args:
        name: of the sweep; also the folder of its record below ``HOME/runs``.
        about: as `labkit.panel.base.Panel` takes it: dataset, settings, reporter.
    """

    def __init__(self, name: str, **about: Any) -> None:
        self._watches, self._plan = False, None
        super().__init__(name, **{"engine": "Ray Tune", **about})

    def callback(self) -> "SweepCallback":
        """For ``tune.RunConfig(callbacks=[…])``."""
        return SweepCallback(self.state.name)

    def watch(self, tuner: Any) -> "SweepPanel":
        """Follow `tuner` in a ``with`` block around its ``fit()``, and switch off what Tune would print.

        Raises:
            RunError: the sweep cannot work as it is (see `labkit.tune.checks`), or would not report here.
        """
        plan = sweep_checks.read(tuner)
        if plan is None:
            text = (
                f"Ray {ray.__version__} hides what a Tuner was given: the sweep is followed, but not checked"
            )
            warnings.warn(text, stacklevel=2)
        else:
            self._refuse(plan)
            plan.run.verbose, plan.run.progress_reporter = 0, Silent()
        self._watches, self._plan = True, plan
        if self.state.status != "ready":
            self._new(self.state.name)
        if plan is not None:
            self._describe(plan.options)
        return self

    def __enter__(self) -> "SweepPanel":
        if open_panels:
            fix, other = "close that one first: one sweep at a time", open_panels[0].state.name
            raise RunError(f"open the panel {self.state.name!r}", f"{other!r} is open", fix)
        if not self._watches:
            fact = "it watches no tuner, so it cannot tell what is compared, nor what cannot work"
            raise RunError(f"open the panel {self.state.name!r}", fact, "with panel.watch(tuner): …")
        self._problem: LabError | None = None
        self._interrupted = False
        self._next_look, self._seen = 0.0, 0
        self._live: dict[str, Any] = {}
        self._lab = cluster.current()
        self._snapshots = sweep_snapshot.Snapshots(*self._plan.place()) if self._plan else None
        self._quiet = contextlib.ExitStack()
        self._quiet.callback(open_panels.remove, self)
        open_panels.append(self)
        self._quiet.enter_context(_without_noise())
        try:
            return super().__enter__()
        except BaseException:
            self._quiet.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._quiet.close()
        if error is None and self._snapshots is not None:  # also after an interrupt: Tune has written all
            with contextlib.suppress(OSError):
                self._snapshots.forget()
        if error is None and self._interrupted:
            # Tune ends its loop in good order and returns; the reader is told as with any other run.
            kind, error = KeyboardInterrupt, KeyboardInterrupt()
        elif error is None and self._all_failed():
            message = self.state.failures[0].message
            error = RunFailed(
                f"finish the sweep {self.state.name!r}",
                f"every one of its {len(self.state.trials)} trials failed, the first with {message}",
                "the panel shows where; try the trainable in this process first, on one configuration",
            )
            super().__exit__(RunFailed, error, None)
            raise error
        super().__exit__(kind, error, trace)

    def files(self) -> list[tuple[str, str]]:
        """The folder of the sweep and Ray's logs."""
        listed = [("results and checkpoints", self._plan.path())] if self._plan else []
        if self._lab is not None and self._lab.log_dir is not None:
            listed.append(("Ray's logs", str(self._lab.log_dir)))
        return listed

    # -- what the callback tells, in Tune's loop ------------------------------------------------------

    def _set_up(self, total: int | None) -> None:
        with self._lock:
            if total and total < 10**6:
                self.state.total = total
        self._listen_to_interrupts()

    def _look(self, trials: list[Any], *, now: bool = False) -> None:
        """Take in the status of all trials, a few times a second; those that failed at once."""
        clock = time.monotonic()
        due = now or clock >= self._next_look
        if due:
            self._next_look = clock + 1 / _LOOKS_PER_SECOND
        # At each step of Tune's loop: so only the trials that are not over, and those that are new.
        for trial in trials[self._seen :]:
            self._live[trial.trial_id] = trial
        restored, self._seen = self._seen == 0, len(trials)
        for id, trial in list(self._live.items()):
            if trial.status == "ERROR":
                with self._lock:
                    self._know(trial, restored=restored)
                    self._failed_unheard(trial)
            elif due:
                with self._lock:
                    self._know(trial, restored=restored)
                    if self.state.trials[id].status not in OVER and trial.status != "TERMINATED":
                        self.state.set_status(id, sweep_trials.STATUS[trial.status])
            if id in self.state.trials and self.state.trials[id].status in OVER:
                del self._live[id]

    def _failed_unheard(self, trial: Any) -> None:
        """A trial that failed without a call-back: its process could not be reset for it.

        Tune does not tell the searcher of such a trial either, and where that limits how many run at one
        time, the loop then waits for it for ten minutes.
        """
        self._know(trial)
        known = self.state.trials[trial.trial_id]
        if known.status in OVER:
            return
        self._failed(trial)
        if sweep_trials.NO_RESET in known.error:
            self._problem = RunError(
                f"reuse the actors of {self._plan.name if self._plan else 'the sweep'}",
                f"its {sweep_trials.NO_RESET}: trial {known.number} has no process, and others would follow",
                "return True at the end of reset_config, when all is as after setup; or reuse_actors=False",
            )
            raise self._problem

    def _wrote(self, trials: list[Any]) -> None:
        """Keep the state as a whole: Tune has written it in this step (see `labkit.tune.snapshot`)."""
        if self._snapshots is None:
            return
        try:
            self._snapshots.keep(trials[0].storage.experiment_driver_staging_path)
        except OSError as error:
            self._snapshots = None  # said once; the sweep itself goes on
            text = f"the state of {self.state.name!r} is not kept as a whole, in case of a kill: {error}"
            warnings.warn(text, stacklevel=2)

    def _started(self, trial: Any) -> None:
        with self._lock:
            self._know(trial)
            self.state.set_status(trial.trial_id, "running")

    def _reported(self, trial: Any, result: dict[str, Any]) -> None:
        metric = self.state.metric
        with self._lock:
            self._know(trial)
            if self._configs[trial.trial_id] is not trial.config:
                config = sweep_trials.shown(trial.config)
                if config != self.state.trials[trial.trial_id].config:
                    self.state.changed(trial.trial_id, config)
                self._configs[trial.trial_id] = trial.config
            self.state.result(
                trial.trial_id,
                iteration=result.get("training_iteration", 0),
                value=sweep_trials.number(result.get(metric)) if metric else None,
                seconds=result.get("time_total_s", 0.0),
                node=self._nodes.name(result),
            )
            self._ends[trial.trial_id] = sweep_trials.end_of(
                trial, result, rungs=self.state.rungs, longest=self._longest
            )
        if trial.trial_id not in self._checked:
            self._checked.add(trial.trial_id)
            self._refuse_what_is_never_reported(trial, result)

    def _completed(self, trial: Any) -> None:
        with self._lock:
            self._know(trial)
            status, why = self._ends.get(trial.trial_id, ("finished", ""))
            self.state.set_status(trial.trial_id, status, why=why or status)

    def _failed(self, trial: Any) -> None:
        with self._lock:
            self._know(trial)
            self.state.failed(trial.trial_id, sweep_trials.why_failed(trial))

    def _ended(self, trials: list[Any]) -> None:
        self._look(trials, now=True)
        cut_off = self._interrupted or self._problem is not None or sys.exc_info()[0] is not None
        with self._lock:
            for trial in trials:
                if self.state.trials[trial.trial_id].status in OVER:
                    continue
                if cut_off:  # Tune has ended them all by now, and calls it by the same name
                    self.state.set_status(trial.trial_id, "cut off")
                else:
                    self._completed(trial)

    # -- what an engine's panel overrides -------------------------------------------------------------

    def _new_state(self, name: str) -> SweepState:
        self._configs: dict[str, Any] = {}
        self._ends: dict[str, tuple[str, str]] = {}
        self._checked: set[str] = set()
        self._nodes = sweep_trials.Nodes()
        self._longest = None
        state = SweepState(name)
        state.dataset = self._about["dataset"]
        return state

    def _reporter_of_setting(self) -> reporters.Reporter:
        return reporters.choose(
            self.settings.panel, files=self._files, look=sweep_drawing, text=SweepTextReporter
        )

    def _pause(self, seconds: float) -> float:
        return max(super()._pause(seconds), seconds / _SHARE)

    def _keep_failure(self, error: BaseException) -> None:
        if self._all_failed():
            return  # what they failed with says more than that they failed
        told = self._translated(error)
        text = f"{type(told).__name__}: {told.fact}" if told is not None else self._short(error)
        self.receive({"kind": "failure", "run": self.run_id, "text": text})

    def _after_stop(self) -> str:
        going_on = f". To go on: tune.Tuner.restore({self._plan.path()!r}, trainable=…)" if self._plan else ""
        return super()._after_stop() + going_on

    def _short(self, error: BaseException) -> str:
        return (
            tracebacks.shorten_text(str(error))
            if isinstance(error, tune.TuneError)
            else super()._short(error)
        )

    def _raise_calmly(self, error: BaseException) -> None:
        told = self._translated(error)
        if told is not None:
            raise told from None
        if isinstance(error, (tune.TuneError, ray.exceptions.RayError)):
            fact = self._short(error).splitlines()[-1]
            raise RunFailed(f"finish the sweep {self.state.name!r}", fact, "the panel shows where") from error

    def _translated(self, error: BaseException) -> LabError | None:
        """What the panel itself found wrong, or has better words for."""
        if self._problem is None and "did not include the specified metric" in str(error):
            self._problem = self._never_reported(sweep_trials.names_in(str(error)))
        return self._problem

    def _record(self) -> RunRecord:
        path = self._plan.path() if self._plan else None
        return sweep_recording.record_of(self.state, run_id=self.run_id, path=path)

    # -- inside ---------------------------------------------------------------------------------------

    def _refuse(self, plan: sweep_checks.Plan) -> None:
        if not any(isinstance(one, SweepCallback) for one in plan.run.callbacks or []):
            raise RunError(
                f"follow the sweep {plan.run.name!r}",
                "its RunConfig has no callback of this panel, so nothing would be heard from it",
                "tune.RunConfig(..., callbacks=[panel.callback()])",
            )
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]] if ray.is_initialized() else None
        if plan.restored:
            sweep_snapshot.bring_back(*plan.place())
        sweep_checks.refuse(plan, nodes)

    def _describe(self, options: Any) -> None:
        scheduler = options.scheduler
        state = self.state
        state.metric = options.metric or getattr(scheduler, "_metric", None)
        state.mode = options.mode or getattr(scheduler, "_mode", None) or "max"
        state.rungs = sweep_checks.rungs(options)
        self._longest = getattr(scheduler, "_max_t", None)

    def _know(self, trial: Any, *, restored: bool = False) -> None:
        """Take in a trial that is new here; if `restored`, with all that it has behind it."""
        if trial.trial_id in self.state.trials:
            return
        number = sweep_trials.place_of(trial.trial_id)
        self.state.add(trial.trial_id, sweep_trials.shown(trial.config), number)
        self._configs[trial.trial_id] = trial.config
        if not restored:
            return
        # trial.last_result would ask the trial's process, and wait for it.
        result = trial.run_metadata.last_result or {}
        if result.get("training_iteration") or trial.status == "ERROR":
            metric = self.state.metric
            status = "failed" if trial.status == "ERROR" else sweep_trials.STATUS.get(trial.status, "waiting")
            self.state.restored(
                trial.trial_id,
                status,
                iteration=result.get("training_iteration", 0),
                value=sweep_trials.number(result.get(metric)) if metric else None,
                seconds=result.get("time_total_s", 0.0),
            )

    def _refuse_what_is_never_reported(self, trial: Any, result: dict[str, Any]) -> None:
        metric = self.state.metric
        if metric and "/" not in metric and metric not in result:
            self._problem = self._never_reported(sorted(sweep_trials.own_names(result)))
        elif missing := sweep_checks.never(trial, result):
            names = sorted(sweep_trials.own_names(result))
            self._problem = RunError(
                f"stop trials by {missing!r}",
                f"they report {', '.join(map(repr, names))} and never that: no trial would ever stop",
                f"stop= one of those or 'training_iteration', or report {missing!r}",
            )
        if self._problem is not None:
            raise self._problem

    def _never_reported(self, names: list[str] | None = None) -> RunError:
        said = f"they report {', '.join(map(repr, names))}" if names else "the trials report others"
        return RunError(
            f"compare trials by {self.state.metric!r}",
            f"{said} but never {self.state.metric!r}, so there is nothing to compare",
            f"TuneConfig(metric=…) with one that is reported, or report {self.state.metric!r}",
        )

    def _all_failed(self) -> bool:
        trials = self.state.trials.values()
        return bool(trials) and all(trial.status == "failed" for trial in trials)

    def _listen_to_interrupts(self) -> None:
        """Hear of an interrupt too: Tune takes it for itself, ends its loop and tells nobody."""
        tunes = signal.getsignal(signal.SIGINT)
        if not callable(tunes):
            return

        def heard(number: int, frame: FrameType | None) -> None:
            self._interrupted = True
            tunes(number, frame)

        with contextlib.suppress(ValueError):  # not in the main thread: nobody can interrupt it there
            signal.signal(signal.SIGINT, heard)


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
    """Keep Tune from printing tables and from logging what the panel shows; its warnings are let through."""
    with contextlib.ExitStack() as undo:
        before = os.environ.get(_OLD_OUTPUT)
        if before is None:
            undo.callback(os.environ.pop, _OLD_OUTPUT, None)
        else:
            undo.callback(os.environ.__setitem__, _OLD_OUTPUT, before)
        os.environ[_OLD_OUTPUT] = "0"
        tune_log = logging.getLogger("ray.tune")
        undo.callback(tune_log.setLevel, tune_log.level)
        tune_log.setLevel(logging.WARNING)
        for name, texts in _NOISE.items():
            undo.enter_context(_dropping(logging.getLogger(name), texts))
        yield


@contextlib.contextmanager
def _dropping(log: logging.Logger, texts: tuple[str, ...]) -> Iterator[None]:
    def is_news(record: logging.LogRecord) -> bool:
        return not any(text in record.getMessage() for text in texts)

    log.addFilter(is_news)
    try:
        yield
    finally:
        log.removeFilter(is_news)
