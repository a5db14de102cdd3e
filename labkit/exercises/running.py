"""A learner's code, run on the engine by a check: with a limit of seconds, in this process or on the cluster.

    def _everyone_reports(train_loop):
        result, reports = run_loop(train_loop, {"epochs": 2})                  # in this process
        result, reports = run_loop(train_loop, {"epochs": 2}, num_workers=2)   # on the cluster

Whatever the learner's code raises becomes `Wrong`, and a ``...`` that is still in it `NotAttempted`. Nothing
here asserts how long something took.
"""

import contextlib
import logging
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from labkit.exercises.answers import NotAttempted, Wrong, expect_function

if TYPE_CHECKING:
    from ray.data import Dataset
    from ray.train import Checkpoint, Result

LIMIT = 10.0  # seconds, for a check that does not name another
_folders: list[tempfile.TemporaryDirectory] = []  # removed at the end of this process
_AGAIN = 5.0  # code that catches the first interrupt gets another one after so much time


@contextlib.contextmanager
def limited(seconds: float, stuck: str = "") -> Iterator[None]:
    """Interrupt the block after so many `seconds`, as Ctrl-C would: engines then stop what they have started.

    Only a main thread can be interrupted; in another one there is no limit.

    Raises:
        Wrong: the block was interrupted; `stuck` says what the likely mistake is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    expired = False

    def expire(*_: Any) -> None:
        nonlocal expired
        expired = True
        signal.raise_signal(signal.SIGINT)

    # A fit() from before may have left its handler, which would stop a run that has ended.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    alarm, began = signal.signal(signal.SIGALRM, expire), time.monotonic()
    left, again = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
    try:
        yield
    except BaseException as error:
        if not expired:
            raise
        error.__traceback__ = None  # its frames would keep what they have started alive
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm)
        signal.signal(signal.SIGINT, interrupt)
        if left:  # a timer of the caller, such as that of a test
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), 0.001), again)
    if expired:
        reason = f". Likely: {stuck}" if stuck else ""
        raise Wrong(f"it was still running after {seconds:g} s, so it was stopped{reason}")


def run_loop(
    train_loop: Callable[[dict], Any],
    config: dict[str, Any] | None = None,
    *,
    num_workers: int = 0,
    datasets: Mapping[str, "Dataset"] | None = None,
    framework: str = "torch",
    name: str = "train_loop",
    max_failures: int = 0,
    validate: Callable | None = None,
    **run_config: Any,
) -> tuple["Result", list[tuple[dict[str, Any], "Checkpoint | None"]]]:
    """Run a learner's training loop with Ray Train.

    With `num_workers` 0 it runs in this process, without a cluster, and ``result.checkpoint`` can be read
    even if the loop reported a temporary folder. Otherwise it runs on the cluster that is connected.

    Args:
        framework: "torch" or "tensorflow": which trainer.
        name: of the loop, as in the lesson.
        max_failures: how often Ray starts the loop again after it has failed.
        validate: what Ray calls with a checkpoint whose report asks for a validation.
        run_config: further options of Ray's ``RunConfig``; the results go to a temporary folder if there is
            no ``storage_path``.

    Returns:
        Ray's result, and (metrics, checkpoint) of the reports: with 0 workers all of them, otherwise those
        with a checkpoint.

    Raises:
        NotAttempted: a ``...`` is still in the loop.
        Wrong: the loop is not a function, or it raises.
    """
    import ray.train

    expect_function(train_loop, name)
    _folders.append(tempfile.TemporaryDirectory(prefix="labkit-check-", ignore_cleanup_errors=True))
    folder, reports, report = Path(_folders[-1].name), [], ray.train.report

    def kept(metrics: Any, checkpoint: Any = None, *args: Any, **options: Any) -> None:
        if checkpoint is not None:  # its folder is often a temporary one
            path = checkpoint.to_directory(folder / f"checkpoint-{len(reports)}")
            checkpoint = ray.train.Checkpoint.from_directory(path)
        reports.append((dict(metrics), checkpoint))
        report(metrics, checkpoint, *args, **options)

    run_config.setdefault("storage_path", str(folder))
    run_config.setdefault("failure_config", ray.train.FailureConfig(max_failures=max_failures))
    options: dict[str, Any] = {}
    if validate is not None:
        limit = ray.train.ValidationTaskConfig(timeout_s=30)
        options["validation_config"] = ray.train.ValidationConfig(fn=validate, task_config=limit)
    with _learners_errors(name):
        trainer = _trainer(framework)(
            train_loop,
            train_loop_config={} if config is None else config,
            scaling_config=ray.train.ScalingConfig(num_workers=num_workers),
            run_config=ray.train.RunConfig(**run_config),
            datasets=dict(datasets or {}),
            **options,
        )
        if num_workers:
            result = trainer.fit()
            return result, [(metrics, checkpoint) for checkpoint, metrics in result.best_checkpoints or ()]
        ray.train.report = kept
        try:
            return trainer.fit(), reports
        finally:
            ray.train.report = report


def mapped(function: Any, rows: Sequence[Mapping[str, Any]], **options: Any) -> list[dict[str, Any]]:
    """Send `rows` through ``map_batches(function, **options)`` on the cluster, and return the rows it yields.

    Raises:
        NotAttempted: the function returns ``...``.
        Wrong: it raises, or what it returns is no batch.
    """
    import ray.data

    with _learners_errors(getattr(function, "__name__", "your function")):
        return ray.data.from_items(list(map(dict, rows))).map_batches(function, **options).take_all()


def in_a_task(function: Callable, *args: Any, name: str) -> Any:
    """Send the learner's `function` to a process of the cluster that is connected, and return its result.

    Raises:
        Wrong: it raises, or it takes more than a megabyte along.
    """
    import ray
    from ray import cloudpickle

    expect_function(function, name)
    size = len(cloudpickle.dumps(function))
    if size > 1e6:
        raise Wrong(f"pickled, {name} has {size / 1e6:.1f} MB: it takes data of this notebook along")
    with _learners_errors(name):
        return ray.get(ray.remote(num_cpus=0)(function).remote(*args))


@contextlib.contextmanager
def _learners_errors(name: str) -> Iterator[None]:
    """Engines run quietly in this block, and what the learner's code raises becomes a verdict."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    except (NotAttempted, Wrong):
        raise
    except Exception as error:
        text = _reason(error)
        if "ellipsis" in text.lower():
            raise NotAttempted from None
        raise Wrong(f"{name} raised {text}") from None
    finally:
        logging.disable(before)


def _reason(error: BaseException) -> str:
    """The learner's own exception, in one line, out of those of Ray Train and Ray Data."""
    failures = getattr(error, "worker_failures", None)
    if failures:
        return _reason(next(iter(failures.values())))
    inside, found, advice = str(error).rpartition("The above exception was the direct cause")
    if found and "UserCodeException" in advice:  # Ray Data's text is a traceback, followed by advice
        return inside.strip().splitlines()[-1]
    if isinstance(cause := getattr(error, "cause", None), Exception):  # of a task
        return _reason(cause)
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _trainer(framework: str) -> type:
    if framework == "tensorflow":  # never both in one process
        from ray.train.tensorflow import TensorflowTrainer as Trainer
    else:
        from ray.train.torch import TorchTrainer as Trainer
    return Trainer
