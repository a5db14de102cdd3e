"""Follow the training function of a trial, in the process in which Ray Tune runs it."""

import functools
from collections.abc import Callable
from typing import Any

from labkit.worker.events import End, Event, Parts, Step
from labkit.worker.hooks import following
from labkit.worker.remote import RemoteTracker


class TrialTracker(RemoteTracker):
    """The tracker of a trial. It sends where the time of its steps goes; Tune itself brings the results."""

    in_worker = False  # a trial has no ranks
    trial = ""  # Tune's id of the trial that this process runs

    def emit(self, event: Event) -> None:
        if isinstance(event, Step):
            super().emit(Parts(self.trial, event.parts, event.memory))
        elif isinstance(event, End):
            super().emit(Parts(self.trial, event.parts))


def followed(function: Callable[[Any], Any], tracker: TrialTracker) -> Callable[[Any], Any]:
    """Return the function of a sweep's trials, followed from outside."""

    @functools.wraps(function)  # Tune asks for its name, its signature and the resources that it needs
    def train(config: Any) -> Any:
        from ray import tune

        tracker.trial = tune.get_context().get_trial_id() or ""
        try:
            with following(tracker):
                return function(config)
        finally:
            tracker.flush()

    return train
