"""The panel of a sweep of Ray Tune.

    tuner = tune.Tuner(
        Digits,
        param_space={"lr": tune.loguniform(1e-3, 1)},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", num_samples=32),
        run_config=tune.RunConfig(storage_path=...),
    )
    with SweepPanel("05-asha").watch(tuner):
        results = tuner.fit()

It listens through a `tune.Callback`, which Tune always calls, in the process of its loop: this one. Tune's
own reporters print tables, and are ignored in some environments.
"""

import contextlib
import signal
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

import ray
from ray import tune

from labkit import cluster, interrupts
from labkit.display import tracebacks
from labkit.errors import LabError, RunFailed
from labkit.panel.base import LivePanel
from labkit.tune import saved
from labkit.tune.callback import SweepCallback
from labkit.tune.checks import check_plan
from labkit.tune.sweep import SweepRun
from labkit.tune.trials import TunerPlan, named_uniquely, names_without_metric, without_noise


class SweepPanel(LivePanel):
    """The panel of a sweep: which trials run, which were stopped and why, which is the best.

    Args:
        name: of the sweep; also the folder of its record below ``HOME/runs``.
        dataset: shown in the record.
        about: as `labkit.panel.Panel` takes it: settings, reporter.
    """

    exclusive = True
    drawing_share = 0.01

    def __init__(self, name: str, *, dataset: str | None = None, **about: Any) -> None:
        self._dataset = dataset
        self.plan: TunerPlan | None = None
        super().__init__(name, **about)

    def callback(self) -> SweepCallback:
        """For ``tune.RunConfig(callbacks=[…])``. `watch` adds one where there is none."""
        return SweepCallback()

    @interrupts.stoppable("the checks before the start", left="Nothing has been started")
    def watch(self, tuner: Any) -> "SweepPanel":
        """Follow `tuner` in a ``with`` block around its ``fit()``, and switch off what Tune would print.

        A sweep without a name gets this run's id as its name. If `tuner` restores a sweep that was killed,
        its saved state is put back (see `labkit.tune.saved`).

        Raises:
            LabError: the sweep cannot work (see `labkit.tune.checks`).
        """
        if self.state.over:
            self.renew()
        named_uniquely(tuner, self.run_id)
        plan = TunerPlan.from_tuner(tuner)
        self._check(plan)
        self.plan = plan
        own = getattr(plan.trainable, "__module__", "").partition(".")[0] != "ray"
        self.loop = plan.trainable if own else None  # else it is wrapped: tune.with_parameters
        self.state = self.new_state()  # the run id stays: the Tuner may have it as its name
        return self

    def __enter__(self) -> "SweepPanel":
        if self.plan is None:
            fact = "it watches no tuner, so it cannot tell what is compared, nor what cannot work"
            raise LabError(f"open the panel {self.state.name!r}", fact, "with panel.watch(tuner): …")
        self.interrupted = False
        return super().__enter__()

    def hear(self, _: int, frame: FrameType | None) -> None:
        """Handle an interrupt before Tune does.

        Once `fit()` has begun the first one is only noted, because an exception can get lost in an import.
        `SweepCallback` hands it to Tune when Tune has made its loop.
        """
        again, self.interrupted = self.interrupted, True
        names = (one.f_globals.get("__name__", "") for one, _ in traceback.walk_stack(frame))
        if again or not any(name.startswith("ray.tune.") for name in names):
            raise KeyboardInterrupt

    # -- what a panel of an engine overrides --------------------------------------------------------

    def new_state(self) -> SweepRun:
        names = ("metric", "mode", "time", "rungs", "path") if self.plan is not None else ()
        about = {name: getattr(self.plan, name) for name in names}
        return SweepRun(self._name, dataset=self._dataset, **about)

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        with without_noise(), self._reporting_here(self.plan.run), self.plan.noting_stops():
            SweepCallback.panel = self
            in_main = threading.current_thread() is threading.main_thread()
            if in_main and callable(signal.getsignal(signal.SIGINT)):
                signal.signal(signal.SIGINT, self.hear)  # until Tune has its own handler
            try:
                yield
            finally:
                SweepCallback.panel = None

    def ended_by(self, error: BaseException | None) -> BaseException | None:
        if self.interrupted:
            return KeyboardInterrupt()  # Tune ends its loop in good order and returns
        if error is None and self.state.all_failed:
            return RunFailed(
                f"finish the sweep {self.state.name!r}",
                f"every one of its {len(self.state.trials)} trials failed, the first with "
                f"{self.state.failures[0].message}",
                "the panel shows where; try the trainable in this process first, on one configuration",
            )
        return error

    def keep_failure(self, error: BaseException) -> None:
        if not self.state.all_failed:  # what they failed with says more than that they failed
            self.state.fail(self.failure_text(error))

    def failure_text(self, error: BaseException) -> str:
        if isinstance(error, tune.TuneError):
            return tracebacks.shorten_text(str(error))
        return super().failure_text(error)

    def translate(self, error: BaseException) -> BaseException | None:
        if not isinstance(error, (tune.TuneError, ray.exceptions.RayError)):
            return None
        if (reported := names_without_metric(str(error))) is not None:
            metric = self.state.metric
            fact = f"they report {', '.join(map(repr, reported))} but never {metric!r}"
            fix = f"TuneConfig(metric=…) with one that is reported, or report {metric!r}"
            return LabError(f"compare trials by {metric!r}", fact, fix)
        fact = self.failure_text(error).splitlines()[-1]
        return RunFailed(f"finish the sweep {self.state.name!r}", fact, "the panel shows where")

    def after_stop(self) -> str:
        place = ", storage_filesystem=…" if self.plan.run.storage_filesystem is not None else ""
        restore = f". To go on: tune.Tuner.restore({self.plan.path!r}, trainable=…{place})"
        if not self.state.trials:  # Tune would start over, with one empty configuration
            restore = ". It had no trial yet: start it again under a fresh name"
        return super().after_stop() + restore

    def files(self) -> list[tuple[str, str]]:
        lab = cluster.current()
        listed = [("results and checkpoints", self.plan.path)] if self.plan else []
        return listed + ([("Ray's logs", str(lab.log_dir))] if lab is not None and lab.log_dir else [])

    # -- inside -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reporting_here(self, run: tune.RunConfig) -> Iterator[None]:
        """Let Tune call this panel, and print nothing itself; the reader's configuration stays unchanged."""
        before = run.callbacks, run.verbose, run.progress_reporter
        if not any(isinstance(one, SweepCallback) for one in run.callbacks or []):
            run.callbacks = [*(run.callbacks or []), self.callback()]
        run.verbose, run.progress_reporter = 0, tune.CLIReporter()  # the other one displays
        try:
            yield
        finally:
            run.callbacks, run.verbose, run.progress_reporter = before

    def _check(self, plan: TunerPlan) -> None:
        lab, nodes = cluster.current(), None
        if lab is not None and lab.is_ours:  # others may add nodes by themselves
            nodes = [node.resources for node in lab.nodes]
        if plan.restored:
            saved.restore(*plan.storage)
        check_plan(plan, nodes)
