"""What runs in the other processes of a Ray Train run, and reports to the panel from there.

Ray Train calls a `UserCallback` in the run's controller for reports and failures, and for nothing else. So

- `ReportCallback` sends those, and looks which checkpoints Ray has deleted since the last report;
- `ReportingValidator` wraps the validation function and reports when it began and how it ended;
- `CheckpointStatusCallback` polls the controller for the status of every checkpoint, because a validation
  that is killed at its timeout reports nothing.

Pickled into those processes, the panel that each has becomes a `RemoteTracker`.

This is the one file that uses private names of Ray Train.
"""

import contextlib
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow.fs
import ray
import ray.train
from ray._private import worker
from ray.train import CheckpointConsistencyMode
from ray.train.v2._internal.execution.callback import ControllerCallback

from labkit.train.checkpoints import reported_checkpoints

# Ray's words and the panel's.
STATUSES = {
    "COMMITTED": "committed",
    "PENDING_VALIDATION": "pending",
    "VALIDATED": "validated",
    "VALIDATION_FAILED": "failed",
    "VALIDATION_TIMEOUT": "timed out",
}
_POLL_SECONDS = 0.3  # Ray itself looks at its validations once a second or less often
_NEVER = -1  # a count of reports that no run has: Ray then answers when the time is up, not when it changes
_MAX_TEXT, _MAX_REASON = 10_000, 500  # characters of an error that are sent
_PATIENCE = 3.0  # seconds that a controller has to abort its run
_DEATH = "A worker died or was killed"  # how the raylet's message begins


class ReportCallback(ray.train.UserCallback):
    """Sends what the controller of a Ray Train run hears to the panel that made it."""

    def __init__(self, panel: Any) -> None:
        self.panel = panel
        self._kept: dict[str, ray.train.Checkpoint] = {}

    def after_report(
        self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: ray.train.Checkpoint | None
    ) -> None:
        first = metrics[0] if metrics else {}  # rank 0's, as Ray keeps them
        self.panel.send(kind="report", metrics=first, epoch=first.get("epoch"))
        if checkpoint is None:
            return
        about = {"bytes": _bytes_of(checkpoint), "status": "committed", "metrics": first}
        self.panel.send(kind="checkpoint", path=checkpoint.path, **about)
        config = getattr(getattr(run_context, "run_config", None), "checkpoint_config", None)
        if getattr(config, "num_to_keep", None) is not None:
            self._send_deleted()
            self._kept[checkpoint.path] = checkpoint

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        rank, text = first_failure(worker_exceptions)
        self.panel.send(kind="failure", rank=rank, text=text[:_MAX_TEXT])

    def _send_deleted(self) -> None:
        """Ray has deleted what it does not keep before it calls back; it does not say what that was."""
        for path, checkpoint in list(self._kept.items()):
            with contextlib.suppress(Exception):  # a store's client raises what it likes
                found = checkpoint.filesystem.get_file_info(path)
                if found.type == pyarrow.fs.FileType.NotFound:
                    del self._kept[path]
                    self.panel.send(kind="checkpoint", path=path, status="deleted")


class ReportingValidator:
    """A validation function that reports to a panel when it begins and how it ends."""

    def __init__(self, fn: Callable[..., dict], panel: Any) -> None:
        self.fn, self.panel = fn, panel
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, checkpoint: ray.train.Checkpoint, **kwargs: Any) -> dict[str, Any]:
        self.panel.send(kind="validation", path=checkpoint.path)
        began, text = time.perf_counter(), ""
        try:
            metrics = self.fn(checkpoint, **kwargs)
            if not isinstance(metrics, dict):  # Ray refuses it, after us
                text = f"it returned {type(metrics).__name__}, and a dict of metrics is wanted"
            return metrics
        except BaseException as error:
            text = f"{type(error).__name__}: {_last_line(error)}"[:_MAX_REASON]
            raise
        finally:
            seconds = time.perf_counter() - began
            self.panel.send(kind="validation", path=checkpoint.path, done=True, seconds=seconds, text=text)


class CheckpointStatusCallback(ControllerCallback):
    """For ``RunConfig(callbacks=[…])``, next to `ReportCallback`: the statuses of checkpoints."""

    def __init__(self, panel: Any) -> None:
        self.panel = panel

    def after_controller_start(self, train_run_context: Any) -> None:
        """The control loop begins: ask for statuses from now on, in a thread of its own."""
        controller = ray.get_runtime_context().current_actor
        self._ended, self._known = threading.Event(), {}
        storage = train_run_context.run_config.storage_context
        with contextlib.suppress(Exception):  # mostly there is no earlier run of that name
            earlier = reported_checkpoints(storage.experiment_fs_path, storage.storage_filesystem)
            # What is still undecided is news.
            self._known = {path: now for path, now in _statuses_of(earlier).items() if now[0] != "pending"}
        threading.Thread(target=self._poll, args=(controller,), name="labkit-status", daemon=True).start()

    async def before_controller_shutdown(self) -> None:
        """Ray's validations are over: it waits for them in its own callback, which comes before ours."""
        self._ended.set()
        controller = ray.get_runtime_context().current_actor
        with contextlib.suppress(ray.exceptions.RayError):
            self._send_changes(await _statuses(controller, 0.01))

    def before_controller_abort(self) -> None:
        self._ended.set()

    def _poll(self, controller: Any) -> None:
        with contextlib.suppress(ray.exceptions.RayError):  # the controller is about to end
            while not self._ended.is_set():
                found = ray.get(_statuses(controller, _POLL_SECONDS))
                if not self._ended.is_set():
                    self._send_changes(found)

    def _send_changes(self, found: list[ray.train.ReportedCheckpoint]) -> None:
        for path, now in _statuses_of(found).items():
            if self._known.get(path) != now:
                self._known[path] = now
                self.panel.send(kind="checkpoint", path=path, status=now[0], metrics=now[1])


