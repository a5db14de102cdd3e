"""The panel of a Ray Train run.

    panel = TrainPanel("03-torch")

    def train_loop(config):                      # in each worker
        for epoch in range(config["epochs"]):
            for batch in panel.steps(shard.iter_torch_batches(batch_size=64), epoch=epoch, epochs=3):
                ...
            ray.train.report(metrics, checkpoint=...)

    trainer = TorchTrainer(train_loop, ..., run_config=RunConfig(callbacks=[panel.callback()]))
    with panel.watch(trainer):
        result = trainer.fit()

Ray Train has no reporter for notebooks. Its only hook, `ray.train.UserCallback`, is called in the run's
controller, a process of its own. What it and the workers report comes to the kernel through
`labkit.panel.tracking.channel`.
"""

import contextlib
import re
import reprlib
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import ray
import ray.train
from ray.util import state
from ray.util.placement_group import PlacementGroup

from labkit import cluster, interrupts
from labkit.cluster import capacity
from labkit.display import tracebacks
from labkit.errors import RunError, RunFailed
from labkit.panel.run import Panel
from labkit.panel.tracking.remote import TrackedFunction
from labkit.storage import check_run_name, hint_for
from labkit.train import hang
from labkit.train.callbacks import (
    CheckpointStatusCallback,
    Interrupts,
    ReportCallback,
    ReportingValidator,
    checkpoint_status_callback,
    first_failure,
    quiet_deaths,
)
from labkit.train.checkpoints import epochs_done, unranked, wrong_order
from labkit.train.closure_size import check_closure_size


