"""The progress of each worker of a run, and which process has which rank."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class WorkerState:
    """The progress of one worker: counts of its current loop, and totals of earlier ones."""

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
    loops_before: float = 0.0  # seconds of earlier loops in the same epoch
    loading: float | None = None  # seconds until its very first batch: they belong to the start
    totals: dict[str, float] = field(
        default_factory=lambda: {"seconds": 0.0, "waiting": 0.0, "between": 0.0, "rows": 0}
    )

    def update(self, event: dict[str, Any]) -> None:
        """Take in a step event."""
        if self.loading is None:
            self.loading = event.get("first_wait", 0.0)
        if self.starts_loop(event):
            self.totals["seconds"] += self.seconds
            self.totals["waiting"] += self.waiting
            self.totals["rows"] += self.rows
            self.totals["between"] += event.get("between", 0.0)
            self.loops_before = self.epoch_seconds if event["epoch"] == self.epoch else 0.0
            self.rows, self.seconds = 0, 0.0
        if event["seconds"] > self.seconds and event["rows"] > self.rows:
            self.rate = (event["rows"] - self.rows) / (event["seconds"] - self.seconds)
        self.epoch, self.step = event["epoch"], event["step"]
        # A stream does not know its length; after one epoch we do.
        self.total = self.step if event.get("done") else event.get("total", self.total)
        if self.total and self.step > self.total:
            self.total = None  # this epoch is longer than the last one was
        self.rows, self.seconds, self.waiting = event["rows"], event["seconds"], event["waiting"]

    def starts_loop(self, event: dict[str, Any]) -> bool:
        """Whether a step event belongs to another loop than the one before."""
        return event["epoch"] != self.epoch or event["step"] < self.step

    @property
    def epoch_seconds(self) -> float:
        """Seconds in the current epoch so far."""
        return self.loops_before + self.seconds

    @property
    def epochs_done(self) -> float:
        """Epochs with the part of the current one, where its length is known."""
        return self.epoch + (min(self.step / self.total, 1.0) if self.total else 0.0)

    @property
    def rows_per_second(self) -> float:
        """Over all of its loops, from the first batch on."""
        seconds = self.all_seconds
        return (self.totals["rows"] + self.rows) / seconds if seconds else 0.0

    @property
    def all_seconds(self) -> float:
        """Seconds in all of its loops, from the first batch on."""
        return max(self.totals["seconds"] + self.seconds - (self.loading or 0.0), 0.0)

    @property
    def all_waiting(self) -> float:
        """Seconds in which it waited for data in these loops."""
        waited = self.totals["waiting"] + self.waiting - (self.loading or 0.0)
        return min(max(waited, 0.0), self.all_seconds)


class Workers(dict[int, WorkerState]):
    """The workers by rank.

    Attributes:
        restarts: how often the engine started rank 0 again.
        lost: seconds that rank 0 spent in processes that were replaced: training, waiting, between epochs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.restarts = 0
        self.lost = {"training": 0.0, "waiting": 0.0, "between": 0.0}
        self._gone: set[tuple[int, str, int]] = set()  # (rank, node, pid) of processes that were replaced

    @property
    def leader(self) -> WorkerState | None:
        """The worker with the lowest rank: its epoch and step are shown for all."""
        return self[min(self)] if self else None

    def of(self, event: dict[str, Any]) -> WorkerState | None:
        """The worker that sent the event, or None if another process has taken over its rank."""
        rank, node, pid = event["rank"], event["node"], event["pid"]
        if (rank, node, pid) in self._gone:
            return None
        worker = self.get(rank)
        if worker is None or (worker.node, worker.pid) != (node, pid):
            if worker is not None:
                self._replace(worker)
            worker = self[rank] = WorkerState(rank, node, pid)
        return worker

    def _replace(self, worker: WorkerState) -> None:
        """The engine started this rank again, in another process."""
        self._gone.add((worker.rank, worker.node, worker.pid))
        if worker.rank == 0:
            self.restarts += 1
            self.lost["training"] += worker.all_seconds - worker.all_waiting
            self.lost["waiting"] += worker.all_waiting
            self.lost["between"] += worker.totals["between"]
            for other in self.values():
                other.rate = 0.0  # the others start again as well, or are gone for good
