"""What happened in a run: events go in, the state that reporters draw comes out. No drawing, no engine.

Events are JSON objects (see `labkit.tracking`). All have ``kind``, ``run``, ``at`` (Unix seconds), ``rank``,
``pid`` and ``node``; their kinds, and what each carries:

========== =====================================================================================
worker     a worker process exists
phase      ``name`` (loading, training, evaluating, uploading, …)
step       ``epoch``, ``epochs``, ``step``, ``total``, ``rows``, ``seconds``, ``waiting``, ``first_wait``,
           ``between``, ``metrics``, ``done``: counts within this epoch and worker
report     ``metrics``: one dict per rank; ``epoch`` if known; ends an epoch
checkpoint ``path``, ``bytes``, ``status`` (committed, pending, validated, failed, timed out), ``metrics``
print      ``text``: a line that the training function printed
failure    ``text``: the worker's traceback; the engine may start the workers again
========== =====================================================================================
"""

import contextlib
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CheckpointState", "Failure", "Phase", "RunState", "WorkerState"]

_PRINTS_KEPT = 200  # lines; a loop that prints each step must not fill the kernel
_POINTS_KEPT = 240  # of the live curve: about one per pixel of the figure


@dataclass
class Phase:
    """A stretch of time with a name; `ended` is None while it lasts."""

    name: str
    started: float
    ended: float | None = None

    def seconds(self, now: float) -> float:
        return (self.ended or now) - self.started


@dataclass
class WorkerState:
    """How far one worker is: counts of its current epoch, and totals of those before."""

    rank: int
    node: str = ""
    pid: int = 0
    epoch: int = 0
    step: int = 0
    total: int | None = None
    rows: int = 0
    seconds: float = 0.0
    waiting: float = 0.0
    rate: float = 0.0  # rows/s since the event before
    totals: dict[str, float] = field(
        default_factory=lambda: {"seconds": 0.0, "waiting": 0.0, "loading": 0.0, "between": 0.0, "rows": 0}
    )


@dataclass
class CheckpointState:
    """A checkpoint and what is known of it."""

    path: str
    label: str
    bytes: int | None = None
    status: str = "committed"
    metrics: dict[str, Any] = field(default_factory=dict)


@dataclass
class Failure:
    """A worker's exception: `text` is its traceback, already short."""

    rank: int
    text: str
    epoch: int | None = None