@contextlib.contextmanager
def quiet_deaths() -> Iterator[None]:
    """Within the block Ray does not print that a worker died: the panel says it in one line."""
    printed = worker.print_to_stdstream

    @functools.wraps(printed)
    def without_deaths(data: dict[str, Any], *args: Any, **options: Any) -> None:
        if not str(next(iter(data.get("lines", ())), "")).startswith(_DEATH):
            printed(data, *args, **options)

    worker.print_to_stdstream = without_deaths
    try:
        yield
    finally:
        worker.print_to_stdstream = printed


class Interrupts:
    """Lets an interrupt end a trainer's `fit()` within seconds, at any moment. Make one just before it.

    Ray's handler waits for the controller to abort the run. While workers start, the controller doesn't
    listen (ray-project/ray 54181), which takes a minute if something is wrong with a node. Before Ray has
    set its handler, an interrupt can get lost in an import.

    Attributes:
        came: whether there was an interrupt, whatever `fit()` then raises.
        controller: of the run; it lives as long as this refers to it.
        forced: whether the controller didn't listen, and was killed. It leaves its placement group behind.
    """

    def __init__(self, trainer: Any) -> None:
        self.came = self.forced = False
        self.controller: ray.actor.ActorHandle | None = None
        trainer._register_sigint_handler = self._listen
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._note)

    def end_controller(self) -> None:
        """End the controller of a run that failed: a kernel keeps the last traceback, and a frame in it the
        controller's handle, so that it and all that it started would live on."""
        if self.controller is not None:
            with contextlib.suppress(Exception):  # mostly it is dead already
                self.controller.__ray_terminate__.remote()

    def _note(self, *_: Any) -> None:
        self.came = True
        raise KeyboardInterrupt

    def _listen(self, controller: ray.actor.ActorHandle) -> None:
        self.controller = controller

        def abort(*_: Any) -> None:
            self.came = True
            try:
                ray.get(controller.abort.remote(), timeout=_PATIENCE)
            except ray.exceptions.GetTimeoutError:
                self.forced = True
                ray.kill(controller)
            except ray.exceptions.RayError:
                pass  # that is how a controller that has aborted answers
            raise KeyboardInterrupt

        signal.signal(signal.SIGINT, abort)
        if self.came:
            abort()


def first_failure(exceptions: dict[int, Exception]) -> tuple[int, str]:
    """The rank whose failure most likely caused those of the others, and what to say about it.

    A process that dies says nothing, and lets the others fail because they lost their connection to it. The
    text begins with ``rank N`` where no exception of the reader's function tells what happened.
    """
    causes = {rank: getattr(error, "health_check_failure", error) for rank, error in exceptions.items()}
    dead = [rank for rank, cause in causes.items() if isinstance(cause, ray.exceptions.RayActorError)]
    rank = min(dead or causes)
    text = str(causes[rank])
    if dead:
        why = "its node was lost" if "node has died" in text else "killed, or out of memory"
        return rank, f"rank {rank} is gone: {why}"
    if type(causes[rank]).__module__.startswith("ray.train.") and "Traceback" not in text:
        first_line, *_ = text.strip().splitlines() or [type(causes[rank]).__name__]
        return rank, f"rank {rank} failed: {first_line}"  # the lines below say how to wait longer
    return rank, f"{type(causes[rank]).__name__}: {text}"


def _statuses(controller: Any, seconds: float) -> Any:
    mode = CheckpointConsistencyMode.COMMITTED
    return controller.get_all_reported_checkpoints.remote(_NEVER, mode, seconds)


def _statuses_of(found: list[ray.train.ReportedCheckpoint]) -> dict[str, tuple[str, dict[str, Any]]]:
    return {one.checkpoint.path: (STATUSES[one.status.value], dict(one.metrics)) for one in found}


def _last_line(error: BaseException) -> str:
    """What an error says; of one of Ray's, whose text is a traceback of another process, its last line."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    if isinstance(error, ray.exceptions.RayError | ray.train.TrainingFailedError):
        lines = lines[-1:]
    return " ".join(lines)


def _bytes_of(checkpoint: ray.train.Checkpoint) -> int | None:
    """Size of all files of a checkpoint, wherever it is; None if the store does not say."""
    try:
        selector = pyarrow.fs.FileSelector(checkpoint.path, recursive=True)
        return sum(info.size or 0 for info in checkpoint.filesystem.get_file_info(selector))
    except Exception:  # a store's client raises what it likes; that a checkpoint was kept must still be heard
        return None
