"""The panel of a sweep of Ray Tune.

    tuner = tune.Tuner(Digits, param_space={"lr": tune.loguniform(1e-3, 1)}, …)
    with SweepPanel("05-asha").watch(tuner):
        results = tuner.fit()

It listens through a `tune.Callback`, which Tune always calls, in the process of its loop: this one. Tune's
own reporters print tables, and are ignored in some environments.
"""

import contextlib
import functools
import inspect
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ray
from ray import tune
from ray.tune.utils import flatten_dict

from labkit import _tune, cluster, interrupts
from labkit.cluster import capacity, ends
from labkit.cluster.fixes import known_fix
from labkit.display import tracebacks
from labkit.errors import BadInput, RunFailed
from labkit.panel.base import LivePanel
from labkit.settings import attributes_set
from labkit.tune import sweep_view, trials
from labkit.tune.reported import Iterations, names_of_tune, not_finite
from labkit.tune.sweep import OVER, SweepRun, TrialState
from labkit.tune.trials import TunerPlan
from labkit.worker.channel import Listener
from labkit.worker.events import Event, Parts
from labkit.worker.mailbox import Mailbox
from labkit.worker.trial import TrialTracker, followed

_OF_RAY = "check TuneConfig and RunConfig: Ray's own code raised it, without a line of yours"
# HyperBand can forget a trial that is being paused when its bracket ends.
_ONLY_PAUSED = (
    "all trials that are left are paused, and the scheduler continues none of them: stop the cell, all "
    "results so far are kept. RunConfig(stop={{{!r}: …}}) with the scheduler's max_t avoids that"
)
_LOOK_EVERY = 0.5  # seconds between two looks at all trials; the panel draws about once a second


def _if_open(hook: Callable) -> Callable:
    """Call `hook` if a panel is open, its `panel`; what that can't show does not end the sweep."""

    @functools.wraps(hook)
    def call(self: "SweepCallback", *args: Any, **info: Any) -> None:
        panel = SweepPanel.current()
        if panel is None:
            return
        self.panel = panel
        try:
            hook(self, *args, **info)
        except Exception as error:
            warnings.warn(
                f"the panel can't follow the sweep, or keep its state: {error!r}",
                stacklevel=2,
            )

    return call


