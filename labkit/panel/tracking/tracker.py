"""What a training loop calls, in whatever process it runs: steps, metrics, prints become events.

    for batch in tracker.steps(batches, epoch=epoch, epochs=10):
        ...
        tracker.log(loss=loss)

A tracker costs a few microseconds per step: it reads a clock twice, and sends an event at most
`EVENTS_PER_SECOND` times a second; metrics are turned into numbers only then, so a loss on
a GPU is waited for five times a second and not in every step.

An event is a JSON object with ``kind``, ``run``, ``at`` (Unix seconds), ``rank``, ``pid``, ``node``, and what
belongs to its kind (see `labkit.panel.tracking.events`). The idea of a wrapped iterator is that of tqdm.
"""

import contextlib
import json
import os
import reprlib
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, TypeVar

from labkit.errors import RunError
from labkit.settings import NODE_NAME

EVENTS_PER_SECOND = 5


_Batch = TypeVar("_Batch")


class Tracker:
    """Turns the course of one training loop into events.

    Args:
        run: id of the run that the events belong to.
        send: takes each event; must not raise.
    """

    _in_worker = False

    def __init__(self, run: str, send: Callable[[dict[str, Any]], Any]) -> None:
        self._run, self._send = run, send
        self._metrics: dict[str, Any] = {}
        self._left_loop_at: float | None = None

    def emit(self, kind: str, **data: Any) -> None:
        """Send one event."""
        self._send({"kind": kind, "run": self._run, "at": time.time(), **self._where(), **data})

    def _where(self) -> dict[str, Any]:
        """Rank, process and node."""
        node = os.environ.get(NODE_NAME) or socket.gethostname()
        rank = _rank_of_environment()
        if rank is None:
            rank = _rank_of_ray() if self._in_worker else 0
        return {"rank": rank, "pid": os.getpid(), "node": node}

    def steps(
        self,
        batches: Iterable[_Batch],
        *,
        epoch: int = 0,
        epochs: int | None = None,
        total: int | None = None,
    ) -> Iterator[_Batch]:
        """Yield each batch, and report how far this epoch is.

        Args:
            batches: one epoch of batches. Rows are counted from each batch: the length of an array,
                of the first value of a dict or tuple, of the first array in a list of arrays.
            epoch: index of this epoch, from 0.
            epochs: number of epochs of the whole run, if known: then there is an ETA.
            total: steps in this epoch; default: ``len(batches)`` where it has one.

        Raises:
            RunError: `batches` cannot be iterated over.
        """
        if not (hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")):
            raise _refusal(
                "follow the steps of an epoch", "batches", batches, "panel.steps(loader, epoch=epoch)"
            )
        return self._steps(batches, epoch=epoch, epochs=epochs, total=total)

    def _steps(
        self, batches: Iterable[_Batch], *, epoch: int, epochs: int | None, total: int | None
    ) -> Iterator[_Batch]:
        if total is None and isinstance(batches, Sized):
            # A DataLoader always has __len__, and raises in it if its data set has none.
            with contextlib.suppress(TypeError, NotImplementedError):
                total = len(batches)
        between = 0.0 if self._left_loop_at is None else time.perf_counter() - self._left_loop_at
        meter = _Meter(self, epoch=epoch, epochs=epochs, total=total, between=between)
        self.emit("phase", name="loading", epoch=epoch)
        try:
            yield from meter.follow(batches)
        finally:
            self._left_loop_at = time.perf_counter()

    def log(self, **metrics: Any) -> None:
        """Set the metrics of the current step: numbers or 0-d tensors."""
        for name, value in metrics.items():
            # A live loss would keep its whole graph in memory until the next step.
            self._metrics[name] = value.detach() if hasattr(value, "detach") else value

    def report(self, metrics: dict[str, Any], *, epoch: int | None = None) -> None:
        """Report the metrics of an epoch that is done (Ray's `train.report` does this by itself).

        Raises:
            RunError: `metrics` is no dict.
        """
        if not isinstance(metrics, Mapping):
            example = 'panel.report({"loss": 0.25})'
            raise _refusal("report the metrics of an epoch", "metrics", metrics, example)
        self.emit("report", metrics=[_numbers(metrics)], epoch=epoch)

    def checkpoint(
        self, path: str, *, size: int | None = None, metrics: dict[str, Any] | None = None
    ) -> None:
        """Say that a checkpoint of `size` bytes is kept at `path` (Ray Train does this by itself)."""
        if not isinstance(path, str | os.PathLike):
            raise _refusal("show a checkpoint", "path", path, 'panel.checkpoint("runs/epoch-1")')
        self.emit(
            "checkpoint",
            path=os.fspath(path),
            bytes=size,
            status="committed",
            metrics=_numbers(metrics or {}),
        )

    def phase(self, name: str) -> None:
        """Say what is being done: loading, training, evaluating, uploading, …"""
        if not isinstance(name, str):
            raise _refusal("show a phase", "name", name, 'panel.phase("evaluating")')
        self.emit("phase", name=name)

    def working(self) -> contextlib.AbstractContextManager:
        """For the time of a training function; only a `RemoteTracker` has something to do there."""
        return contextlib.nullcontext()

    def current_metrics(self) -> dict[str, float]:
        """The metrics last logged, as numbers."""
        return _numbers(self._metrics)


class _Meter:
    """Counts steps, rows, and seconds of one epoch, waiting for data apart from work."""

    def __init__(
        self, tracker: Tracker, *, epoch: int, epochs: int | None, total: int | None, between: float
    ) -> None:
        self._tracker = tracker
        self._fixed = {"epoch": epoch, "epochs": epochs, "total": total, "between": between}
        self._step = self._rows = 0
        self._waiting = self._first_wait = 0.0
        self._started = time.perf_counter()
        self._sent = 0.0

    def follow(self, batches: Iterable[_Batch]) -> Iterator[_Batch]:
        clock, interval = time.perf_counter, 1 / EVENTS_PER_SECOND
        iterator, end = iter(batches), object()
        before = clock()
        while (batch := next(iterator, end)) is not end:
            got = clock()
            self._waiting += got - before
            if self._step == 0:
                self._first_wait = got - before
                self._report()
            rows = _rows(batch)
            try:
                yield batch
            except GeneratorExit:
                self._report()  # the loop was left by `break`: report how far it came
                raise
            self._step += 1
            self._rows += rows
            before = clock()
            if before - self._sent > interval:
                self._report()
                before = clock()  # a loss that lies on a GPU was waited for, not the data
        self._waiting += clock() - before
        self._report(done=True)

    def _report(self, *, done: bool = False) -> None:
        self._sent = time.perf_counter()
        self._tracker.emit(
            "step",
            **self._fixed,
            step=self._step,
            rows=self._rows,
            seconds=self._sent - self._started,
            waiting=self._waiting,
            first_wait=self._first_wait,
            metrics=self._tracker.current_metrics(),
            done=done,
        )


def _refusal(attempt: str, argument: str, value: Any, example: str) -> RunError:
    fact = f"{argument} is {reprlib.repr(value)}, of type {type(value).__name__}"
    return RunError(attempt, fact, f"for example {example}")


def _rank_of_environment() -> int | None:
    """From the variables that torchrun, Spark, and most trainers of Ray Train set."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        if "RANK" not in os.environ:
            return int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
        return int(os.environ["RANK"])
    return None


def _rank_of_ray() -> int:
    """A trainer of Ray Train without a framework sets no variable; who is its worker has imported it."""
    with contextlib.suppress(Exception):
        return int(sys.modules["ray.train"].get_context().get_world_rank())
    return 0


def _rows(batch: Any) -> int:
    """Number of rows in a batch, whatever form it has."""
    if isinstance(batch, dict):
        return _rows(next(iter(batch.values()), ()))
    if isinstance(batch, (tuple, list)) and batch:
        first = batch[0]
        # A DataLoader gives a list of arrays; a list of anything else is a list of rows.
        nested = isinstance(batch, tuple) and isinstance(first, (list, tuple, dict))
        if nested or getattr(first, "shape", None):
            return _rows(first)
    try:
        return len(batch)
    except Exception:  # a number, a tensor without dimensions; to count is never worth an error
        return 1


def _numbers(metrics: dict[str, Any]) -> dict[str, float]:
    numbers = {}
    for name, value in metrics.items():
        # A string or an object is not for a curve. What it raises is its affair: torch takes RuntimeError.
        with contextlib.suppress(Exception):
            numbers[str(name)] = float(value)
    return numbers
