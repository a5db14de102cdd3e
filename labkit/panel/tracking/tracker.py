"""What a training loop calls, in whatever process it runs: steps, metrics, prints become events.

    for batch in tracker.steps(batches, epoch=epoch, epochs=10):
        ...
        tracker.log(loss=loss)

A tracker costs a few microseconds per step: it reads a clock twice, and sends an event at most
`EVENTS_PER_SECOND` times a second; metrics are turned into numbers only then, so a loss on
a GPU is waited for five times a second and not in every step.

The idea of a wrapped iterator comes from tqdm.

Events are JSON objects. All have ``kind`` and ``run``, and those of a worker ``at`` (Unix seconds), ``rank``,
``pid`` and ``node``. Their kinds, and what each carries:

========== =====================================================================================
worker     a worker process exists; ``workers``: how many its group has, if known
phase      ``name`` (loading, training, evaluating, uploading, …)
step       ``epoch``, ``epochs``, ``step``, ``total``, ``rows``, ``seconds``, ``waiting``, ``first_wait``,
           ``between``, ``metrics``, ``done``: counts within this epoch and worker; ``memory``,
           ``gpu_memory`` (bytes) and ``gpu_percent`` of its process, as far as known. ``counted``: the
           epochs were counted from outside, from this process's first on; then ``made`` is the steps of
           all of them, and ``fed`` whether there is a loader
saved      ``epoch`` and ``step``: epochs and steps of this process when it gave a checkpoint to Ray
empty      this worker's loader had no batch
report     ``metrics``; ``epoch`` if known; ends an epoch
checkpoint ``path``, ``bytes``, ``status`` (committed, pending, validated, failed, timed out, deleted),
           ``metrics``
validation ``path`` of the checkpoint, ``done``, ``seconds`` that it took, ``text`` of what it raised: one
           that runs in parallel to the training
print      ``text``: a line that the training function printed
failure    ``text``: the worker's traceback; the engine may start the workers again
========== =====================================================================================
"""

import contextlib
import functools
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, TypeVar

import psutil

from labkit.settings import NODE_NAME

EVENTS_PER_SECOND = 5

_Batch = TypeVar("_Batch")


class Tracker:
    """Turns the course of one training loop into events.

    Args:
        run: id of the run that the events belong to.
        send: takes each event; must not raise.
    """

    in_worker = False

    def __init__(self, run: str, send: Callable[[dict[str, Any]], Any]) -> None:
        self._run, self._send = run, send
        self._metrics: dict[str, Any] = {}
        self._left_loop_at: float | None = None

    def emit(self, kind: str, **data: Any) -> None:
        """Send one event, with the rank, the process and the node that it comes from."""
        node = os.environ.get(NODE_NAME) or socket.gethostname()
        where = {"rank": self.rank(), "pid": os.getpid(), "node": node}
        self._send({"kind": kind, "run": self._run, "at": time.time(), **where, **data})

    def rank(self) -> int:
        """The rank of this process in its group; 0 if it is in none."""
        rank = _rank_of_environment()
        if rank is None and self.in_worker:
            rank = _of_ray("world_rank")
        return rank or 0

    def steps(
        self,
        batches: Iterable[_Batch],
        *,
        epoch: int = 0,
        epochs: int | None = None,
        total: int | None = None,
        start: int = 0,
    ) -> Iterator[_Batch]:
        """Yield each batch, and report how far this epoch is.

        Args:
            batches: one epoch of batches. Rows are counted from each batch: the length of an array,
                of the first value of a dict or tuple, of the first array in a list of arrays.
            epoch: index of this epoch, from 0.
            epochs: number of epochs of the whole run, if known: then there is an ETA.
            total: steps in this epoch; default: ``len(batches)`` where it has one.
            start: steps of this epoch that were made before, by a run that was resumed in its middle.
        """
        from labkit.panel.tracking import hooks

        hooks.leave()
        if total is None and isinstance(batches, Sized):
            # A DataLoader always has __len__, and raises in it if its data set has none.
            with contextlib.suppress(TypeError, NotImplementedError):
                total = start + len(batches)
        clock, interval = time.perf_counter, 1 / EVENTS_PER_SECOND
        between = 0.0 if self._left_loop_at is None else clock() - self._left_loop_at
        self.emit("phase", name="loading", epoch=epoch)
        of_all = {"epoch": epoch, "epochs": epochs, "total": total, "between": between}
        step, rows, waiting, first_wait = start, 0, 0.0, 0.0
        began = before = sent = clock()
        iterator, end = iter(batches), object()  # a DataLoader starts its processes here: it is waiting, too

        def report(done: bool = False) -> float:
            counts = {"step": step, "rows": rows, "waiting": waiting, "first_wait": first_wait}
            counts["seconds"] = clock() - began
            self.emit("step", **of_all, **counts, metrics=numbers(self._metrics), done=done, **memory())
            return clock()

        try:
            while (batch := next(iterator, end)) is not end:
                waiting += clock() - before
                if step == start:
                    first_wait = waiting
                    sent = report()
                size = rows_of(batch)
                try:
                    yield batch
                except GeneratorExit:
                    report()  # the loop was left by `break`: report how far it came
                    raise
                step += 1
                rows += size
                before = clock()
                if before - sent > interval:
                    sent = before = report()  # a loss on a GPU was waited for, not the data
            waiting += clock() - before
            if step == 0:
                self.emit("empty")
            report(done=True)
        finally:
            self._left_loop_at = clock()

    def log(self, **metrics: Any) -> None:
        """Set the metrics of the current step: numbers or 0-d tensors."""
        for name, value in metrics.items():
            # A live loss would keep its whole graph in memory until the next step.
            self._metrics[name] = value.detach() if hasattr(value, "detach") else value

    def report(self, metrics: dict[str, Any], *, epoch: int | None = None) -> None:
        """Report the metrics of an epoch that is done (Ray's `train.report` does this by itself)."""
        self.emit("report", metrics=numbers(metrics), epoch=epoch)

    def phase(self, name: str) -> None:
        """Say what is being done: loading, training, evaluating, uploading, …"""
        self.emit("phase", name=name)

    def working(self) -> contextlib.AbstractContextManager:
        """For the time of a training function; only a `RemoteTracker` has something to do there."""
        return contextlib.nullcontext()