class SweepCallback(tune.Callback):
    """Brings what Tune's loop does into the state of the panel that is open in this process.

    Tune pickles it into the sweep's folder: a process that restores the sweep has a panel of its own.
    """

    panel: "SweepPanel"  # the one that is open; set before each hook

    def __init__(self) -> None:
        self._trials: Sequence[Any] = ()
        self._configs: dict[str, Any] = {}  # by trial, what is shown: Tune replaces one that it changes
        self._iterations = Iterations()
        self._has_time = False  # whether any result had what the scheduler counts
        self._next_look = 0.0
        self._news_at = time.monotonic()  # when a trial last reported, began or ended

    def __reduce__(self) -> tuple:
        return type(self), ()

    @_if_open
    def setup(self, total_num_samples: int | None = None, **_: Any) -> None:
        self.panel.handled = sys.exc_info()[1]
        if total_num_samples and total_num_samples < 10**6:  # more stands for "until stopped"
            with self.panel.update() as state:
                state.total = total_num_samples

    @_if_open
    def on_step_begin(self, trials: Sequence[Any], **_: Any) -> None:
        if not self._trials:  # before the first step, those of an interrupted sweep
            over = [trial.trial_id for trial in trials if trial.status in ("TERMINATED", "ERROR")]
            self.panel.plan.ended.update(over)
            with self.panel.update() as state:
                state.over_before = len(over)
        self._trials = trials

    @_if_open
    def on_step_end(self, **_: Any) -> None:
        if time.monotonic() < self._next_look:  # a step takes a few milliseconds
            return
        self._next_look = time.monotonic() + _LOOK_EVERY
        waits = self._waits()
        with self.panel.update() as state:
            self._look_at_all()
            state.waits = waits

    @_if_open
    def on_trial_result(self, trial: Any, result: dict[str, Any], **_: Any) -> None:
        self._news_at = time.monotonic()
        with self.panel.update() as state:
            shown = self._state_of(trial)
            if self._configs[trial.trial_id] is not trial.config:
                config = self._shown_config(trial)
                if config != shown.config:
                    shown.changes += 1
                shown.config = config
            self._take(trial, result)
            self._note_report(trial, result)
            if shown.status != "running":  # it begins, perhaps in the place of others
                self._look_at_all()
            state.set_status(trial.trial_id, "running")

    @_if_open
    def on_trial_complete(self, trial: Any, **_: Any) -> None:
        self.panel.plan.note_end(trial)

    @_if_open
    def get_state(self) -> None:
        """Save the sweep's state: Tune asks for that of callbacks when it has written all others."""
        for trial in self._trials[:1]:
            self.panel.plan.save_state(_tune.staging_folder(trial))

    @_if_open
    def on_experiment_end(self, trials: Sequence[Any], **_: Any) -> None:
        # Tune has ended all trials by now, and calls that the same, whatever the reason.
        panel = self.panel
        interrupted = panel.interrupted()
        panel.interrupted = lambda: interrupted  # what comes now is no interrupt of the sweep
        cut_off = interrupted or sys.exc_info()[1] is not panel.handled
        with panel.update() as state:
            for trial in trials:
                shown = self._state_of(trial)
                if not cut_off or trial.status == "ERROR" or trial.trial_id in panel.plan.ended:
                    self._look(trial)
                elif shown.status not in OVER:
                    state.set_status(trial.trial_id, "cut off")

    def _waits(self) -> str:
        """Return what a sweep without news waits for."""
        if time.monotonic() - self._news_at < capacity.QUIET_FOR:
            return ""
        if {trial.status for trial in self._trials if not trial.is_finished()} == {"PAUSED"}:
            return _ONLY_PAUSED.format(self.panel.plan.time)
        with contextlib.suppress(Exception):  # the cluster is gone, and Tune's own error says that better
            bundles = [trial.placement_group_factory.bundles for trial in self._trials]
            return capacity.waits_for(bundles)
        return ""

    # -- inside `panel.update()` --------------------------------------------------------------------

    def _state_of(self, trial: Any) -> TrialState:
        """Return what is shown of a trial; a new one is added."""
        state = self.panel.state
        if trial.trial_id not in state.trials:
            state.add(trial.trial_id, self._shown_config(trial))
            result = trial.run_metadata.last_result  # trial.last_result would wait for the trial's process
            if result:  # of an interrupted sweep
                self._take(trial, result)
        return state.trials[trial.trial_id]

    def _shown_config(self, trial: Any) -> dict[str, Any]:
        self._configs[trial.trial_id] = trial.config
        return trials.shown_config(trial.config)

    def _take(self, trial: Any, result: dict[str, Any]) -> None:
        """Take over a result; the metric "val/loss" may be in a dict "val"."""
        plan = self.panel.plan
        state = self.panel.state
        result = flatten_dict(result)
        self._has_time = self._has_time or plan.time in result
        state.warning = ""
        if not self._has_time:
            metrics = ", ".join(_tune.metrics_in(result))
            scheduler = type(plan.options.scheduler).__name__
            state.warning = (
                f"no result has {plan.time!r}, the time_attr of {scheduler}, "
                f"so it stops no trial early; results have {metrics or 'nothing of their own'}"
            )
        state.reported(
            trial.trial_id,
            iteration=result.get("training_iteration", 0),
            value=trials.number(result.get(state.metric or "")),
            seconds=result.get("time_total_s", 0.0),
            time=trials.number(result.get(plan.time)) if plan.rungs else None,
        )

    def _note_report(self, trial: Any, result: dict[str, Any]) -> None:
        """Say what Tune makes of a result, where that surprises."""
        state = self.panel.state
        replaced = self._iterations.note_on(trial.trial_id, result)
        if replaced and not any("'training_iteration'" in sentence for sentence in state.names):
            state.names.append(replaced)
        if state.metric and not state.not_finite:
            value = trials.number(flatten_dict(result).get(state.metric))
            state.not_finite = not_finite(state.metric, value, state.trials[trial.trial_id].number)

    def _look_at_all(self) -> None:
        """Update running trials first. One that starts in another's place would be counted next to it."""
        running = {id for id, shown in self.panel.state.trials.items() if shown.status == "running"}

        def order(trial: Any) -> tuple[bool, int]:
            return trial.trial_id not in running, _tune.place_of(trial)

        for trial in sorted(self._trials, key=order):
            self._look(trial)

    def _look(self, trial: Any) -> None:
        before = self._state_of(trial).status
        status = trials.STATUS.get(trial.status, "waiting")
        if before in OVER or before == status:
            return
        self._news_at = time.monotonic()
        panel = self.panel
        if status == "failed":
            text, fix = trials.why_failed(trial)
            panel.state.trial_failed(trial.trial_id, text)
            panel.fix = panel.fix or fix
            return
        if status == "finished":
            status = _how_finished(panel.plan, trial)
        panel.state.set_status(trial.trial_id, status)


