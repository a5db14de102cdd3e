"""Ray Train's side of a run: what reports to the panel from other processes, its end, and its checkpoints.

Ray Train calls a `UserCallback` in the run's controller for reports and failures, and for nothing else.
`ReportCallback` sends the failures, and the checkpoints of reports. `ReportingValidator` wraps the validation
function and reports when it began and how it ended. Pickled into those processes, the tracker that each has
becomes a `RemoteTracker`.

It uses names that Ray Train does not document; `tests/test_private_names.py` lists them, with their files.
"""

import contextlib
import functools
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow.fs
import ray
import ray.train

from labkit.errors import BadInput
from labkit.storage.folders import folder_of, resolve
from labkit.worker.events import Checkpoint, Failure, Validation
from labkit.worker.sendable import message_of, raise_sendable

try:
    from ray.train import ReportedCheckpoint, ReportedCheckpointStatus
except ImportError as error:
    value = os.environ.get("RAY_TRAIN_V2_ENABLED", "not set")
    raise BadInput(
        "follow runs of Ray Train",
        f"RAY_TRAIN_V2_ENABLED is {value!r}, so this process has Ray Train's first version",
        "unset RAY_TRAIN_V2_ENABLED where it is set, or os.environ.pop('RAY_TRAIN_V2_ENABLED', None) in the "
        "first cell, and restart the kernel",
    ) from error

Numbered = list[tuple[int, ReportedCheckpoint]]  # with the number of its report, from 0

_MAX_TEXT = 10_000  # characters of a traceback that are sent
_MAX_REASON = 500  # characters of a validation's error
_PATIENCE = 3.0  # seconds that a controller has to abort its run
_GONE = (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError)
# What a rank raises because another one has failed: from Gloo, NCCL, torch's store, TensorFlow and Ray Train.
_FOLLOWS = re.compile(
    "(closed|reset) by peer|Broken pipe|Socket closed|likely closed|remote process exited|ncclRemoteError"
    "|Timed out waiting|Collective ops is aborted|barrier timed out|CollectiveTimeoutError"
)
_SNIPPET = re.compile(r"(?m)^\[Rank ([\d,]+) Error Snippet\]:$")  # Ray's heading of the text of some ranks
_LOW_IS_GOOD = re.compile(r"(^|[^a-z])(loss|error|mse|rmse|mae|perplexity)$")  # at the end of a metric's name
_STATUSES = {  # Ray's words, and the panel's
    "COMMITTED": "committed",
    "PENDING_VALIDATION": "pending",
    "VALIDATED": "validated",
    "VALIDATION_FAILED": "failed",
    "VALIDATION_TIMEOUT": "timed out",
}
_LISTS = {  # the list of checkpoints in the store, for each status but the first
    "PENDING_VALIDATION": "pending_training_results",
    "VALIDATED": "validated_checkpoint_dir_names",
    "VALIDATION_FAILED": "failed_validation_checkpoint_dir_names",
    "VALIDATION_TIMEOUT": "timed_out_validation_checkpoint_dir_names",
}


# -- in other processes -----------------------------------------------------------------------------


class ReportCallback(ray.train.UserCallback):
    """Sends what the controller of a Ray Train run hears to the panel that made it."""

    def __init__(self, tracker: Any) -> None:
        self.tracker = tracker

    def after_report(
        self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: ray.train.Checkpoint | None
    ) -> None:
        if checkpoint is None:
            return
        kept = metrics[0] if metrics else {}  # Ray keeps rank 0's; its worker has sent them
        event = Checkpoint(checkpoint.path, "committed", kept, _bytes_of(checkpoint))
        self.tracker.send(event)

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        rank, text, died = first_failure(worker_exceptions)
        self.tracker.send(Failure(text[:_MAX_TEXT], died[:_MAX_TEXT], rank=rank))


