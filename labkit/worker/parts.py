"""Where the time of each step goes, by the clocks of the thread that runs the loop.

A step has six parts: waiting for data, forward, backward, exchange, optimizer, and the rest. On a CPU, a
thread that waits for other ranks uses no CPU time. So the exchange is what is left of ``backward()`` when
the thread's CPU time and its time on a run queue are subtracted. Without the run queue, a rank whose core is
taken by another program would look like one that waits for others.

Where gradients are exchanged by hand, between ``backward()`` and the optimizer's step, the exchange is
measured up to the step. The process group's count of collectives tells which of the two a loop does.

Reading these clocks is most of what following a step costs. Where backwards are short, only some of them are
measured, chosen at random, since a loop and a scheduler have their rhythms; of the others, the same share was
waiting as of the latest that were measured.

No parts are measured on a GPU (the thread only launches kernels), of sharded parameters (every part waits
for other ranks), and if several workers exchange nothing where it would be seen.
"""

import contextlib
import os
import random
import threading
from time import thread_time
from typing import Any

from labkit.worker.alone import collectives
from labkit.worker.weights import is_in_parts

_EACH = 5  # of so many draws from a loader, one is measured by all clocks
_PAUSE = 0.01  # seconds on average between two backwards that are measured
_FADES = 0.9  # what the measured backwards before count for, at each new one
_LOOKS = 50  # steps within which the exchange is found; an accumulation has many backwards in each
NO_BACKWARD = "where no backward() is seen"


class StepClocks:
    """Sums of the parts of all steps of one loop, in seconds; `now` is `perf_counter`'s."""

    def __init__(self, *, alone: bool) -> None:
        self.forward = 0.0
        self.backward = 0.0
        self.exchange = 0.0
        self.optimizer = 0.0
        self.reports = 0.0  # in the rest, …
        self.evaluating = 0.0  # … as this is
        self.backwards = 0
        self._steps = 0
        self._alone = alone
        self._unseen = ""
        self._exchanges_in = ""  # "backward" or "gap", which is between it and the step
        # When the latest backward began: by the wall, and busy if it is measured.
        self._began: tuple[float, float | None] | None = None
        self._first_at = 0.0  # when the first one did
        self._skips = 0  # backwards until one is measured again
        self._random = random.Random(0)  # the loop's own random numbers are its own
        self._measured = 0.0  # seconds of the latest that were measured …
        self._waited = 0.0  # … and of waiting in them
        self._mark = 0.0  # where the latest part ended
        self._drew_at = 0.0  # when the loop asked for its latest batch
        self._evaluates_since = 0.0
        self._count = 0  # of collectives, as a backward began
        self._draws = 0
        try:
            self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        except OSError:  # only Linux has it
            self._file = -1

    def queued(self) -> float:
        """Return the seconds that this thread has waited for a core, because other threads ran there."""
        if self._file < 0:
            return 0.0
        try:
            return int(os.pread(self._file, 64, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):  # the loop has closed the files of its process
            self._file = -1
            return 0.0

    def busy(self) -> float:
        """Return the seconds in which this thread had work to do, whether it had a core or not."""
        return thread_time() + self.queued()

    @property
    def unseen(self) -> str:
        """The reason why no parts are measured, such as "on a GPU"; empty if they are."""
        if self._unseen or self._exchanges_in:
            return self._unseen
        if self.backwards == 0:
            return NO_BACKWARD
        return "where no exchange of gradients is seen"

    def close(self) -> None:
        """Close the file of the run queue."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    # -- what the loop does --------------------------------------------------------------------------

    def begin_draw(self) -> float:
        """Note that the loop asks for a batch; return what `end_draw` needs."""
        self._draws += 1
        if self._draws % _EACH:
            return 0.0
        return self.busy()

    def end_draw(self, began: float, now: float, busy: float) -> float:
        """Note that the loop has a batch; return the average seconds in which this thread had work to do."""
        self._finish_backward(began)
        self._drew_at = began
        self._mark = now
        if not busy:
            return 0.0
        return _EACH * (self.busy() - busy)

    def evaluates(self, since: float) -> None:
        """Note that the loop evaluates: it drew a second batch without a step, or called ``eval()``."""
        if not self._evaluates_since:
            self._evaluates_since = since

    def begin_backward(self, now: float, loss: Any) -> None:
        if not self.backwards:
            device = getattr(getattr(loss, "device", None), "type", "cpu")
            self._unseen = "" if device == "cpu" else "on a GPU"
            self._exchanges_in = "backward" if self._alone else ""
            self._first_at = now
        self.backwards += 1
        self._finish_backward(now)
        if self._evaluates_since:
            self.end_evaluation(self._drew_at)
        if self._mark:
            self.forward += now - self._mark
        if not self._exchanges_in and self._steps < _LOOKS:
            self._count = collectives()
        self._began = now, self.busy() if self._is_measured(now) else None

    def end_backward(self, now: float) -> None:
        self._look_for_exchange("backward")
        if self._exchanges_in != "gap":
            self._finish_backward(now)
        elif self._began is not None:  # a rank that is stopped in here doesn't wait for others
            self.backward += now - self._began[0]
            measured = self._began[1] is not None
            self._began = now, self.busy() if measured else None

    def before_step(self, now: float, optimizer: Any) -> None:
        self._look_for_exchange("gap")
        self._steps += 1
        if self._steps == 1:
            self._look_for_shards(optimizer)
        self._finish_backward(now)

    def after_step(self, now: float) -> None:
        self._finish_backward(now)
        if self._mark:
            self.optimizer += now - self._mark
        self._mark = now
        self._evaluates_since = 0.0

    def report(self, began: float, now: float) -> None:
        """Count a report that took from `began` to `now`."""
        self.end_evaluation(began)
        self.reports += now - began
        self._mark = now

    def end_evaluation(self, now: float) -> None:
        since = self._evaluates_since
        self._evaluates_since = 0.0
        if since:
            self.evaluating += max(now - since, 0.0)

    def _finish_backward(self, now: float) -> None:
        """Add up the backward that began last, if that isn't done."""
        if self._began is None:
            return
        began, busy = self._began
        wall = now - began
        waited = 0.0
        if busy is not None:
            waited = max(wall - (self.busy() - busy), 0.0)
            self._measured = _FADES * self._measured + wall
            self._waited = _FADES * self._waited + waited
        elif self._measured:
            waited = wall * self._waited / self._measured
        self.exchange += waited
        self.backward += wall - waited
        self._began = None
        self._mark = now

    def _is_measured(self, now: float) -> bool:
        """Return whether the backward that begins is measured, and choose the next one that is."""
        if self._alone:
            return False
        if self._skips:
            self._skips -= 1
            return False
        if self.backwards > _LOOKS:
            mean = (now - self._first_at) / self.backwards
            self._skips = self._random.randrange(2 * max(round(_PAUSE / mean), 1) - 1)
        return True

    def _look_for_exchange(self, place: str) -> None:
        """Note where gradients are exchanged: here, if a collective has run since the backward began."""
        if self._exchanges_in or not self.backwards or self._steps >= _LOOKS:
            return
        if collectives() != self._count:
            self._exchanges_in = place

    def _look_for_shards(self, optimizer: Any) -> None:
        if self._alone:
            return
        with contextlib.suppress(Exception):  # an optimizer may be anything
            if is_in_parts(optimizer.param_groups[0]["params"][0]):
                self._unseen = "of a sharded model"
