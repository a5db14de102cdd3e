"""The progress of each worker of a run, and which process has which rank."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
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
    epoch: int = 0
    step: int = 0  # in this epoch
    total: int | None = None  # steps of this epoch, if known
    rows: int = 0  # in all of its epochs, as are the seconds
    counted: bool = True  # whether the rows of all its batches are known
    seconds: float = 0.0  # from its first batch on
    waiting: float = 0.0  # the part of them in which it had no data
    memory: int | None = None  # bytes of its process at its latest step
    gpu_memory: int | None = None
    made: int = 0  # all the steps of its process
    begun: bool = False  # whether it has got its first batch
    samples: list[list[float]] = field(default_factory=list)  # as `labkit.runs.verdict` takes them
    unseen: str = ""  # why there are none
    looks: list[Weights] = field(default_factory=list)  # at its weights; the first, and the latest
    _epoch: tuple[int, float, float] = (0, 0.0, 0.0)  # rows, seconds and waiting of the current one

    @property
    def process(self) -> tuple[int, str, int]:
        return self.rank, self.node, self.pid

    def begins_epoch(self, event: Step) -> bool:
        """Whether a step belongs to another epoch than the one before."""
        return not self.begun or event.epoch != self.epoch

    def update(self, event: Step) -> tuple[float, float]:
        """Take in a step; return the seconds since the one before, and those of them without data."""
        before = (0, 0.0, 0.0) if self.begins_epoch(event) else self._epoch
        self.counted = self.counted and event.rows is not None
        self._epoch = event.rows or 0, event.seconds, event.waiting
        rows, seconds, waiting = map(operator.sub, self._epoch, before)
        if not self.begun:  # the wait for its very first batch belongs to the start
            seconds, waiting = seconds - event.first_wait, waiting - event.first_wait
        self.rows, self.seconds = self.rows + rows, self.seconds + seconds
        self.waiting += waiting
        self.memory, self.gpu_memory = event.memory, event.gpu_memory
        self.epoch, self.step, self.made, self.begun = event.epoch, event.step, event.made, True
        # A stream does not know its length; after one epoch we do.
        self.total = self.step if event.done else event.total or self.total
        if self.total and self.step > self.total:
            self.total = None  # this epoch is longer than the last one was
        return seconds, waiting

    def note_parts(self, parts: Mapping[str, Any]) -> None:
        """Keep the sums over the parts of its steps; of many, those of every second moment, and the last."""
        self.unseen = parts.get("unseen", "")
        if "steps" in parts:
            parts = {**parts, "memory": self.memory or 0}
            self.samples.append([parts[name] for name in COLUMNS])
            if len(self.samples) > _SAMPLES:
                del self.samples[1:-1:2]

    def note_look(self, look: Weights) -> None:
        """Keep a look at its weights: the first one, and the latest few."""
        self.looks.append(look)
        if len(self.looks) > _LOOKS:
            del self.looks[1]

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 and self.counted else 0.0

    @property
    def waiting_share(self) -> float:
        """Share of its time in which it had no data, 0 to 1."""
        return self.waiting / self.seconds if self.seconds > 0 else 0.0

    @property
    def epochs_done(self) -> float:
        """Epochs with the part of the current one, where its length is known."""
        return self.epoch + (min(self.step / self.total, 1.0) if self.total else 0.0)


class Workers(dict[int, WorkerState]):
    """The workers by rank."""

    def __init__(self) -> None:
        super().__init__()
        self.restarts = 0  # how often the engine started rank 0 again
        self.began_again = False  # whether it did so since the latest step
        self._gone: set[tuple[int, str, int]] = set()  # processes that are no more

    def keep(self, number: int) -> None:
        """The group has `number` workers from now on: an elastic run was shrunk, or has grown."""
        for rank in [rank for rank in self if rank >= number]:
            self._gone.add(self.pop(rank).process)

    @property
    def slowest(self) -> WorkerState | None:
        """The one that holds up the others: it waits longer for data than they, or has a lower rate."""
        if len(self) < 2:
            return None
        waiting = sorted(self.values(), key=lambda one: one.waiting_share)
        if waiting[-1].waiting_share > waiting[(len(self) - 1) // 2].waiting_share + _STANDS_OUT:
            return waiting[-1]
        rates = sorted(self.values(), key=lambda one: one.rows_per_second)
        most = (1 - _STANDS_OUT) * rates[len(self) // 2].rows_per_second
        return rates[0] if 0 < rates[0].rows_per_second < most else None

    @property
    def leader(self) -> WorkerState | None:
        """The worker with the lowest rank: its epoch and step are shown for all."""
        return self[min(self)] if self else None

    def are_gone(self, event: Event) -> bool:
        """Whether the event comes from a process whose rank another one has taken over."""
        return event.source in self._gone

    def of(self, event: Event) -> WorkerState | None:
        """The worker that sent the event, or None if another process has taken over its rank."""
        worker = self.get(event.rank)
        if self.are_gone(event):
            return None
        if worker is not None and worker.process == event.source:
            return worker
        if worker is not None:
            self._gone.add(worker.process)
            if worker.rank == 0:
                self.restarts, self.began_again = self.restarts + 1, True
        self[event.rank] = WorkerState(*event.source)
        return self[event.rank]