def _how_finished(plan: TunerPlan, trial: Any) -> str:
    """Return what Tune's one word for an end means: others were better, or the whole sweep ended."""
    if trial.trial_id in plan.stopped:
        return "stopped early"
    if trial.run_metadata.last_result.get("done") or trial.trial_id in plan.ended:
        return "finished"
    # A limit of the whole sweep, such as time_budget_s, ended all trials at once.
    return "cut off"


class SweepPanel(LivePanel):
    """The panel of a sweep: which trials run, which were stopped and why, which is the best.

    Args:
        name: of the sweep; also the folder of its record below ``HOME/runs``.
        dataset: shown in the record.
        options: those of `labkit.panel.base.LivePanel`: settings, reporter, live.
    """

    exclusive = True
    first_phase = "start"
    view = staticmethod(sweep_view.shown)
    state: SweepRun
    plan: TunerPlan = None  # type: ignore[assignment]  # until `watch` sets it

    def __init__(self, name: str, *, dataset: str | None = None, **options: Any) -> None:
        self._dataset = dataset
        self._tuner: Any = None
        self.fix = ""  # for the first trial that failed
        self.handled: BaseException | None = None  # by the reader's code around `fit`
        self.interrupted: Callable[[], bool] = lambda: False
        super().__init__(name, **options)

    @interrupts.stoppable("the checks before the start", left="Nothing has been started")
    def watch(self, tuner: Any) -> "SweepPanel":
        """Follow `tuner` in a ``with`` block around its ``fit()``, and switch off what Tune would print.

        A sweep without a name gets this run's id as its name. If `tuner` restores a sweep that was killed,
        its saved state is put back.

        Raises:
            LabError: the sweep cannot work (see `TunerPlan.check`).
        """
        if self.state.over:
            self.renew()
        trials.named_uniquely(tuner, self.run_id)
        plan = TunerPlan.from_tuner(tuner)
        if plan.restored:
            plan.restore_state()
        plan.check(cluster.current())
        self.loop = plan.trainable
        module = getattr(plan.trainable, "__module__", "")
        if module.partition(".")[0] == "ray":  # tune.with_parameters has wrapped it
            self.loop = None
        self._tuner = tuner
        self.plan = plan
        self.fix = ""
        self.state = self.new_state()  # the run id stays: the Tuner may have it as its name
        return self

    def __enter__(self) -> "SweepPanel":
        if self.plan is None:
            raise BadInput(
                f"open the panel {self.state.name!r}",
                "it watches no tuner, so it cannot tell what is compared, nor what cannot work",
                "with panel.watch(tuner): …",
            )
        return super().__enter__()

    # -- what a panel of an engine overrides --------------------------------------------------------

    def new_state(self) -> SweepRun:
        run = SweepRun(self._name, dataset=self._dataset)
        plan = self.plan
        if plan is None:
            return run
        run.metric, run.mode = plan.compared
        run.time = plan.time
        run.rungs = plan.rungs
        run.path = plan.path
        run.names = names_of_tune(plan.trainable)
        return run

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """Let Tune call this panel, and print nothing itself; the reader's configuration stays unchanged."""
        run = self.plan.run
        callbacks = [*(run.callbacks or []), SweepCallback()]
        reporter = tune.CLIReporter()  # the other one displays
        with (
            attributes_set(run, callbacks=callbacks, verbose=0, progress_reporter=reporter),
            _tune.without_noise(),
            ends.quiet_deaths(),
            self.plan.noting_stops(),
            _tune.without_lost_cpus(),
            _tune.noting_interrupts() as interrupted,
            self._trials_followed(),
        ):
            self.interrupted = interrupted
            yield

    @contextlib.contextmanager
    def _trials_followed(self) -> Iterator[None]:
        """Follow the loops of trials that are functions, on a cluster whose nodes have labkit."""
        lab = cluster.of_this_connection()
        function = self.plan.trainable
        is_followed = inspect.isfunction(function) and not inspect.isgeneratorfunction(function)
        if lab is None or not is_followed:
            yield
            return
        if lab.is_ours:
            # All nodes of such a cluster are on this machine, and a socket costs less than an actor.
            self._listener = Listener(self._hear)
        else:
            self._listener = Mailbox(self._hear, f"labkit-panel-{self.run_id}")
        tracker = TrialTracker(self.run_id, self._listener.address)
        with _tune.trainable_replaced(self._tuner, followed(function, tracker)):
            yield

    def _hear(self, event: Event) -> None:
        """Take in how the time of a trial's steps divides."""
        if not isinstance(event, Parts) or event.run != self.run_id:
            return
        trial = self.state.trials.get(event.trial)
        if trial is not None:
            with self.update():
                trial.note_steps(event)

    def ended_by(self, error: BaseException | None) -> BaseException | None:
        if self.interrupted():
            return KeyboardInterrupt()  # Tune ends its loop in good order and returns
        if error is None and self.state.all_failed:
            return RunFailed(
                f"finish the sweep {self.state.name!r}",
                f"every one of its {len(self.state.trials)} trials failed, the first with "
                f"{self.state.failures[0].message}",
                self.fix,
            )
        return error

    def keep_failure(self, error: BaseException) -> None:
        if not self.state.all_failed:  # what they failed with says more than that they failed
            self.state.fail(self.failure_text(error))

    def failure_text(self, error: BaseException) -> str:
        text = _tune.unreadable(error)
        if not text and isinstance(error, tune.TuneError):
            text = str(error)
        if text:
            return tracebacks.shorten_text(text)
        return super().failure_text(error)

    def translate(self, error: BaseException) -> BaseException | None:
        is_of_ray = isinstance(error, (tune.TuneError, ray.exceptions.RayError))
        if not is_of_ray and not _tune.unreadable(error):
            return None
        text = str(error)
        reported = _tune.names_without_metric(text)
        if reported is not None:
            metric = self.state.metric
            return BadInput(
                f"compare trials by {metric!r}",
                f"they report {', '.join(map(repr, reported))} but never {metric!r}",
                f"TuneConfig(metric=…) with one that is reported, or report {metric!r}",
            )
        where = "the panel shows where" if tracebacks.shows_own(text) else _OF_RAY
        return RunFailed(
            f"finish the sweep {self.state.name!r}",
            self.failure_text(error).splitlines()[-1],
            known_fix(text) or where,
        )

    def after_stop(self) -> str:
        if not self.state.trials:
            return "It had no trial yet: start it again under a fresh name"
        return f"{super().after_stop()}. To go on: tune.Tuner.restore({self.plan.to_restore}, trainable=…)"

    def files(self) -> list[tuple[str, str]]:
        files = [("results and checkpoints", self.plan.path)]
        logs = cluster.log_dir()
        if logs is not None:
            files.append(("Ray's logs", str(logs)))
        return files
