"""The panel of a training run: it takes events in from the loop, wherever that runs, and shows them here.

panel = Panel("00-baseline")
with panel:
    for epoch in range(3):
        for x, y in panel.steps(batches(...), epoch=epoch, epochs=3):
            ...
            panel.log(loss=loss)
        panel.report({"loss": ..., "accuracy": ...})
"""

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from labkit.panel.base import LivePanel
from labkit.panel.reporters import NullReporter
from labkit.panel.tracking.channel import Address, Listener
from labkit.panel.tracking.remote import RemoteTracker
from labkit.panel.tracking.tracker import Tracker
from labkit.panel.training import TrainingRun
from labkit.runs.record import RunRecord
from labkit.settings import Settings


class Panel(LivePanel, Tracker):
    """Follows one run: shows it while it lasts, keeps its record when it is over.

    Use it as a context manager around the run, and its `steps`, `log`, `report` and `phase` (see `Tracker`)
    inside the loop. Pickled into another process (with the training function), it becomes a
    `RemoteTracker` there that reports back to this one.

    Args:
        name, settings, reporter, live: as `LivePanel` takes them.
        about: what is shown and recorded, as far as known: `epochs`, `dataset` (its name, or
            the data set itself, whose fingerprint is then recorded), `rows`, `config`, `seed`,
            `engine` (what runs it, "one process") and `world_size` (the number of workers).

    Raises:
        LabError: the name isn't a string, or the panel is opened twice at the same time.
    """

    first_phase = "preparing"

    def __init__(
        self,
        name: str,
        *,
        settings: Settings | None = None,
        reporter: NullReporter | None = None,
        live: Sequence[Callable[[RunRecord], Any]] = (),
        **about: Any,
    ) -> None:
        self._about = about
        self._listener: Listener | None = None
        self._at_the_end: weakref.finalize | None = None  # closes the listener
        super().__init__(name, settings=settings, reporter=reporter, live=live)

    def __reduce__(self) -> tuple:
        return RemoteTracker, self.where_to_report()

    # -- events --------------------------------------------------------------------------------------

    def listen(self) -> Listener:
        """Listen for other processes' events; opens at most one listener."""
        with self._lock:
            if self._listener is None:
                # It does not keep the panel alive: the socket of one that is never opened is closed with it.
                panel = weakref.ref(self)
                self._listener = Listener(
                    lambda event: (alive := panel()) and alive.receive(event), host=self.host()
                )
                self._at_the_end = weakref.finalize(self, self._listener.close)
            return self._listener

    def where_to_report(self) -> tuple[str, Address | None]:
        """(run id, address): what another process needs to report to this run; no address once it is over."""
        with self._lock:
            if self.state.over:
                return self.run_id, None
            try:
                return self.run_id, self.listen().address
            except OSError as error:
                warnings.warn(
                    f"nothing of {self.state.name!r} will be seen here, because this kernel cannot listen on "
                    f"{self.host()}: {error}. The training itself goes on",
                    stacklevel=2,
                )
                return self.run_id, None

    def receive(self, event: dict[str, Any]) -> None:
        """Take in one event of this run; those of others (a worker that outlived its own) are ignored."""
        if event.get("run") != self.run_id:
            return
        # It happened when it arrived, not when it was drawn; and the clocks of other machines differ.
        event = {"rank": 0, "pid": 0, "node": "", **event, "at": self.state.now()}
        with self._lock:
            if self.state.status == "ready":
                self._warn_that_it_is_closed()
            else:
                self.state.apply(event)

    def _receive_own(self, event: dict[str, Any]) -> None:
        """Take in an event of a loop that runs in this process."""
        if self.state.status != "running":
            self._warn_that_it_is_closed()
        if self.trains_elsewhere() and event["kind"] != "report":
            # This kernel is none of the ranks: what it says of itself is only what is being done.
            with self.update() as state:
                if event["kind"] == "phase" and not state.over:
                    state.enter(event["name"])
            return
        self.receive(event)

    def _warn_that_it_is_closed(self) -> None:
        """Warn, once for each run, that what is reported shows nowhere."""
        moment = (self.run_id, self.state.status)
        if self._warned != moment:
            self._warned = moment
            warnings.warn(
                f"the panel {self.state.name!r} is not open, so what is reported to it shows nowhere: "
                "put the training into a `with` block of this panel",
                stacklevel=5,
            )

    # -- what an engine's panel may override ---------------------------------------------------------

    def trains_elsewhere(self) -> bool:
        """Whether the loop runs in other processes, so that this one has no rank."""
        return self.state.engine != "one process"

    def host(self) -> str:
        """The address to listen on for workers' events."""
        return "127.0.0.1"

    def new_state(self) -> TrainingRun:
        return TrainingRun(self._name, **self._about)

    def renew(self) -> None:
        super().renew()
        Tracker.__init__(self, self.run_id, self._receive_own)
        self._warned = ()

    def hang_up(self) -> None:
        if self._listener is not None:
            try:
                self._listener.drain()
            finally:
                self._listener.close()
                self._listener = None
                if self._at_the_end is not None:
                    self._at_the_end.detach()  # a panel that is used for many runs would keep them all
