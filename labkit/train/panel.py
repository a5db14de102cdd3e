"""Ray Train reports into the panel.

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
controller, a process of its own: what it hears, and what the workers send, comes to the kernel through
`labkit.panel.tracking.channel`.
"""

import contextlib
import traceback
import warnings
from types import TracebackType
from typing import Any

import pyarrow.fs
import ray
import ray.train
from ray.util import state
from ray.util.placement_group import PlacementGroup

from labkit import cluster
from labkit.cluster import capacity
from labkit.display import tracebacks
from labkit.errors import RunError, RunFailed
from labkit.panel.run import Panel
from labkit.panel.tracking.remote import RemoteReporter, TrackedFunction
from labkit.storage import explain as s3_faults
from labkit.train import closure_size as captured
from labkit.train.callbacks import BesideCallback, Watched

_TEXT_SENT = 10_000  # characters of an error that travel


class TrainPanel(Panel):
    """The panel of a Ray Train run; see `labkit.panel.run.Panel` for its arguments."""

    def __init__(self, name: str, **about: Any) -> None:
        super().__init__(name, **{"engine": "Ray Train", **about})
        self._trainer: Any = None

    def callback(self) -> "ReportCallback":
        """For ``RunConfig(callbacks=[…])``: reports, checkpoints and failures go to this panel."""
        return ReportCallback(self)

    def watch(self, trainer: Any) -> "TrainPanel":
        """Follow `trainer` in a ``with`` block around its ``fit()``.

        Raises:
            ClusterError: the cluster has no room for its workers or its validations; Ray would wait for ever.
            RunError: its `RunConfig` has no callback of this panel, or its validation function takes a
                large object along.
        """
        scaling, run_config = trainer.scaling_config, trainer.run_config
        local = scaling.num_workers == 0  # the loop runs in this process, for debugging; nothing calls back
        if not local and not any(
            isinstance(c, ReportCallback) and c.reports_to(self) for c in run_config.callbacks
        ):
            raise RunError(
                f"follow the run {run_config.name!r}",
                "its RunConfig has no callback of this panel, so nothing would be heard from it",
                "RunConfig(..., callbacks=[panel.callback()])",
            )
        lab = cluster.current()
        if lab is not None and not local:
            per_worker = dict(scaling.resources_per_worker or {})
            lab.check_capacity(
                workers=scaling.num_workers,
                cpus_per_worker=per_worker.get("CPU", 0 if scaling.use_gpu and per_worker else 1),
                gpus_per_worker=per_worker.get("GPU", 1 if scaling.use_gpu else 0),
                data=bool(trainer.datasets),
            )
        if getattr(trainer, "validation_config", None) is not None and not local:
            self._watch_validations(trainer, lab)
        loop = trainer.train_loop_per_worker
        loop = loop.function if isinstance(loop, TrackedFunction) else loop
        trainer.train_loop_per_worker = TrackedFunction(loop, self)
        self._trainer = trainer
        self._about["world_size"] = max(scaling.num_workers, 1)
        self._about["engine"] = "one process" if local else "Ray Train"
        self._about["epochs"] = (trainer.train_loop_config or {}).get("epochs", self._about["epochs"])
        return self

    def _watch_validations(self, trainer: Any, lab: cluster.Cluster | None) -> None:
        """Let the trainer's validations tell this panel of themselves; refuse what cannot go well."""
        config, callbacks = trainer.validation_config, trainer.run_config.callbacks
        # The trainer, or its RunConfig, may have been followed by another panel before.
        function = config.fn.fn if isinstance(config.fn, Watched) else config.fn
        captured.require_small(function)
        # A new one: the reader's own may serve another trainer.
        trainer.validation_config = ray.train.ValidationConfig(
            Watched(function, self), config.task_config, config.ray_remote_kwargs
        )
        others = [callback for callback in callbacks if not isinstance(callback, BesideCallback)]
        callbacks[:] = [*others, BesideCallback(self)]
        if lab is not None:
            capacity.check_task_fits(
                lab.nodes, dict(config.ray_remote_kwargs), attempt="run validations beside the training"
            )
            per_worker = (trainer.scaling_config.resources_per_worker or {}).get("CPU", 1)
            spare = lab.cpus - trainer.scaling_config.num_workers * per_worker - bool(trainer.datasets)
            if spare < config.ray_remote_kwargs.get("num_cpus", 1):
                warnings.warn(
                    f"the workers leave {max(spare, 0):g} of {lab.cpus:g} CPUs: validations will wait until "
                    "the training is over, while timeout_s runs; take a worker less, or lab.add_node()",
                    stacklevel=3,
                )

    def __enter__(self) -> "TrainPanel":
        if self._trainer is not None and self.state.status == "ready":
            for name in ("world_size", "engine", "epochs"):
                setattr(self.state, name, self._about[name])
        # One that runs without workers needs no cluster.
        self._groups_before = set(ray.util.placement_group_table()) if ray.is_initialized() else set()
        super().__enter__()
        return self

    def files(self) -> list[tuple[str, str]]:
        """Checkpoints and logs of this run."""
        listed = []
        if self._trainer is not None:
            config = self._trainer.run_config
            # As text: a path may be a URI ("s3://bucket/runs"), whose two slashes a Path would make one.
            listed.append(("checkpoints", f"{str(config.storage_path).rstrip('/')}/{config.name}"))
        lab = cluster.current()
        if lab is not None and lab.log_dir is not None:
            listed += [
                ("training workers' logs", str(lab.log_dir / "train")),
                ("Ray's logs", str(lab.log_dir)),
            ]
        return listed

    def host(self) -> str:
        """Loopback, unless the cluster has nodes on other machines: then the address they know us by."""
        if ray.is_initialized():
            mine = ray.util.get_node_ip_address()
            if any(node["Alive"] and node["NodeManagerAddress"] != mine for node in ray.nodes()):
                return mine
        return "127.0.0.1"

    def first_phase(self) -> str:
        return "starting" if self._about["engine"] == "Ray Train" else "preparing"

    def failure_text(self, error: BaseException) -> str:
        # Ray takes the workers' tracebacks off their exceptions and leaves them in its message alone.
        if isinstance(error, (ray.train.TrainingFailedError, ray.exceptions.RayError)):
            return tracebacks.shorten_text(str(error))
        return super().failure_text(error)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            _let_go(trace)
            if isinstance(error, (ray.train.ControllerError, ray.exceptions.RayError)):
                _give_back(self._groups_before)

    def translate(self, error: BaseException) -> BaseException | None:
        # What else Ray raises here (RayError) is the end of the controller itself, or of its node.
        if isinstance(error, (ray.train.TrainingFailedError, ray.exceptions.RayError)):
            failure = self.state.failures[-1]
            controller = not isinstance(error, ray.train.WorkerGroupError)
            who = "the controller of the run" if controller else f"rank {failure.rank}"
            return RunFailed(
                f"finish the run {self.state.name!r}",
                f"{who} raised {failure.message}",
                s3_faults.advice(failure.message)
                or self._advice(failure.message)
                or "the panel above shows where; all of it is in the logs",
            )
        return None

    def _advice(self, message: str) -> str | None:
        """Ray counts a validation that raises as failed; one whose process dies ends the whole run."""
        validates = getattr(self._trainer, "validation_config", None) is not None
        if not validates or "died unexpectedly while executing this task" not in message:
            return None
        return (
            "a validation took its process down, for want of memory perhaps: let it take fewer rows at once; "
            "then start the run again under the same name: it goes on, and validates what is pending"
        )


