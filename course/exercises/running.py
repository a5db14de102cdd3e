"""A learner's code, run on an engine by a check: with a limit of seconds, in this process or on the cluster.

    result, reports = run_loop(train_loop, {"epochs": 2})     # in this process
    value = returned(train_loop, {"epochs": 2})               # on two workers of the cluster

Whatever the learner's code raises becomes `Wrong`, and a ``...`` that is still in it `NotAttempted`.
"""

import contextlib
import logging
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from course.exercises.answers import NotAttempted, Wrong, expect_function
from labkit.errors import LabError
from labkit.interrupts import handler_kept
from labkit.settings import Settings

_AGAIN = 5.0  # code that catches the first interrupt gets another one after this many seconds
_folders: list[tempfile.TemporaryDirectory] = []  # of the check that is running


@contextlib.contextmanager
def limited(seconds: float, stuck: str = "") -> Iterator[None]:
    """Interrupt the block after some `seconds`, as Ctrl-C would: engines then stop what they have started.

    That is `Wrong`, with the likely mistake, `stuck`. In other threads, there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    expired = threading.Event()

    def interrupt(*_: Any) -> None:
        expired.set()
        signal.raise_signal(signal.SIGINT)

    with handler_kept():
        # A fit() from before may have left its handler, which would stop a run that has ended.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        before = signal.signal(signal.SIGALRM, interrupt)
        timer = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN)
        try:
            yield
        except BaseException as error:
            if not expired.is_set():
                raise
            error.__traceback__ = None  # its frames would keep what they have started alive
        finally:
            signal.setitimer(signal.ITIMER_REAL, *timer)
            signal.signal(signal.SIGALRM, before)
    if expired.is_set():
        reason = f". Likely: {stuck}" if stuck else ""
        raise Wrong(f"it was still running after {seconds:g} s, so it was stopped{reason}")


def folder_of_check() -> tempfile.TemporaryDirectory:
    """Make a temporary folder in the lab's home, which all machines of a cluster see."""
    home = Settings.from_env().make_home()
    return tempfile.TemporaryDirectory(prefix="check-", dir=home, ignore_cleanup_errors=True)


@contextlib.contextmanager
def folders_removed() -> Iterator[None]:
    """Remove the folders of the runs in this block at its end. Until then a check reads their checkpoints."""
    try:
        yield
    finally:
        while _folders:
            _folders.pop().cleanup()


def run_loop(
    train_loop: Callable[[dict], Any],
    config: dict[str, Any] | None = None,
    *,
    name: str = "train_loop",
    num_workers: int = 0,
    trainer: Callable | None = None,
    store: Any = None,
    max_failures: int = 0,
    remarks: Mapping[str, str] | None = None,
    **run_config: Any,
) -> tuple[Any, list[tuple[dict[str, Any], Any]]]:
    """Run a learner's training loop with Ray Train.

    Args:
        name, remarks: as `learners_errors` takes them.
        num_workers: on the cluster that is connected; with 0 it runs in this process, without a cluster.
        trainer: what makes the trainer; default: TorchTrainer.
        store: the `Store` for the checkpoints; default: a temporary folder in the lab's home.
        run_config: further options of Ray's ``RunConfig``.

    Returns:
        Ray's ``Result``, and (metrics, checkpoint) of the reports: with 0 workers all of them, otherwise
        those with a checkpoint.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig

    if trainer is None:
        from ray.train.torch import TorchTrainer

        trainer = TorchTrainer
    expect_function(train_loop, name)
    _folders.append(folder_of_check())
    folder = Path(_folders[-1].name)
    where: dict[str, Any] = {"storage_path": str(folder)}
    if store is not None:
        where = {
            "storage_path": store.storage_path("checks"),
            "storage_filesystem": store.filesystem,
        }
    failures = FailureConfig(max_failures=max_failures)
    with learners_errors(name, remarks):
        run = trainer(
            train_loop,
            train_loop_config=config or {},
            scaling_config=ScalingConfig(num_workers=num_workers),
            run_config=RunConfig(failure_config=failures, **where, **run_config),
        )
        if not num_workers:
            return _fit_here(run, train_loop, folder)
        result = run.fit()
        return result, [(metrics, checkpoint) for checkpoint, metrics in result.best_checkpoints or ()]


def returned(
    train_loop: Callable[[dict], Any],
    config: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Return what a loop returns on two workers; the options go to `run_loop`."""
    return run_loop(train_loop, config, num_workers=2, **options)[0].return_value


def _fit_here(run: Any, train_loop: Callable, folder: Path) -> tuple[Any, list]:
    """Return Ray's result, and the reports, with copied checkpoints: a loop often reports a temporary one."""
    import ray.train

    from labkit.worker.calls import reports_to

    report = ray.train.report
    reports: list[tuple[dict[str, Any], Any]] = []

    def keep(metrics: Any, checkpoint: Any = None, *args: Any, **options: Any) -> None:
        if checkpoint is not None:
            path = checkpoint.to_directory(folder / f"checkpoint-{len(reports)}")
            checkpoint = ray.train.Checkpoint.from_directory(path)
        reports.append((dict(metrics), checkpoint))
        report(metrics, checkpoint, *args, **options)

    with reports_to(train_loop, keep):
        return run.fit(), reports


def noting_rows(read: list[int], *tensors: Any) -> Any:
    """Make a data set of these tensors that appends the number of each row that is read to `read`."""
    from torch.utils.data import TensorDataset

    class Noting(TensorDataset):
        def __getitem__(self, row: int) -> Any:
            read.append(row)
            return super().__getitem__(row)

    return Noting(*tensors)


@contextlib.contextmanager
def _logs_held_back() -> Iterator[None]:
    """Drop log records up to warnings in this block, of all loggers."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def learners_errors(name: str, remarks: Mapping[str, str] | None = None) -> Iterator[None]:
    """Let engines run quietly in this block; what the learner's code, `name`, raises becomes a verdict.

    Args:
        remarks: what to say, by a part of what is raised, in place of it: a likely mistake.
    """
    try:
        with _logs_held_back():
            yield
    except (NotAttempted, Wrong):
        raise
    except Exception as error:
        text = f": {error.fact}. Fix: {error.fix}" if isinstance(error, LabError) else _raised(error)
        if "ellipsis" in text.lower():
            raise NotAttempted from None
        for part, remark in (remarks or {}).items():
            if part in text:
                raise Wrong(remark) from None
        raise Wrong(name + text) from None


def _raised(error: BaseException) -> str:
    """Return the learner's own exception in one line, without what Ray Train and Ray Data wrap it in."""
    failures = getattr(error, "worker_failures", None)
    if failures:
        from labkit.train.callbacks import causing_rank

        return _raised(failures[causing_rank(failures)])
    inside, _, advice = str(error).rpartition("The above exception was the direct cause")
    if inside and "UserCodeException" in advice:  # Ray Data's text is a traceback, followed by advice
        return f" raised {last_line(inside)}"
    cause = getattr(error, "cause", None)  # of a task
    if isinstance(cause, Exception):
        return _raised(cause)
    return f" raised {type(error).__name__}: {' '.join(str(error).split())}"


def last_line(text: object) -> str:
    """Return the last line of a text: of a traceback, that is what was raised."""
    return str(text).strip().rpartition("\n")[2]