class ReportingValidator:
    """A validation function that reports to a panel when it begins and how it ends."""

    def __init__(self, fn: Callable[..., dict], tracker: Any) -> None:
        self.fn = fn
        self.tracker = tracker
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, checkpoint: ray.train.Checkpoint, **kwargs: Any) -> dict[str, Any]:
        self.tracker.send(Validation(checkpoint.path, process=os.getpid()))
        began = time.perf_counter()
        text = ""
        try:
            metrics = self.fn(checkpoint, **kwargs)
            if not isinstance(metrics, dict):  # Ray refuses it, after us
                text = f"it returned {type(metrics).__name__}, and a dict of metrics is wanted"
            return metrics
        except BaseException as error:
            lines = message_of(error).strip().splitlines()
            if isinstance(error, ray.exceptions.RayError | ray.train.TrainingFailedError):
                lines = lines[-1:]  # its text is a traceback of another process
            reason = " ".join(lines)
            text = f"{type(error).__name__}: {reason}"[:_MAX_REASON]
            # Ray ends the run if it can't unpickle the exception, or if the process exits.
            raise_sendable(error, wrap=isinstance(error, SystemExit))
        finally:
            seconds = time.perf_counter() - began
            self.tracker.send(Validation(checkpoint.path, seconds, text))


class FirstFailure(NamedTuple):
    """The failure of a run that most likely caused the others.

    Attributes:
        text: what to say about it. It begins with ``rank N`` where no exception of the loop tells more.
        died: Ray's message, if the rank's process is gone; the kernel knows more about that.
    """

    rank: int
    text: str
    died: str = ""


def first_failure(exceptions: dict[int, Any]) -> FirstFailure:
    """Return the failure that most likely caused those of the other ranks.

    A process that dies says nothing, and lets the others fail because they lost their connection to it.
    """
    rank = causing_rank(exceptions)
    error = exceptions[rank]
    cause = getattr(error, "health_check_failure", error)
    text = str(cause)
    if _is_gone(error):
        return FirstFailure(rank, f"rank {rank} is gone", text)
    cls = type(cause)
    if cls.__module__.startswith("ray.train.") and "Traceback" not in text:
        lines = text.strip().splitlines()  # below the first is how to wait longer
        return FirstFailure(rank, f"rank {rank} failed: {lines[0] if lines else cls.__name__}")
    return FirstFailure(rank, f"{cls.__name__}: {text}")


def causing_rank(exceptions: dict[int, Any]) -> int:
    """Return the lowest rank that is gone, else the lowest whose failure doesn't follow from another one."""
    gone = [rank for rank, error in exceptions.items() if _is_gone(error)]
    causes = [rank for rank, error in exceptions.items() if not follows(error)]
    return min(gone or causes or exceptions)


def text_of_cause(error: ray.train.WorkerGroupError) -> str:
    """Return what Ray's error says of the rank whose failure caused the others: its traceback."""
    message = str(error)
    rank = str(causing_rank(error.worker_failures))
    _, *parts = _SNIPPET.split(message)
    for ranks, text in zip(parts[::2], parts[1::2], strict=True):
        if rank in ranks.split(","):
            return text
    return message


def follows(error: Exception) -> bool:
    """Return whether a rank failed because it waited for another one, which may have failed first."""
    text = f"{type(error).__name__}: {message_of(error)}"
    return _FOLLOWS.search(text) is not None


def _is_gone(error: Exception) -> bool:
    """Return whether a rank's process is gone. An actor that the loop itself uses may die as well."""
    return isinstance(getattr(error, "health_check_failure", None), _GONE)


def _bytes_of(checkpoint: ray.train.Checkpoint) -> int | None:
    """Return the size of all files of a checkpoint, wherever it is; None if the store does not tell."""
    with contextlib.suppress(Exception):  # a store's client raises what it likes
        selector = pyarrow.fs.FileSelector(checkpoint.path, recursive=True)
        files = checkpoint.filesystem.get_file_info(selector)
        return sum(file.size or 0 for file in files)
    return None


# -- the end of a run -------------------------------------------------------------------------------


class Interrupts:
    """Lets an interrupt end a trainer's `fit()` within seconds, at any moment. Make one just before it.

    Ray's handler waits for the controller to abort the run. While workers start, the controller doesn't
    listen (ray-project/ray 54181), which takes a minute if something is wrong with a node. Before Ray has
    set its handler, an interrupt can get lost in an import.
    """

    def __init__(self, trainer: Any) -> None:
        self.came = False  # whether there was an interrupt, whatever `fit()` then raises
        self.forced = False  # whether the controller didn't listen, and was killed
        self.controller: ray.actor.ActorHandle | None = None  # of the run; it lives as long as this handle
        trainer._register_sigint_handler = self._listen
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._note)

    def end_controller(self) -> None:
        """End the controller of a run that failed, with all that it started.

        A kernel keeps the last traceback, in which a frame has the controller's handle.
        """
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


