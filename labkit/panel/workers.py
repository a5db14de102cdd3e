"""The progress of each worker of a run, and which process has which rank."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import median_high, median_low
from typing import Any

from labkit.runs.verdict import COLUMNS
from labkit.worker.events import Event, Step, Weights

_SAMPLES = 48  # that are kept of a worker
_LOOKS = 5
_STANDS_OUT = 0.1  # share of time or rate: smaller differences are noise


@dataclass
class WorkerState:
    """The progress of one worker."""

    rank: int
    node: str = ""
    pid: int = 0
    cores: float = 0  # of its node, that it may use; 0 if unknown
    epoch: int = 0
    step: int = 0  # in this epoch
    total: int | None = None  # steps of this epoch, if known
    rows: int = 0  # in all of its epochs, as are the seconds
    counted: bool = True  # whether the rows of all its batches are known
    seconds: float = 0.0  # from its first batch on
    waiting: float = 0.0  # the part of these seconds without data
    memory: int | None = None  # bytes of its process at its latest step
    gpu_memory: int | None = None
    made: int = 0  # all the steps of its process
    samples: list[list[float]] = field(default_factory=list)  # as `labkit.runs.verdict` takes them
    unseen: str = ""  # why there are no samples
    looks: list[Weights] = field(default_factory=list)  # at its weights; the first, and the latest
    _latest: Step | None = None  # that was applied

    @property
    def process(self) -> tuple[int, str, int]:
        return self.rank, self.node, self.pid

    @property
    def begun(self) -> bool:
        """Whether it has got its first batch."""
        return self._latest is not None

    def begins_epoch(self, event: Step) -> bool:
        """Return whether a step belongs to another epoch than the step before."""
        return not self.begun or event.epoch != self.epoch

    def update(self, event: Step) -> tuple[float, float]:
        """Apply a step; return the seconds since the step before, and the part of them without data."""
        rows = event.rows or 0
        seconds = event.seconds
        waiting = event.waiting
        before = self._latest
        if before is None:  # the wait for its very first batch belongs to the start
            seconds -= event.first_wait
            waiting -= event.first_wait
        elif before.epoch == event.epoch:  # an event has the sums of its epoch
            rows -= before.rows or 0
            seconds -= before.seconds
            waiting -= before.waiting
        self.rows += rows
        self.seconds += seconds
        self.waiting += waiting
        self._latest = event
        self.counted = self.counted and event.rows is not None
        self.memory = event.memory
        self.gpu_memory = event.gpu_memory
        self.epoch = event.epoch
        self.step = event.step
        self.made = event.made
        # A stream does not know its length; after one epoch we do.
        self.total = self.step if event.done else event.total or self.total
        if self.total and self.step > self.total:
            self.total = None  # this epoch is longer than the last one was
        return seconds, waiting

    def note_parts(self, parts: Mapping[str, Any]) -> None:
        """Keep the sums over the parts of its steps; of many, some at about equal distances, and the last."""
        self.unseen = parts.get("unseen", "")
        if "steps" not in parts:
            return
        parts = {**parts, "memory": self.memory or 0}
        self.samples.append([parts[name] for name in COLUMNS])
        if len(self.samples) > _SAMPLES:
            steps = [sample[0] for sample in self.samples]
            inner = range(1, len(steps) - 1)
            del self.samples[min(inner, key=lambda k: steps[k + 1] - steps[k - 1])]

    def note_look(self, look: Weights) -> None:
        """Keep a look at its weights: the first one, and the latest few."""
        self.looks.append(look)
        if len(self.looks) > _LOOKS:
            del self.looks[1]

    @property
    def rows_per_second(self) -> float:
        if self.seconds <= 0 or not self.counted:
            return 0.0
        return self.rows / self.seconds

    @property
    def waiting_share(self) -> float:
        """Share of its time in which it had no data, 0 to 1."""
        return self.waiting / self.seconds if self.seconds > 0 else 0.0

    @property
    def epochs_done(self) -> float:
        """Epochs that are done, and the part of the current one if its length is certain."""
        if not self.total:
            return self.epoch
        return self.epoch + min(self.step / self.total, 1.0)


class Workers(dict[int, WorkerState]):
    """The workers by rank."""

    def __init__(self) -> None:
        super().__init__()
        self.restarts = 0  # how often the engine started rank 0 again
        self.began_again = False  # whether it did so since the latest step
        self._gone: set[tuple[int, str, int]] = set()  # processes that are no more

    def keep(self, number: int) -> None:
        """Forget the ranks from `number` on: an elastic run has shrunk to so many workers, or grown."""
        for rank in list(self):
            if rank >= number:
                worker = self.pop(rank)
                self._gone.add(worker.process)

    @property
    def slowest(self) -> WorkerState | None:
        """The worker that holds up the others: it waits longer for data than they, or has a lower rate."""
        if len(self) < 2:
            return None
        usual_share = median_low(worker.waiting_share for worker in self.values())
        last = max(self.values(), key=attrgetter("waiting_share"))
        if last.waiting_share > usual_share + _STANDS_OUT:
            return last
        usual_rate = median_high(worker.rows_per_second for worker in self.values())
        last = min(self.values(), key=attrgetter("rows_per_second"))
        return last if 0 < last.rows_per_second < (1 - _STANDS_OUT) * usual_rate else None

    @property
    def leader(self) -> WorkerState | None:
        """The worker with the lowest rank: its epoch and step are shown for all."""
        return self[min(self)] if self else None

    def are_gone(self, event: Event) -> bool:
        """Return whether the event comes from a process whose rank another process has taken over."""
        return event.source in self._gone

    def of(self, event: Event) -> WorkerState | None:
        """Return the worker that sent the event; None if another process has taken over its rank."""
        if self.are_gone(event):
            return None
        worker = self.get(event.rank)
        if worker is not None:
            if worker.process == event.source:
                return worker
            self._gone.add(worker.process)
            if worker.rank == 0:
                self.restarts += 1
                self.began_again = True
        worker = WorkerState(*event.source)
        self[event.rank] = worker
        return worker
