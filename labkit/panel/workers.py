"""The progress of each worker of a run, which process has which rank, and which steps are repeated."""

from dataclasses import dataclass, field
from typing import Any

_STANDS_OUT = 0.1  # share of time or rate: smaller differences are noise


@dataclass
class WorkerState:
    """The progress of one worker.

    Attributes:
        epoch, step, total: where it is; `total` is the number of steps in this epoch, if known.
        rows, seconds: in all of its loops, from its first batch on.
        waiting: the part of these seconds in which it had no data.
        memory, gpu_memory: of its process at its latest step, in bytes, if known.
        made: all the steps of its process.
    """

    rank: int
    node: str = ""
    pid: int = 0
    epoch: int = 0
    step: int = 0
    total: int | None = None
    rows: int = 0
    seconds: float = 0.0
    waiting: float = 0.0
    memory: int | None = None
    gpu_memory: int | None = None
    made: int = 0
    _loop: tuple[int, float, float] | None = None  # rows, seconds and waiting of the current epoch

    @property
    def process(self) -> tuple[int, str, int]:
        return self.rank, self.node, self.pid

    @property
    def begun(self) -> bool:
        """Whether it has got its first batch."""
        return self._loop is not None

    def begins_epoch(self, event: dict[str, Any]) -> bool:
        """Whether a step event belongs to another epoch than the one before."""
        return not self.begun or event["epoch"] != self.epoch

    def update(self, event: dict[str, Any]) -> tuple[float, float]:
        """Take in a step event; return the seconds since the one before, and those of them without data."""
        before = (0, 0.0, 0.0) if self.begins_epoch(event) else self._loop
        now = event["rows"], event["seconds"], event["waiting"]
        rows, seconds, waiting = (value - old for value, old in zip(now, before, strict=True))
        if not self.begun:  # the wait for its very first batch belongs to the start
            seconds, waiting = seconds - event.get("first_wait", 0.0), waiting - event.get("first_wait", 0.0)
        self.rows, self.seconds = self.rows + rows, self.seconds + seconds
        self.waiting += waiting
        self.memory, self.gpu_memory = event.get("memory"), event.get("gpu_memory")
        self.made = event["made"]
        self.epoch, self.step, self._loop = event["epoch"], event["step"], now
        # A stream does not know its length; after one epoch we do.
        self.total = self.step if event.get("done") else event.get("total") or self.total
        if self.total and self.step > self.total:
            self.total = None  # this epoch is longer than the last one was
        return seconds, waiting

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def waiting_share(self) -> float:
        """Share of its time in which it had no data, 0 to 1."""
        return self.waiting / self.seconds if self.seconds > 0 else 0.0

    @property
    def epochs_done(self) -> float:
        """Epochs with the part of the current one, where its length is known."""
        return self.epoch + (min(self.step / self.total, 1.0) if self.total else 0.0)


class Workers(dict[int, WorkerState]):
    """The workers by rank.

    Attributes:
        restarts: how often the engine started rank 0 again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.restarts = 0
        self._gone: set[tuple[int, str, int]] = set()  # processes that are no more

    def keep(self, number: int) -> None:
        """The group has `number` workers from now on: an elastic run was shrunk, or has grown."""
        for rank in [rank for rank in self if rank >= number]:
            self._gone.add(self.pop(rank).process)

    @property
    def slowest(self) -> WorkerState | None:
        """The one that holds up the others: it waits longer for data than they, or has a lower rate."""
        ranked = sorted(self.values(), key=lambda one: (one.waiting_share, -one.rows_per_second))
        if len(ranked) < 2:
            return None
        middle, last = ranked[(len(ranked) - 1) // 2], ranked[-1]
        if last.waiting_share > middle.waiting_share + _STANDS_OUT:
            return last
        last = min(ranked, key=lambda one: one.rows_per_second)
        others = sorted(one.rows_per_second for one in ranked)[len(ranked) // 2]
        return last if 0 < last.rows_per_second < (1 - _STANDS_OUT) * others else None

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
        if worker is not None and worker.rank == 0:
            self.restarts += 1
        self[event["rank"]] = WorkerState(*process)
        return self[event["rank"]]


@dataclass
class Positions:
    """Where checkpoints are among the steps of a run, which each process counts from 0 on.

    Attributes:
        base: epochs and steps that the present process of rank 0 had behind it when it began.
        reached: steps of the run up to now, from its first on.
        committed: how many of the checkpoints have arrived in the store.
    """

    base: tuple[int, int] = (0, 0)
    reached: int = 0
    committed: int = 0
    _saved: list[tuple[int, int]] = field(default_factory=list)
    _goes_back: bool = False

    def saved(self, epochs: int, steps: int) -> None:
        """The loop has given a checkpoint to the engine."""
        self._saved.append((self.base[0] + epochs, self.base[1] + steps))

    def go_back(self) -> None:
        """The workers start over; with their first step it is known which checkpoints have arrived."""
        self._goes_back = True

    def settle(self) -> int:
        """A worker steps: if it has begun again, then at the last checkpoint that has arrived.

        Returns:
            The steps after it, which are made once more.
        """
        if not self._goes_back:
            return 0
        self._goes_back = False
        del self._saved[self.committed :]
        self.base = self._saved[-1] if self._saved else (0, 0)
        lost, self.reached = max(self.reached - self.base[1], 0), self.base[1]
        return lost

    def seen(self, made: int) -> None:
        """A process has made this many steps. All ranks make the same ones: one may tell more than rank 0."""
        self.reached = max(self.reached, self.base[1] + made)
