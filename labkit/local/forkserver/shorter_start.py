"""Less to start and to wait for in a run of Ray Train: most of a short run was that.

The fork server imports this after Ray Train, so its forks have it. Nothing that a run can do is missing: what
isn't needed at the start comes after it. With a Ray whose methods have other names a run only takes longer;
of the attributes that only its objects have, `tests/test_private_names.py` looks at each.
"""

import contextlib
import dataclasses
import functools
import time
from typing import Any

import ray
from ray.train.v2._internal.callbacks import datasets, preemption_callback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.controller.placement_group_cleaner import PlacementGroupCleaner
from ray.train.v2._internal.execution.worker_group import WorkerGroup

_FIRST_LOOKS = 0.02  # seconds between the controller's first looks at its workers
_GROWTH = 0.1  # of the seconds that the workers have run, until it is what Ray's setting says
_CAUSE_AFTER = 0.2  # seconds that a failure has to be seen after those that follow from it …
_DEATH_AFTER = 1.0  # … and that Ray has to notice a process that is gone
_WATCHED_AFTER = 1.0  # seconds that workers have run; the watcher looks every five by default


def _look_often_at_first() -> None:
    """Let the controller look often at workers that have just started.

    It notices reports and the end of the loop only when it looks, and Ray's setting is the same for a run of
    a tenth of a second and for one of a day.
    """
    poll = TrainController._poll_workers

    @functools.wraps(poll)
    async def _poll_workers(self: Any) -> Any:
        if not hasattr(self, "_labkit_interval"):
            self._labkit_interval, self._labkit_group = self._health_check_interval_s, None
        if self._labkit_group is not self._worker_group:  # the run's first workers, or new ones
            self._labkit_group, self._labkit_began = self._worker_group, time.monotonic()
        grown = _FIRST_LOOKS + _GROWTH * (time.monotonic() - self._labkit_began)
        self._health_check_interval_s = min(self._labkit_interval, grown)
        return await poll(self)

    TrainController._poll_workers = _poll_workers


def _look_again_for_the_cause() -> None:
    """Look a second time where each failure that was seen follows from one of a rank that seems to run.

    A rank fails within milliseconds of losing its peer. Between two early looks, that can be all there is.
    """
    collect = WorkerGroup._poll_workers_and_collect_errors

    @functools.wraps(collect)
    def _poll_workers_and_collect_errors(self: Any, timeout: float | None) -> list:
        statuses = collect(self, timeout)
        errors = [getattr(status.error, "_base_exc", status.error) for status in statuses if status.error]
        if not errors or not any(status.running and not status.error for status in statuses):
            return statuses
        from labkit.train.callbacks import follows

        if not all(map(follows, errors)):
            return statuses
        time.sleep(_CAUSE_AFTER)
        later = collect(self, _DEATH_AFTER)
        # A report is handed over once: none of the first look may get lost.
        return [
            dataclasses.replace(new, training_report=old.training_report or new.training_report)
            for old, new in zip(statuses, later, strict=True)
        ]

    WorkerGroup._poll_workers_and_collect_errors = _poll_workers_and_collect_errors


def _clean_without_waiting() -> None:
    """Kill the actor that removes the placement group of a dead controller, where Ray waits for its end.

    It looks once a second whether the controller lives, and Ray waits for the end of that second. The kill
    loses nothing: the actor has no task while its controller can still kill it.
    """
    monitor = PlacementGroupCleaner._monitor_loop

    def _stop_cleaner(self: Any) -> None:
        cleaner, self._cleaner = self._cleaner, None
        if cleaner is not None:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(cleaner)

    @functools.wraps(monitor)
    def _monitor_loop(self: Any) -> None:
        # Its first look takes a tenth of a second of CPU, at the moment when the loop begins.
        self._stop_event.wait(self._check_interval_s)
        monitor(self)

    PlacementGroupCleanerCallback._stop_cleaner = _stop_cleaner
    PlacementGroupCleaner._monitor_loop = _monitor_loop


def _watch_later() -> None:
    """Start the actor that watches for preemption a second after the workers.

    Ray starts it for a run that is over by then, too.
    """

    class LatePreemptionCallback(preemption_callback.PreemptionCallback):
        _group: Any = None

        def after_worker_group_start(self, worker_group: Any) -> None:
            self._stop_watcher()
            self._group = worker_group
            self._starts_at = time.monotonic() + min(self._poll_interval_s, _WATCHED_AFTER)

        def after_worker_group_poll_status(self, worker_group_status: Any) -> None:
            if self._group is not None and time.monotonic() >= self._starts_at:
                super().after_worker_group_start(self._group)

        def _stop_watcher(self) -> None:
            self._group = None
            super()._stop_watcher()

    preemption_callback.PreemptionCallback = LatePreemptionCallback


def _no_manager_without_datasets() -> None:
    """Start no actor for the data sets of a run that has none. Asking for one raises Ray's own error."""
    callback, provider = datasets.DatasetsCallback, datasets.RayDatasetShardProvider
    make = callback.before_init_train_context

    @functools.wraps(make)
    def before_init_train_context(self: Any, workers: list) -> dict[str, list]:
        if self._datasets:
            return make(self, workers)
        empty = provider.__new__(provider)
        empty._dataset_names, empty._cached_dataset_shards = set(), {}
        return {"dataset_shard_provider": [empty] * len(workers)}

    callback.before_init_train_context = before_init_train_context


for shorten in (
    _look_often_at_first,
    _look_again_for_the_cause,
    _clean_without_waiting,
    _watch_later,
    _no_manager_without_datasets,
):
    with contextlib.suppress(AttributeError):
        shorten()