class TrainPanel(Panel):
    """The panel of a Ray Train run; see `labkit.panel.run.Panel` for its arguments."""

    def __init__(self, name: str, **about: Any) -> None:
        self._trainer: Any = None
        self._interrupts: Interrupts | None = None
        self._earlier, self._completed = 0, False
        self._epochs = about.get("epochs")  # of a trainer whose config does not say it
        super().__init__(name, **{"engine": "Ray Train", **about})

    def callback(self) -> ReportCallback:
        """For ``RunConfig(callbacks=[…])``: reports, checkpoints and failures go to this panel."""
        return ReportCallback(self)

    @interrupts.stoppable("the checks before the start", left="Nothing has been started")
    def watch(self, trainer: Any) -> Self:
        """Follow `trainer` in a ``with`` block around its ``fit()``.

        Warns if `CheckpointConfig` keeps the worst checkpoints.

        Raises:
            LabError: the cluster has no room for its workers or its validations; Ray would wait forever.
            RunError: it is no trainer of Ray Train, its `RunConfig` has no callback of this panel, or its
                validation function captures a large object.
        """
        scaling, run_config = (getattr(trainer, f"{part}_config", None) for part in ("scaling", "run"))
        if not isinstance(run_config, ray.train.RunConfig) or isinstance(trainer, type):
            raise RunError(
                f"follow a training with the panel {self.state.name!r}",
                f"{reprlib.repr(trainer)} is no trainer of Ray Train",
                "panel.watch(TorchTrainer(...)), or another trainer of ray.train",
            )
        # A tuple is the smallest and the largest number of workers of an elastic training.
        workers = scaling.num_workers
        fewest, most = workers if isinstance(workers, tuple) else (workers, workers)
        self.first_phase = "starting" if most else "preparing"
        local = most == 0  # the loop runs in this process, for debugging; nothing calls back
        if not local:
            if run_config.name:
                check_run_name(run_config.name)
            self._check_callbacks(run_config)
            self._check_room(trainer, fewest)
            if getattr(trainer, "validation_config", None) is not None:
                self._follow_validations(trainer)
        if warning := wrong_order(run_config.checkpoint_config):
            warnings.warn(warning, stacklevel=3)
        loop = trainer.train_loop_per_worker
        loop = loop.function if isinstance(loop, TrackedFunction) else loop
        trainer.train_loop_per_worker = TrackedFunction(loop, self)
        self._trainer, self.loop, config = trainer, loop, trainer.train_loop_config or {}
        names = ("num_workers", "use_gpu", "resources_per_worker")
        self._about |= {
            "world_size": max(most, 1),
            "engine": "one process" if local else "Ray Train",
            "epochs": config.get("epochs", self._epochs),
            "config": config,
            "scaling": {name: getattr(scaling, name, None) for name in names},
            "storage_path": None if local else _storage_path(run_config),
        }
        if self.state.status == "ready":
            self.state = self.new_state()
        return self

    def files(self) -> list[tuple[str, str]]:
        path, lab = self._about.get("storage_path"), cluster.current()
        listed = [("checkpoints", path)] if path else []
        if lab is not None and lab.log_dir is not None:
            listed += [
                ("training workers' logs", str(lab.log_dir / "train")),
                ("Ray's logs", str(lab.log_dir)),
            ]
        return listed

    # -- what `labkit.panel.run.Panel` calls --------------------------------------------------------

    def __enter__(self) -> Self:
        if self._trainer is None:
            raise RunError(
                f"follow a run with the panel {self.state.name!r}",
                "it does not know which trainer to follow",
                "with panel.watch(trainer): trainer.fit(); for a loop without Ray Train: labkit.panel.Panel",
            )
        return super().__enter__()

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        local = self._about["engine"] == "one process"
        self._earlier = 0 if local else epochs_done(self._trainer.run_config)
        # A training without workers needs no cluster.
        groups = set(ray.util.placement_group_table()) if ray.is_initialized() else set()
        over = threading.Event()
        threading.Thread(target=self._watch_for_hangs, args=[over], name="labkit-hang", daemon=True).start()
        self._interrupts = Interrupts(self._trainer)
        with quiet_deaths():
            try:
                yield
            except BaseException as error:
                with interrupts.held():
                    _end_controller(error.__traceback__)
                    lost = isinstance(error, (ray.train.ControllerError, ray.exceptions.RayError))
                    if lost or self._interrupts.forced:
                        _free_placement_groups(groups)
                raise
            finally:
                over.set()

    def ended_by(self, error: BaseException | None) -> BaseException | None:
        self._completed = error is None
        interrupted = error is not None and self._interrupts is not None and self._interrupts.came
        return KeyboardInterrupt() if interrupted else error

    def host(self) -> str:
        """Loopback, unless the cluster has nodes on other machines: then the address they know us by."""
        if ray.is_initialized():
            mine = ray.util.get_node_ip_address()
            if any(node["Alive"] and node["NodeManagerAddress"] != mine for node in ray.nodes()):
                return mine
        return "127.0.0.1"

    def failure_text(self, error: BaseException) -> str:
        if isinstance(error, ray.train.WorkerGroupError) and error.worker_failures:
            rank, text = first_failure(error.worker_failures)
            if text.startswith(f"rank {rank} "):
                return text
        # Ray takes the workers' tracebacks off their exceptions and leaves them in its message alone.
        if isinstance(error, (ray.train.TrainingFailedError, ray.exceptions.RayError)):
            return tracebacks.shorten_text(str(error))
        return super().failure_text(error)

    def translate(self, error: BaseException) -> BaseException | None:
        # What else Ray raises here (RayError) is the end of the controller itself, or of its node.
        if not isinstance(error, (ray.train.TrainingFailedError, ray.exceptions.RayError)):
            return None
        failure = self.state.failures[-1]
        controller = not isinstance(error, ray.train.WorkerGroupError)
        who = "the controller of the run" if controller else f"rank {failure.rank}"
        told = failure.message.startswith(f"{who} ")
        again = f"fit() with the same storage and RunConfig(name={self._trainer.run_config.name!r})"
        resume = (
            f"{again} goes on from the last checkpoint; "
            "RunConfig(failure_config=FailureConfig(max_failures=1)) does that by itself"
        )
        look = "the panel above shows where; all of it is in the logs"
        if self.state.checkpoints.kept:
            look += f". Then {again} goes on from the last checkpoint"
        return RunFailed(
            f"finish the run {self.state.name!r}",
            failure.message if told else f"{who} raised {failure.message}",
            hint_for(failure.message)
            or (resume if re.match(r"rank \d+ is gone", failure.message) else None)
            or look,
        )

    def hang_up(self) -> None:
        super().hang_up()
        reported = {name for one in self.state.checkpoints for name in one.metrics}
        notes = self._resumed(), unranked(self._trainer.run_config.checkpoint_config, reported)
        self.state.note = "; ".join(filter(None, notes))

    # -- inside -------------------------------------------------------------------------------------

    def _resumed(self) -> str:
        """Where the run went on, if one with its name had begun before."""
        state = self.state
        of = f" of {state.epochs}" if state.epochs else ""
        if self._completed and self._earlier and not state.history and not state.first_step_at:
            told = f"went on from epoch {self._earlier}{of}: nothing trained"
            return f"{told}; a new run needs a new name in RunConfig(name=...)"
        done = state.history[0]["epoch"] if self._earlier and state.history else 0
        return f"went on after epoch {done}{of}" if done else ""

    def _watch_for_hangs(self, over: threading.Event) -> None:
        """Say what each rank waits for while nothing is heard of the run."""
        after, pause = self.settings.hang_after, 1.0
        while after and not over.wait(pause):
            heard, pause = self.state.heard_at, 1.0
            if not self.state.first_step_at or time.time() - heard < after:
                continue
            lines = hang.explain(list(self.state.workers.values()))
            pause = 5.0
            with self.update() as run:
                if run.heard_at == heard:
                    run.hang = lines

    def _check_callbacks(self, run_config: ray.train.RunConfig) -> None:
        if not any(isinstance(c, ReportCallback) and c.panel is self for c in run_config.callbacks or ()):
            raise RunError(
                f"follow the run {run_config.name!r}",
                "its RunConfig has no callback of this panel, so nothing would be heard from it",
                "RunConfig(..., callbacks=[panel.callback()])",
            )

    def _check_room(self, trainer: Any, workers: int) -> None:
        lab, scaling = cluster.current(), trainer.scaling_config
        if lab is not None:
            per_worker = dict(scaling.resources_per_worker or {})
            lab.check_capacity(
                workers=workers,
                cpus_per_worker=per_worker.get("CPU", 0 if scaling.use_gpu and per_worker else 1),
                gpus_per_worker=per_worker.get("GPU", 1 if scaling.use_gpu else 0),
                data=bool(trainer.datasets),
            )

    def _follow_validations(self, trainer: Any) -> None:
        """Let the trainer's validations report to this panel; refuse those that cannot run."""
        config, callbacks = trainer.validation_config, trainer.run_config.callbacks
        # The trainer, or its RunConfig, may have been followed by another panel before.
        function = config.fn.fn if isinstance(config.fn, ReportingValidator) else config.fn
        check_closure_size(function)
        # A new one: the reader's own may serve another trainer.
        trainer.validation_config = ray.train.ValidationConfig(
            ReportingValidator(function, self), config.task_config, config.ray_remote_kwargs
        )
        others = [callback for callback in callbacks if not isinstance(callback, CheckpointStatusCallback)]
        statuses = checkpoint_status_callback(self)
        trainer.run_config.callbacks = others if statuses is None else [*others, statuses]
        if (lab := cluster.current()) is not None:
            options = dict(config.ray_remote_kwargs)
            capacity.check_task_fits(lab.nodes, options, attempt="run validations", ours=lab.is_ours)


