"""The panel of a training: it takes events in from the loop, wherever that runs, and shows them here.

panel = Panel("00-baseline")
with panel:
    for epoch in range(3):
        for x, y in panel.steps(batches(...), epoch=epoch, epochs=3):
            ...
            panel.log(loss=loss)
        panel.report({"loss": ..., "accuracy": ...})
"""

import contextlib
import operator
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from labkit.panel.base import LivePanel, require
from labkit.panel.reporters import Reporter
from labkit.panel.state.run import RunState
from labkit.panel.tracking import events
from labkit.panel.tracking.channel import Address, Listener
from labkit.panel.tracking.remote import RemoteTracker
from labkit.panel.tracking.tracker import Tracker
from labkit.panel.view.run import RunView
from labkit.settings import Settings


class Panel(LivePanel):
    """Follows one training: shows it while it lasts, keeps its record when it is over.

    Use it as a context manager around the run, and its `steps`, `log` and `report` inside the loop.
    Pickled into another process (with the training function), it becomes a `RemoteTracker` there
    that reports back to this one.

    Args:
        name: of the run; also the folder of its record below ``HOME/runs``.
        engine: what runs it, in the record's words ("one process", "Ray Train", …).
        world_size: number of workers.
        epochs, dataset, rows: shown and recorded, if known.
        settings: default: from the environment.
        reporter: default: as ``settings.panel`` says.

    Raises:
        RunError: an argument is of a wrong type, or the panel is opened twice at the same time.
    """

    view = RunView()

    def __init__(
        self,
        name: str,
        *,
        engine: str = "one process",
        world_size: int = 1,
        epochs: int | None = None,
        dataset: str | None = None,
        rows: int | None = None,
        settings: Settings | None = None,
        reporter: Reporter | None = None,
    ) -> None:
        self._about = {
            "engine": engine, "world_size": world_size, "epochs": epochs, "dataset": dataset, "rows": rows,
        }  # fmt: skip
        require("engine", engine, "a text", isinstance(engine, str))
        require("dataset", dataset, "a text", dataset is None or isinstance(dataset, str))
        for key, value in {"world_size": world_size, "epochs": epochs, "rows": rows}.items():
            optional = value is None and key != "world_size"
            require(key, value, "a whole number from 0 on", optional or _is_count(value))
        self._listener: Listener | None = None
        super().__init__(name, settings=settings, reporter=reporter)

    def __reduce__(self) -> tuple:
        return RemoteTracker, self.where_to_report()

    # -- what the training loop calls, where it runs in this process ---------------------------------

    def steps(
        self, batches: Iterable, *, epoch: int = 0, epochs: int | None = None, total: int | None = None
    ) -> Iterator:
        """Yield each batch, and show how far the epoch is (see `Tracker.steps`)."""
        self._warn_if_closed()
        return self._tracker.steps(batches, epoch=epoch, epochs=epochs, total=total)

    def log(self, **metrics: Any) -> None:
        """Metrics of the current step: numbers or 0-d tensors."""
        self._warn_if_closed()
        self._tracker.log(**metrics)

    def report(self, metrics: dict[str, Any], *, epoch: int | None = None) -> None:
        """Metrics of an epoch that is done."""
        self._warn_if_closed()
        self._tracker.report(metrics, epoch=epoch)

    def checkpoint(
        self, path: str, *, size: int | None = None, metrics: dict[str, Any] | None = None
    ) -> None:
        """A checkpoint of `size` bytes is kept at `path`."""
        self._warn_if_closed()
        self._tracker.checkpoint(path, size=size, metrics=metrics)

    def phase(self, name: str) -> None:
        """What is being done now: loading, training, evaluating, …"""
        self._warn_if_closed()
        self._tracker.phase(name)

    def working(self) -> contextlib.AbstractContextManager:
        """In a worker, see `RemoteTracker.working`; in this process there is nothing to do."""
        return contextlib.nullcontext()

    # -- what other processes need -------------------------------------------------------------------

    def listen(self) -> Listener:
        """Listen for other processes' events; opens at most one listener."""
        with self._lock:
            if self._listener is None:
                self._listener = Listener(self.receive, host=self.host())
            return self._listener

    def where_to_report(self) -> tuple[str, Address | None]:
        """(run id, address): what another process needs to report to this run; no address once it is over."""
        with self._lock:
            return self.run_id, None if self.state.over else self.listen().address

    def receive(self, event: dict[str, Any]) -> None:
        """Take in one event of this run; those of others (a worker that outlived its own) are ignored."""
        if not isinstance(event, dict) or event.get("run") != self.run_id:
            return
        known = events.read(event)
        if known is None:
            return
        # It happened when it arrived, not when it was drawn; and the clocks of other machines differ.
        known["at"] = time.time()
        with self._lock:
            if self.state.status == "ready":
                self._warn_if_closed()
            else:
                self.state.apply(known)

    # -- what an engine's panel may override ---------------------------------------------------------

    def host(self) -> str:
        """The address to listen on for workers' events."""
        return "127.0.0.1"

    def new_state(self) -> RunState:
        return RunState(self._name, **self._about)

    def first_phase(self) -> str:
        return "preparing"

    def renew(self) -> None:
        super().renew()
        self._tracker = Tracker(self.run_id, self.receive)
        self._said = ()

    # -- inside --------------------------------------------------------------------------------------

    def _warn_if_closed(self) -> None:
        """Warn, once for each run, that what is reported shows nowhere."""
        moment = (self.run_id, self.state.status)
        if self.state.status != "running" and self._said != moment:
            self._said = moment
            warnings.warn(
                f"the panel {self.state.name!r} is not open, so what is reported to it shows nowhere: "
                "put the training into a `with` block of this panel",
                stacklevel=3,
            )

    def _drain(self) -> None:
        if self._listener is not None:
            self._listener.drain()

    def _hang_up(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()


def _is_count(value: Any) -> bool:
    try:
        return operator.index(value) >= 0 and not isinstance(value, bool)
    except TypeError:
        return False
