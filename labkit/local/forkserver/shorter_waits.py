"""What makes a short run of Ray Train shorter: its controller waits less, and starts the watcher later.

The fork server imports this after Ray Train, and its forks have it. A Ray whose classes have other names runs
as always, and takes up to a second longer for each `fit()`.
"""

import contextlib
import functools
import queue
import time
from typing import Any

from ray.train.v2._internal.callbacks import preemption_callback
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.controller.placement_group_cleaner import PlacementGroupCleaner

_LEAST = 0.02  # seconds between the controller's first looks at its workers
_GROWTH = 0.1  # of the seconds that the workers have run, until it is what Ray's setting says

_WATCHED_AFTER = 1.0  # seconds; the watcher looks every five


class _Closable(queue.Queue):
    """A queue whose reader doesn't wait for a timeout once it is closed: its thread ends."""

    _END = object()

    def close(self) -> None:
        self.put(self._END)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        item = super().get(block, timeout)
        if item is self._END:
            raise SystemExit  # ends only the thread, and without a word
        return item


def _end_at_once() -> None:
    """Let the cleaner of placement groups end when its controller says so.

    It looks once a second whether the controller lives, and `fit()` would wait for the end of that second.
    """
    make, stop = PlacementGroupCleaner.__init__, PlacementGroupCleaner.stop

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        self._pg_queue = _Closable()

    @functools.wraps(stop)
    def stop_at_once(self: Any) -> None:
        self._stop_event.set()
        self._pg_queue.close()
        stop(self)

    PlacementGroupCleaner.__init__, PlacementGroupCleaner.stop = __init__, stop_at_once


def _look_often_at_first() -> None:
    """Let the controller look at workers that have just started more often than at others.

    It notices reports and the end of the loop only then, and Ray's setting is the same for a run of a tenth of
    a second and for one of a day.
    """
    poll = TrainController._poll_workers

    @functools.wraps(poll)
    async def _poll_workers(self: Any) -> Any:
        if not hasattr(self, "_labkit_interval"):
            self._labkit_interval, self._labkit_group = self._health_check_interval_s, None
        if self._labkit_group is not self._worker_group:  # it has been restarted
            self._labkit_group, self._labkit_began = self._worker_group, time.monotonic()
        grown = _LEAST + _GROWTH * (time.monotonic() - self._labkit_began)
        self._health_check_interval_s = min(self._labkit_interval, grown)
        return await poll(self)

    TrainController._poll_workers = _poll_workers


def _watch_later() -> None:
    """Let the actor that watches for preemption start a second after the workers, and not before the loop.

    One process less starts while the workers do, and none for a run that is over by then.
    """

    class LatePreemptionCallback(preemption_callback.PreemptionCallback):
        _group: Any = None

        def after_worker_group_start(self, worker_group: Any) -> None:
            self._stop_watcher()
            self._group, self._starts_at = worker_group, time.monotonic() + _WATCHED_AFTER

        def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
            if self._group is not None and time.monotonic() >= self._starts_at:
                group, self._group = self._group, None
                super().after_worker_group_start(group)

        def _stop_watcher(self) -> None:
            self._group = None
            super()._stop_watcher()

    preemption_callback.PreemptionCallback = LatePreemptionCallback


for shorten in (_end_at_once, _look_often_at_first, _watch_later):
    with contextlib.suppress(AttributeError):
        shorten()
