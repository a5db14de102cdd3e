"""The panel of a training run: it takes events in from the loop, wherever that runs, and shows them here.

    with Panel("00-baseline", epochs=3) as panel:
        for epoch in range(3):
            ...                                          # a loop of PyTorch, which knows nothing of the panel
            panel.report({"loss": ..., "accuracy": ...})

The panels of Ray Train and of TorchDistributor are subclasses.
"""

import contextlib
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from labkit.panel import training_view
from labkit.panel.base import LivePanel
from labkit.panel.training import TrainingRun
from labkit.worker import Tracker
from labkit.worker.channel import Listener
from labkit.worker.events import Event, Report, numbers
from labkit.worker.hooks import current, following
from labkit.worker.remote import RemoteTracker


class PanelTracker(Tracker):
    """The tracker of a panel in its own process. Pickled into another one (with the training function), it is
    a `RemoteTracker` that reports back to this panel."""

    def __init__(self, panel: "Panel") -> None:
        super().__init__(panel.run_id, panel.receive)
        self._panel = panel

    def __reduce__(self) -> tuple:
        compares = self._panel.settings.compare_weights
        return self._panel.remote, (*self._panel.where_to_report(), compares)


class Panel(LivePanel):
    """Follows one run in a ``with`` block around it, as `LivePanel` does, whose arguments and errors it has.

    A loop in this process is followed from outside (see `labkit.worker.hooks`), in others with `tracker`.

    Args:
        facts: what is shown and recorded, each if you have it: `epochs`, `dataset` (its name, or
            the data set itself, whose fingerprint is then recorded), `rows`, `config`, `seed`,
            `engine` (what runs it, "one process") and `world_size` (the number of workers). With
            ``verdict=False`` the panel draws where the time goes and leaves out the sentence that says why;
            the record has it.
    """

    first_phase = "preparing"
    view = staticmethod(training_view.shown)
    remote = RemoteTracker  # what the tracker is in another process
    state: TrainingRun
    tracker: PanelTracker  # of the present run

    def __init__(self, name: str, **facts: Any) -> None:
        options = {}
        for option in ("settings", "reporter", "live"):
            if option in facts:
                options[option] = facts.pop(option)
        self._about = facts
        super().__init__(name, **options)

    def report(self, metrics: dict[str, Any], *, epoch: int | None = None) -> None:
        """Report the metrics of an epoch that is done, in this process (Ray's report is seen)."""
        if self.state.status != "running":
            fact = f"the panel {self.state.name!r} is not open, so what is reported to it shows nowhere"
            warnings.warn(f"{fact}: put the training into a `with` block of this panel", stacklevel=2)
        sent = numbers(metrics)
        if epoch is not None:
            sent["epoch"] = epoch
        place: tuple[int | None, int] = (None, 0)
        follower = current()
        if follower is not None:
            place = follower.place(sent.get("epoch"))
        self.tracker.emit(Report(sent, *place))

    # -- events --------------------------------------------------------------------------------------

    def listen(self) -> Any:
        """Listen for other processes' events until the run is over; opens at most one channel."""
        with self._lock:
            if self._listener is None:
                self._listener = self.channel(self.receive)
            return self._listener

    def where_to_report(self) -> tuple[str, Any]:
        """Return (run id, address) for a tracker in another process; without a run, the address is None."""
        if self.state.status != "running":
            return self.run_id, None
        address = None
        try:
            address = self.listen().address
        except (OSError, ImportError) as error:
            fact = f"this kernel cannot listen on {self.host()}: {error}. The training itself goes on"
            warnings.warn(f"nothing of {self.state.name!r} will be seen here, because {fact}", stacklevel=2)
        return self.run_id, address

    def receive(self, event: Event) -> None:
        """Apply an event of this run; ignore those of other runs, whose workers may have outlived them."""
        if event.run != self.run_id:
            return
        # It happened when it arrived, not when it was drawn; and the clocks of other machines differ.
        event = replace(event, at=self.state.now())
        with self._lock:
            if self.state.status == "running":
                self.state.apply(event)

    # -- what an engine's panel may override ---------------------------------------------------------

    def trains_elsewhere(self) -> bool:
        """Return whether the loop runs in other processes, so that this process has no rank."""
        return self.state.engine != "one process"

    def channel(self, on_event: Callable[[Event], Any]) -> Any:
        """Return what hears other processes: a `Listener`, or an object with its `address` and `close`."""
        return Listener(on_event, host=self.host())

    def host(self) -> str:
        """Return the address to listen on for workers' events."""
        return "127.0.0.1"

    def surroundings(self) -> contextlib.AbstractContextManager:
        """Return the hooks that follow a loop in this process."""
        if self.trains_elsewhere():
            return contextlib.nullcontext()
        return following(self.tracker)

    def new_state(self) -> TrainingRun:
        return TrainingRun(self._name, **self._about)

    def renew(self) -> None:
        super().renew()
        self.tracker = PanelTracker(self)
