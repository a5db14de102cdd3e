"""The progress of each worker of a run, and which process has which rank."""

from dataclasses import dataclass, field
from typing import Any

from labkit.display.formatting import UNKNOWN, count, size


@dataclass
class WorkerState:
    """The progress of one worker."""

    rank: int
    node: str = ""
    pid: int = 0
    epoch: int = 0
    step: int = 0  # in this epoch
    total: int | None = None  # steps of this epoch, if known
    rows: int = 0  # in all of its epochs, as are the seconds
    seconds: float = 0.0  # from its first batch on
    waiting: float = 0.0  # the part of them in which it had no data
    memory: int | None = None  # bytes of its process at its latest step
    gpu_memory: int | None = None
    made: int = 0  # all the steps of its process
    last: dict[str, Any] = field(default_factory=dict)  # its latest step event; none before its first batch

    @property
    def process(self) -> tuple[int, str, int]:
        return self.rank, self.node, self.pid

    @property
    def begun(self) -> bool:
        return bool(self.last)

    def update(self, event: dict[str, Any]) -> tuple[float, float]:
        """Take in a step event; return the seconds since the one before, and those of them without data."""
        before = self.last if event["epoch"] == self.epoch else {}
        # The wait for its very first batch belongs to the start.
        start = 0.0 if self.begun else event.get("first_wait", 0.0)
        seconds = event["seconds"] - before.get("seconds", 0.0) - start
        waiting = event["waiting"] - before.get("waiting", 0.0) - start
        self.rows += event["rows"] - before.get("rows", 0)
        self.seconds, self.waiting = self.seconds + seconds, self.waiting + waiting
        self.memory, self.gpu_memory = event.get("memory"), event.get("gpu_memory")
        self.epoch, self.step, self.made, self.last = event["epoch"], event["step"], event["made"], event
        # A stream does not know its length; after one epoch we do.
        self.total = self.step if event.get("done") else event.get("total") or self.total
        if self.total and self.step > self.total:
            self.total = None  # this epoch is longer than the last one was
        return seconds, waiting

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    def row(self) -> tuple[str, ...]:
        """Its row in the table of workers."""
        rate, waits = UNKNOWN, UNKNOWN
        if self.seconds > 0:
            rate, waits = count(self.rows_per_second), f"{self.waiting / self.seconds:.0%}"
        gpu = "" if self.gpu_memory is None else f", GPU {size(self.gpu_memory)}"
        step = str(self.step) if self.begun else UNKNOWN
        return str(self.rank), self.node, str(self.pid), step, rate, waits, size(self.memory) + gpu

    @property
    def epochs_done(self) -> float:
        """Epochs with the part of the current one, where its length is known."""
        return self.epoch + (min(self.step / self.total, 1.0) if self.total else 0.0)


class Workers(dict[int, WorkerState]):
    """The workers by rank; `restarts` is how often the engine started rank 0 again."""

    def __init__(self) -> None:
        super().__init__()
        self.restarts = 0
        self._gone: set[tuple[int, str, int]] = set()  # processes that are no more

    def keep(self, number: int) -> None:
        """The group has `number` workers from now on: an elastic run was shrunk, or has grown."""
        for rank in [rank for rank in self if rank >= number]:
            self._gone.add(self.pop(rank).process)

    @property
    def leader(self) -> WorkerState | None:
        """The worker with the lowest rank: its epoch and step are shown for all."""
        return self[min(self)] if self else None

    def of(self, event: dict[str, Any]) -> WorkerState | None:
        """The worker that sent the event, or None if another process has taken over its rank."""
        process, worker = (event["rank"], event["node"], event["pid"]), self.get(event["rank"])
        if process in self._gone:
            return None
        if worker is not None and worker.process == process:
            return worker
        if worker is not None:
            self._gone.add(worker.process)
            self.restarts += worker.rank == 0
        self[event["rank"]] = WorkerState(*process)
        return self[event["rank"]]