class ReportCallback(RemoteReporter, ray.train.UserCallback):
    """Sends what the controller of a Ray Train run hears to the panel that made it."""

    def __init__(self, panel: TrainPanel) -> None:
        super().__init__(panel)
        self.panel_name = panel.state.name

    def after_report(
        self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: ray.train.Checkpoint | None
    ) -> None:
        self.send(kind="report", metrics=metrics, epoch=metrics[0].get("epoch") if metrics else None)
        if checkpoint is not None:
            self.send(
                kind="checkpoint",
                path=checkpoint.path,
                bytes=_bytes_of(checkpoint),
                status="committed",
                metrics=metrics[0] if metrics else {},
            )

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        rank = min(worker_exceptions)  # the others mostly fail because the first one did
        error = worker_exceptions[rank]
        self.send(kind="failure", rank=rank, text=f"{type(error).__name__}: {error}"[:_TEXT_SENT])


def _let_go(trace: TracebackType | None) -> None:
    """Forget what Ray's own frames of a traceback hold: the handle of the run's controller.

    A kernel keeps the last traceback, and with it the controller and all that it started would live on.
    """
    for frame, _ in traceback.walk_tb(trace):
        if frame.f_globals.get("__name__", "").partition(".")[0] == "ray":
            with contextlib.suppress(RuntimeError):  # it still runs
                frame.clear()


def _give_back(before: set[str]) -> None:
    """Remove the placement groups that a failed controller left behind, with the CPUs they hold.

    Ray removes them when this notebook's job ends; until then the next run would wait for ever.

    Args:
        before: ids of those that were there before the run.
    """
    context = ray.get_runtime_context()
    filters = [("creator_job_id", "=", context.get_job_id()), ("state", "=", "CREATED")]
    # It asks the dashboard. Where that does not answer, the run's own error is what the reader must see.
    with contextlib.suppress(Exception):
        # Without an address it would ask the cluster that somebody's ray.init() started last, dead or not.
        for group in state.list_placement_groups(context.gcs_address, filters=filters, timeout=10):
            if group.placement_group_id not in before:
                number = ray.PlacementGroupID.from_hex(group.placement_group_id)
                ray.util.remove_placement_group(PlacementGroup(number))


def _bytes_of(checkpoint: ray.train.Checkpoint) -> int | None:
    """Size of all files of a checkpoint, wherever it lies; None if the store does not say."""
    try:
        selector = pyarrow.fs.FileSelector(checkpoint.path, recursive=True)
        return sum(info.size or 0 for info in checkpoint.filesystem.get_file_info(selector))
    except Exception:  # a store's client raises what it likes; that a checkpoint was kept must still be heard
        return None