class RunState:
    """All that is known of one run.

    Attributes:
        status: ``ready``, ``running``, ``finished``, ``failed`` or ``stopped``.
        phases: the phases so far, in order; the last one may still last.
        workers: by rank.
        history: one dict per report: ``epoch`` (from 0) and rank 0's metrics.
        curve: (epochs done, metrics) of rank 0, thinned to a few hundred points.
        epoch_seconds: duration of each epoch of rank 0, in seconds.
    """

    def __init__(
        self,
        name: str,
        *,
        engine: str = "one process",
        world_size: int = 1,
        epochs: int | None = None,
        dataset: str | None = None,
        rows: int | None = None,
    ) -> None:
        self.name, self.engine, self.world_size = name, engine, world_size
        self.epochs, self.dataset, self.rows = epochs, dataset, rows
        self.status = "ready"
        self.started_at = self.ended_at = self.first_step_at = 0.0
        self.phases: list[Phase] = []
        self.workers: dict[int, WorkerState] = {}
        self.history: list[dict[str, Any]] = []
        self.curve: list[tuple[float, dict[str, float]]] = []
        self.epoch_seconds: list[float] = []
        self.checkpoints: list[CheckpointState] = []
        self.failures: list[Failure] = []
        self.restarts = 0
        self.prints: deque[str] = deque(maxlen=_PRINTS_KEPT)
        self.printed = 0
        self.version = 0  # grows with each event: a reporter draws only what is new

    # -- what happens -------------------------------------------------------------------------------

    def start(self, phase: str, now: float | None = None) -> None:
        """The run begins with `phase`."""
        self.status, self.started_at = "running", now or time.time()
        self._enter(phase, self.started_at)

    def end(self, status: str, now: float | None = None) -> None:
        """The run is over."""
        self.status, self.ended_at = status, now or time.time()
        if self.phases and self.phases[-1].ended is None:
            self.phases[-1].ended = self.ended_at
        self.version += 1

    def apply(self, event: dict[str, Any]) -> None:
        """Take one event in. Kinds that are not known are passed over: a newer worker may send them."""
        handler = getattr(self, f"_on_{event.get('kind')}", None)
        if handler is not None:
            # An event without what its kind needs is not one of ours; a panel must survive it.
            with contextlib.suppress(KeyError, TypeError, ValueError):
                handler(event)
            self.version += 1

    # -- what can be read off it --------------------------------------------------------------------

    @property
    def phase(self) -> str:
        return self.phases[-1].name if self.phases else ""

    @property
    def leader(self) -> WorkerState | None:
        """The worker with the lowest rank: the one whose epoch and step stand for all."""
        return self.workers[min(self.workers)] if self.workers else None

    def elapsed(self, now: float | None = None) -> float:
        """Seconds since the start."""
        if not self.started_at:
            return 0.0
        return (self.ended_at or now or time.time()) - self.started_at

    def fraction(self) -> float | None:
        """Share of all steps that are done, 0..1, where epochs and steps per epoch are known."""
        worker = self.leader
        if worker is None or not self.epochs:
            return None
        within = min(worker.step / worker.total, 1.0) if worker.total else 0.0
        return min((worker.epoch + within) / self.epochs, 1.0)

    def eta(self, now: float | None = None) -> float | None:
        """Seconds left, from the pace since the first step."""
        done, now = self.fraction(), now or time.time()
        if not done or not self.first_step_at or self.status != "running":
            return None
        return (now - self.first_step_at) / done * (1 - done)

    def rows_per_second(self) -> float:
        """Rows that all workers together took in a second: now while running, over all when ended."""
        if self.status == "running":
            return sum(worker.rate for worker in self.workers.values())
        return sum(
            (w.totals["rows"] + w.rows) / seconds
            for w in self.workers.values()
            if (seconds := w.totals["seconds"] + w.seconds) > 0
        )

    def waiting_share(self) -> float | None:
        """Share of the epochs' time that rank 0 spent waiting for data."""
        worker = self.leader
        if worker is None:
            return None
        seconds = worker.totals["seconds"] + worker.seconds
        return (worker.totals["waiting"] + worker.waiting) / seconds if seconds else None

    def seconds(self, now: float | None = None) -> dict[str, float]:
        """Where the time went, by rank 0's clock: start, data, training, between epochs, rest.

        *between epochs* is what a loop does outside its steps: evaluate, save, report, wait for the others.
        """
        worker, total = self.leader, self.elapsed(now)
        if worker is None or not self.first_step_at:
            return {"start": total}
        start = self.first_step_at - self.started_at
        data = worker.totals["waiting"] + worker.waiting
        training = worker.totals["seconds"] + worker.seconds - data
        # The first batch is waited for before the first step: that wait is in `start` already.
        data = max(data - worker.totals["loading"], 0.0)
        between = worker.totals["between"]
        rest = max(total - start - data - training - between, 0.0)
        return {"start": start, "data": data, "training": training, "between epochs": between, "rest": rest}

    def metrics(self) -> dict[str, Any]:
        """The latest metrics: those of the last report, and newer ones of the running epoch."""
        latest = dict(self.history[-1]) if self.history else {}
        if self.curve and self.status == "running":
            latest.update(self.curve[-1][1])
        return {name: value for name, value in latest.items() if name != "epoch"}

    # -- one method for each kind of event ----------------------------------------------------------

    def _enter(self, name: str, now: float) -> None:
        if self.phases and self.phases[-1].ended is None:
            if self.phases[-1].name == name:
                return
            self.phases[-1].ended = now
        self.phases.append(Phase(name, now))

    def _worker(self, event: dict[str, Any]) -> WorkerState:
        rank = int(event.get("rank") or 0)
        worker = self.workers.get(rank)
        if worker is not None and worker.pid not in (0, event.get("pid")):
            # The engine started this rank again; what the dead process counted is gone with it.
            worker = None
            self.restarts += rank == 0
        if worker is None:
            worker = self.workers[rank] = WorkerState(rank)
        worker.node, worker.pid = str(event.get("node", "")), int(event.get("pid") or 0)
        return worker

    def _on_worker(self, event: dict[str, Any]) -> None:
        self._worker(event)

    def _on_phase(self, event: dict[str, Any]) -> None:
        worker = self._worker(event)
        if worker.rank == 0:
            self._enter(str(event["name"]), event["at"])

    def _on_step(self, event: dict[str, Any]) -> None:
        worker = self._worker(event)
        fresh = event["epoch"] != worker.epoch or event["step"] < worker.step
        if fresh:
            worker.totals["seconds"] += worker.seconds
            worker.totals["waiting"] += worker.waiting
            worker.totals["rows"] += worker.rows
            worker.totals["between"] += event.get("between", 0.0)
        rows, seconds = (0, 0.0) if fresh else (worker.rows, worker.seconds)
        if event["seconds"] > seconds and event["rows"] > rows and event["step"]:
            worker.rate = (event["rows"] - rows) / (event["seconds"] - seconds)
        worker.epoch, worker.step = event["epoch"], event["step"]
        # A stream does not know its length; after one epoch we do.
        worker.total = event.get("total") or (worker.step if event.get("done") else worker.total)
        worker.rows, worker.seconds, worker.waiting = event["rows"], event["seconds"], event["waiting"]
        if worker.rank == 0:
            self._on_step_of_leader(worker, event)

    def _on_step_of_leader(self, worker: WorkerState, event: dict[str, Any]) -> None:
        if not self.first_step_at:
            self.first_step_at = event["at"]
            worker.totals["loading"] = event.get("first_wait", 0.0)
        self._enter("training", event["at"])
        self.epochs = event.get("epochs") or self.epochs
        done = worker.epoch + (worker.step / worker.total if worker.total else 0.0)
        if event.get("metrics"):
            self.curve.append((done, event["metrics"]))
        if len(self.curve) > _POINTS_KEPT:
            del self.curve[1:-1:2]  # every second point: the curve keeps its shape and its ends
        if event.get("done"):
            self.epoch_seconds.append(event["seconds"])

    def _on_report(self, event: dict[str, Any]) -> None:
        metrics = dict(event["metrics"][0]) if event.get("metrics") else {}
        epoch = event.get("epoch")
        metrics["epoch"] = metrics.get("epoch", len(self.history)) if epoch is None else epoch
        self.history.append(metrics)

    def _on_checkpoint(self, event: dict[str, Any]) -> None:
        known = next((c for c in self.checkpoints if c.path == event["path"]), None)
        if known is None:
            label = f"epoch {self.history[-1]['epoch'] + 1}" if self.history else "before epoch 1"
            known = CheckpointState(path=event["path"], label=event.get("label") or label)
            self.checkpoints.append(known)
        known.status = event.get("status", known.status)
        known.bytes = event.get("bytes", known.bytes)
        known.metrics.update(event.get("metrics") or {})

    def _on_print(self, event: dict[str, Any]) -> None:
        who = f"[rank {event.get('rank', 0)}] " if self.world_size > 1 else ""
        self.prints.append(f"{who}{event['text']}")
        self.printed += 1

    def _on_failure(self, event: dict[str, Any]) -> None:
        rank = int(event.get("rank") or 0)
        epoch = self.workers[rank].epoch if rank in self.workers else None
        self.failures.append(Failure(rank=rank, text=str(event["text"]), epoch=epoch))
