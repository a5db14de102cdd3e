"""Follow what Ray Train does beside a training: uploads, and validations from pending to their end.

Ray tells a `UserCallback` of reports and failures, and of nothing else. So three things look further:

- `Watched` wraps the validation function, and tells when it began and how it ended, from its own process;
- `BesideCallback` asks the run's controller for the status of every checkpoint (a validation that ran out
  of time is killed, and tells nothing), with the method that `ray.train.get_all_reported_checkpoints` calls;
- it also times each upload, in the worker. Both hooks are those that Ray's own callbacks use; Ray's trainer
  takes such callbacks, too ("custom workarounds built on top of internal callbacks").

`labkit.train.panel` attaches them to a trainer that validates; the lesson's cells need not.
"""

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import ray
import ray.train
from ray.train import CheckpointConsistencyMode
from ray.train.v2._internal.execution.callback import ControllerCallback, TrainContextCallback

from labkit.panel.tracking.remote import RemoteReporter, ReportTarget
from labkit.train.checkpoints import reported

# Ray's words and the panel's.
STATUSES = {
    "COMMITTED": "committed",
    "PENDING_VALIDATION": "pending",
    "VALIDATED": "validated",
    "VALIDATION_FAILED": "failed",
    "VALIDATION_TIMEOUT": "timed out",
}
_ASK_EACH = 0.3  # seconds; Ray itself looks at its validations once a second or less often
_NEVER = -1  # a count of reports that no run has: Ray then answers when the time is up, not when it changes
_REASON = 500  # characters of an error that travel


class Watched(RemoteReporter):
    """A validation function that tells a panel when it begins and how it ends; for Ray it is the function."""

    def __init__(self, fn: Callable[..., dict], panel: ReportTarget) -> None:
        super().__init__(panel)
        self.fn = fn
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, checkpoint: ray.train.Checkpoint, **kwargs: Any) -> dict[str, Any]:
        self.send(kind="validation", path=checkpoint.path)
        began, text = time.perf_counter(), ""
        try:
            metrics = self.fn(checkpoint, **kwargs)
            if not isinstance(metrics, dict):  # Ray refuses it, after us
                text = f"it returned {type(metrics).__name__}, and a dict of metrics is wanted"
            return metrics
        except BaseException as error:
            text = f"{type(error).__name__}: {_last_line(error)}"[:_REASON]
            raise
        finally:
            seconds = time.perf_counter() - began
            self.send(kind="validation", path=checkpoint.path, done=True, seconds=seconds, text=text)


class BesideCallback(RemoteReporter, ControllerCallback, TrainContextCallback):
    """For ``RunConfig(callbacks=[…])``, beside the panel's own: statuses of checkpoints, and uploads."""

    def __getstate__(self) -> dict[str, Any]:
        # From the controller it goes on to the workers, where nothing of its following is wanted.
        return {k: v for k, v in super().__getstate__().items() if k not in ("_over", "_known")}

    # -- in the controller --------------------------------------------------------------------------

    def after_controller_start(self, train_run_context: Any) -> None:
        """The control loop begins: ask for statuses from now on, in a thread of its own."""
        controller = ray.get_runtime_context().current_actor
        self._over = threading.Event()
        self._known: dict[str, tuple[str, dict[str, Any]]] = {}  # path -> status, metrics
        storage = train_run_context.run_config.storage_context
        with contextlib.suppress(Exception):  # mostly there is no earlier run of that name
            self._begin(reported(storage.experiment_fs_path, storage.storage_filesystem))
        threading.Thread(target=self._follow, args=(controller,), name="labkit-beside", daemon=True).start()

    async def before_controller_shutdown(self) -> None:
        """Ray's validations are over: it waits for them in its own callback, which comes before ours."""
        self._over.set()
        controller = ray.get_runtime_context().current_actor
        with contextlib.suppress(ray.exceptions.RayError):
            self._tell(await _statuses(controller, 0.01))

    def before_controller_abort(self) -> None:
        self._over.set()

    def _follow(self, controller: Any) -> None:
        while not self._over.is_set():
            try:
                found = ray.get(_statuses(controller, _ASK_EACH))
            except ray.exceptions.RayError:
                return  # the controller is about to end
            if not self._over.is_set():
                self._tell(found)

    def _begin(self, found: list[ray.train.ReportedCheckpoint]) -> None:
        """What an earlier run of that name has left behind is news only where it is still undecided."""
        for one in found:
            if STATUSES[one.status.value] != "pending":
                self._known[one.checkpoint.path] = _said(one)
        self._tell(found)

    def _tell(self, found: list[ray.train.ReportedCheckpoint]) -> None:
        for one in found:
            path = one.checkpoint.path
            if self._known.get(path) != (now := _said(one)):
                self._known[path] = now
                self.send(kind="checkpoint", path=path, status=now[0], metrics=now[1])

    # -- in each worker -----------------------------------------------------------------------------

    @contextlib.contextmanager
    def on_checkpoint_transfer(self) -> Iterator[None]:
        """A checkpoint is uploaded within this; in the loop's thread, or in one beside it."""
        about = {"kind": "upload", "rank": _rank(), "pid": os.getpid()}
        began = time.perf_counter()
        self.send(**about)
        try:
            yield
        finally:
            self.send(**about, done=True, seconds=time.perf_counter() - began)


def _said(one: ray.train.ReportedCheckpoint) -> tuple[str, dict[str, Any]]:
    return STATUSES[one.status.value], dict(one.metrics)


def _statuses(controller: Any, seconds: float) -> Any:
    return controller.get_all_reported_checkpoints.remote(
        _NEVER, CheckpointConsistencyMode.COMMITTED, seconds
    )


def _rank() -> int:
    with contextlib.suppress(Exception):  # an upload must not fail for want of a number
        return ray.train.get_context().get_world_rank()
    return 0


def _last_line(error: BaseException) -> str:
    """What an error says; of one of Ray's, whose text is a traceback of another process, its last line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if isinstance(error, ray.exceptions.RayError | ray.train.TrainingFailedError):
        lines = lines[-1:]
    return " ".join(lines)