def _storage_path(config: ray.train.RunConfig) -> str:
    # As text: a path may be a URI ("s3://bucket/runs"), whose two slashes a Path would make one.
    return f"{str(config.storage_path).rstrip('/')}/{config.name}"


def _end_controller(trace: TracebackType | None) -> None:
    """End the controller of a run that failed.

    A kernel keeps the last traceback, and Ray's frames in it hold the controller's handle: the controller and
    all that it started would live on. The frames stay, for ``%debug``.
    """
    for frame, _ in traceback.walk_tb(trace):
        if frame.f_globals.get("__name__", "").partition(".")[0] == "ray":
            for value in list(frame.f_locals.values()):
                if isinstance(value, ray.actor.ActorHandle):
                    with contextlib.suppress(Exception):  # mostly it is dead already
                        value.__ray_terminate__.remote()


def _free_placement_groups(before: set[str]) -> None:
    """Remove the placement groups that a failed controller left behind, with the CPUs they hold.

    Ray removes them when this notebook's job ends; until then the next run would wait forever.

    Args:
        before: ids of those that were there before the run.
    """
    context = ray.get_runtime_context()
    filters = [("creator_job_id", "=", context.get_job_id()), ("state", "!=", "REMOVED")]
    # It asks the dashboard. Where that does not answer, the run's own error is what the reader must see.
    with contextlib.suppress(Exception):
        # Without an address it would ask the cluster that the last ray.init() started, dead or not.
        for group in state.list_placement_groups(context.gcs_address, filters=filters, timeout=10):
            if group.placement_group_id not in before:
                number = ray.PlacementGroupID.from_hex(group.placement_group_id)
                ray.util.remove_placement_group(PlacementGroup(number))