# -- checkpoints ------------------------------------------------------------------------------------


def reported_checkpoints(
    path: str, filesystem: pyarrow.fs.FileSystem | None = None
) -> list[ReportedCheckpoint]:
    """Return the checkpoints of a run with their metrics and status, in the order of their reports.

    During a run ``ray.train.get_all_reported_checkpoints`` gives workers the same. A `Result` has no
    statuses, so afterwards, or when a run was killed, they are read from Ray's list in the store.

    Args:
        path: of the run: ``result.path``, or storage_path/name.
        filesystem: ``result.filesystem``; by default the one that the path names.

    Raises:
        BadInput: there is no such run, or its list is not Ray's.
    """
    try:
        numbered = _numbered(*resolve(path, filesystem))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"read the checkpoints of {path}",
            f"there is no list of them as Ray 2.60 writes it ({type(error).__name__}: {error})",
            "give result.path, or storage_path/name of a run that reported a checkpoint",
        ) from error
    return [checkpoint for _, checkpoint in numbered]


def listed(config: ray.train.RunConfig) -> Numbered | None:
    """Return the checkpoints of a run, with the numbers of their reports from 0; None without a list."""
    try:
        return _numbered(*folder_of(config))
    except Exception:  # if something is wrong with the store, Ray's own error says it better
        return None


def statuses(numbered: Iterable[tuple[int, ReportedCheckpoint]]) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the status in the panel's words and the metrics, by path."""
    by_path = {}
    for _, checkpoint in numbered:
        status = _STATUSES[checkpoint.status.value]
        by_path[checkpoint.checkpoint.path] = (status, dict(checkpoint.metrics))
    return by_path


def _numbered(files: pyarrow.fs.FileSystem, folder: str) -> Numbered:
    """Return the checkpoints in a run's folder with the numbers of their reports."""
    with files.open_input_stream(f"{folder}/checkpoint_manager_snapshot.json") as file:
        snapshot = json.loads(file.read())
    by_name = _statuses_in(snapshot)
    numbered = []
    # By the number of their report; Ray keeps them by their score.
    results = zip(snapshot["checkpoint_report_indices"], snapshot["checkpoint_results"], strict=True)
    for number, result in sorted(results, key=itemgetter(0)):
        name = result["checkpoint_dir_name"]
        checkpoint = ray.train.Checkpoint(f"{folder}/{name}", files)
        status = ReportedCheckpointStatus[by_name.get(name, "COMMITTED")]
        numbered.append((number, ReportedCheckpoint(checkpoint, result["metrics"], status)))
    return numbered


def _statuses_in(snapshot: dict[str, Any]) -> dict[str, str]:
    """Return the statuses in Ray's list of a run's checkpoints, by the name of a checkpoint's folder."""
    by_name = {}
    for status, key in _LISTS.items():
        for entry in snapshot[key]:
            name = entry["checkpoint_dir_name"] if isinstance(entry, dict) else entry
            by_name[name] = status
    return by_name


def wrong_order(config: ray.train.CheckpointConfig) -> str:
    """Return a warning if the checkpoints that `config` keeps are probably the worst, else "".

    Ray ranks them by `checkpoint_score_attribute`, by default the highest first, also where it is an error.
    """
    name = config.checkpoint_score_attribute or ""
    lower = name.lower()
    low_is_good = _LOW_IS_GOOD.search(lower) and "neg" not in lower
    if not low_is_good or config.checkpoint_score_order == "min":
        return ""
    kept = f"keeps the {config.num_to_keep}" if config.num_to_keep else "ranks first the"
    return (
        f"Ray {kept} checkpoints with the highest {name}, because checkpoint_score_order is 'max': "
        'CheckpointConfig(..., checkpoint_score_order="min") keeps the best'
    )


def unranked(config: ray.train.CheckpointConfig, reported: Collection[str]) -> str:
    """Return a sentence if no checkpoint came with the metric that ranks them, else ""."""
    name = config.checkpoint_score_attribute
    if name is None or "/" in name or not reported or name in reported:  # "a/b" is b of a dictionary a
        return ""
    names = ", ".join(sorted(reported)[:8])
    return f"the checkpoints aren't ranked: none has checkpoint_score_attribute={name!r} (they have {names})"
