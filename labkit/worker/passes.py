"""The passes of a loop over its loaders, and the epochs that they add up to."""

import contextlib
import sys
import weakref
from collections import deque
from typing import Any

from labkit.worker.rows import Counter


class Sums:
    """What passes over loaders have brought."""

    rows = 0
    counted = True  # whether the rows of all batches are known
    waiting = 0.0  # seconds
    computing = 0.0  # the part of `waiting` in which this thread had work to do

    def add(self, other: "Sums") -> None:
        self.rows += other.rows
        self.counted = self.counted and other.counted
        self.waiting += other.waiting
        self.computing += other.computing


class Pass(Sums):
    """One iteration over a loader, for training or evaluation: the loop does not tell.

    Its sums are those that no step has claimed yet.

    Args:
        seconds: the time of its ``iter()``.
        count: counts the rows of a batch.
        inner: gets the rows of the batches that this loader draws from one inside it.
    """

    def __init__(
        self, loader: Any, iterator: Any, seconds: float, count: Counter, inner: deque[int | None]
    ) -> None:
        self.loader = weakref.ref(loader)
        self.iterator = weakref.ref(iterator)
        self.count = count
        self.inner = inner
        self.epoch: Epoch | None = None  # that it trains, once that is known
        self.total = _length(loader)
        self.began = 0.0
        self.batches = 0
        self.first_wait = seconds
        self.waiting = seconds
        self.backwards = 0  # that the loop had made at the latest draw
        self.drawn_at = -1  # the latest step before which the loop drew from it
        self.candidate_at = -1  # the same, as the latest step saw it
        self.over = False


class Epoch(Sums):
    """The sums over the training passes of one epoch."""

    def __init__(self, number: int, first: Pass | None, began: float, between: float) -> None:
        self.number = number
        self.first = first
        self.began = began
        self.between = between
        self.ended = began
        self.length: int | None = None  # in steps, of one without a loader
        self.steps = 0
        self.passes: list[Pass] = []

    def claim(self, loader_pass: Pass) -> None:
        """Claim what a pass has brought since the step before."""
        if loader_pass.epoch is not self:
            loader_pass.epoch = self
            self.passes.append(loader_pass)
            self.began = min(self.began, loader_pass.began)
        self.add(loader_pass)
        loader_pass.rows = 0
        loader_pass.waiting = 0.0
        loader_pass.computing = 0.0

    @property
    def total(self) -> int | None:
        """Steps of the whole epoch, if its loader has a length; several batches may make one step."""
        first = self.first
        if first is None or first.total is None:
            return self.length
        expected = first.total * self.steps / max(first.batches, 1)
        return max(round(expected), self.steps)


def _length(loader: Any) -> int | None:
    """Return how many batches a loader has, if it is safe to ask: a stream remembers that it was asked."""
    data = getattr(loader, "dataset", None)
    streams = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", ())
    if data is None or isinstance(data, streams):
        return None
    with contextlib.suppress(Exception):  # a sampler may be anything
        return len(loader)
    return None