def _rank_of_environment() -> int | None:
    """From the variables that torchrun, Spark, and most trainers of Ray Train set."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        if "RANK" in os.environ:
            return int(os.environ["RANK"])
        return int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
    return None


def group_size() -> int | None:
    """The number of workers in this process's group: that of an elastic training changes."""
    with contextlib.suppress(KeyError, ValueError):
        return int(os.environ["WORLD_SIZE"])
    return _of_ray("world_size")


def _of_ray(what: str) -> int | None:
    """A trainer of Ray Train without a framework sets no variable; its worker has imported `ray.train`."""
    with contextlib.suppress(Exception):
        return int(getattr(sys.modules["ray.train"].get_context(), f"get_{what}")())
    return None


@functools.cache
def _process(pid: int) -> psutil.Process:
    return psutil.Process(pid)  # which reads when it was started: a good part of an event


def memory() -> dict[str, Any]:
    """What this process uses: bytes of memory, and where PyTorch has a GPU, bytes and percent of that."""
    found: dict[str, Any] = {"memory": _process(os.getpid()).memory_info().rss}
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    with contextlib.suppress(Exception):  # to tell how busy a GPU is, PyTorch needs the package nvidia-ml-py
        if cuda is not None and cuda.is_initialized():
            found["gpu_memory"] = cuda.memory_reserved()
            found["gpu_percent"] = cuda.utilization()
    return found


def rows_of(batch: Any) -> int:
    """Number of rows in a batch, whatever form it has."""
    # A DataLoader gives a list of arrays; a list of anything else is a list of rows. A tuple has parts:
    # (inputs, targets), or (number, batch) from `enumerate`.
    if isinstance(batch, (tuple, list)) and batch:
        nested = (Mapping, list, tuple) if isinstance(batch, tuple) else ()
        first = _first_part(batch, nested)
        if first is not None:
            return rows_of(first)
    elif not hasattr(batch, "shape") and isinstance(
        batch, Mapping
    ):  # not only a dict: a BatchEncoding is none
        values = list(batch.values())
        return rows_of(_first_part(values, (Sized,)) if values else ())
    try:
        return len(batch)
    except Exception:  # a number, a tensor without dimensions; to count is never worth an error
        return 1


def _first_part(parts: Iterable[Any], containers: tuple[type, ...]) -> Any:
    """The first that has rows: an array or a container; None if there is none."""
    for part in parts:
        if getattr(part, "shape", None) or (isinstance(part, containers) and not isinstance(part, str)):
            return part
    return None


def numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics that are numbers, or can be made one."""
    found = {}
    for name, value in metrics.items():
        # A string or an object is not for a curve. What it raises is its affair: torch takes RuntimeError.
        with contextlib.suppress(Exception):
            found[str(name)] = float(value)
    return found
