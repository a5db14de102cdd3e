"""A fault: armed before a run, made at its moment, undone by itself, and followed until training goes on."""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Self

import psutil

from labkit.display import cards
from labkit.display.formatting import duration
from labkit.errors import LabError
from labkit.panel.run import Panel

_EVERY = 0.02  # seconds between two looks
_STEPS_AGAIN = 5  # events of rank 0 after which training goes on; one or two may still have been on their way
_Position = tuple[int, int, int]  # pid, epoch and step of rank 0


class Fault:
    """Something that is broken on purpose. Displays itself: what was done, and what it cost.

    Attributes:
        name: what it breaks, such as "kill rank 1".
        outcome: "not armed", "armed", "made", "refused" (`did` says why) or "missed" (no run came there).
        did: what was done, to which process; or why it was refused.
        moment: (epoch, step) of rank 0 at that time, both from 0.
        noticed: seconds until the panel heard of a failure; None if there was none.
        standstill: seconds without a step of rank 0, from its last step before the fault to the next one.
        repeated: steps that rank 0 trained a second time, because they came after the last checkpoint.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[Panel | None], str],
        *,
        seconds: float = 0.0,
        during: Callable[[], None] = lambda: None,
        undo: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self.outcome, self.did = name, "not armed", ""
        self.moment: tuple[int, int] | None = None
        self.noticed: float | None = None
        self.standstill: float | None = None
        self.repeated: int | None = None
        self._make, self._seconds, self._during, self._undo = make, seconds, during, undo
        self._panel: Panel | None = None
        self._thread: threading.Thread | None = None

    def at(self, panel: Panel, *, epoch: int = 0, step: int = 0) -> Self:
        """Arm it: it is made when rank 0 of the panel's next run is at `step` of `epoch`, both from 0.

        Raises:
            LabError: the panel is not one of a training, or the fault was armed before.
        """
        if not isinstance(panel, Panel):
            fix = "fault.now() in a thread of its own, while the sweep or the pipeline runs"
            raise LabError(f"arm the fault {self.name!r}", f"{panel!r} has no epochs and no ranks", fix)
        return self._arm(panel, (epoch, step))

    def now(self) -> Self:
        """Make it at once, and wait until it is undone."""
        return self._arm(None, (0, 0)).wait()

    def _arm(self, panel: Panel | None, moment: tuple[int, int]) -> Self:
        if self._thread is not None:
            raise LabError(f"arm the fault {self.name!r}", "it was armed before", "make a new one")
        self.outcome, self._panel = "armed", panel
        self._thread = threading.Thread(target=self._run, args=[moment], name="labkit-fault", daemon=True)
        self._thread.start()
        return self

    def wait(self, seconds: float | None = None) -> Self:
        """Wait until it is over: made, undone and, during a run, training again."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self

    def __repr__(self) -> str:
        rows = (f"  {name}: {what}" for name, what in self._rows())
        return "\n".join([f"{self.name}: {self.outcome}", *rows])

    def _repr_html_(self) -> str:
        kind = {"made": "ok", "armed": "dim"}.get(self.outcome, "wait")
        table = cards.rule(cards.table((), self._rows()))
        return str(cards.card(f"Fault: {self.name}", (kind, self.outcome), table))

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("done", self.did)]
        if self.moment is not None:
            rows.append(("at", f"epoch {self.moment[0] + 1}, step {self.moment[1]}"))
        for what, seconds in (("noticed after", self.noticed), ("no step for", self.standstill)):
            if seconds is not None:
                rows.append((what, duration(seconds)))
        if self.repeated is not None:
            rows.append(("steps trained twice", str(self.repeated)))
        return [row for row in rows if row[1]]

    # -- in a thread of its own, because fit() keeps the cell's --------------------------------------

    def _run(self, moment: tuple[int, int]) -> None:
        if not self._reached(moment):
            self.outcome = "missed"
            return
        failures, before = self._failures(), self._position()
        self.moment = before[1:] if before else None
        try:
            self.did = self._make(self._panel)
            self.outcome = "made"
            self._follow(failures, before)
        except (LabError, psutil.Error, OSError) as error:
            self.outcome, self.did = "refused", str(error)
        finally:
            with contextlib.suppress(psutil.Error, OSError):  # what it stopped may have ended meanwhile
                self._undo()

    def _reached(self, moment: tuple[int, int]) -> bool:
        """Wait for the moment; False if the run ended before."""
        if self._panel is None:
            return True
        earlier = self._panel.run_id if self._panel.state.over else None
        while self._panel.run_id == earlier or not self._panel.state.over:
            position = self._position()
            if self._panel.run_id != earlier and position is not None and position[1:] >= moment:
                return True
            time.sleep(_EVERY)
        return False

    def _follow(self, failures: int, position: _Position | None) -> None:
        """Look until rank 0 makes steps again, or the run is over; undo when the time has come."""
        made = advanced = time.monotonic()
        undone, steps, repeated = False, 0, self._panel.state.repeated if self._panel is not None else 0
        while steps < _STEPS_AGAIN and not (self._panel is not None and self._panel.state.over):
            self._during()
            time.sleep(_EVERY)
            now = time.monotonic()
            if not undone and now - made >= self._seconds:
                self._undo()
                undone = True
            if self._panel is None:
                steps += undone
                continue
            if self.noticed is None and self._failures() > failures:
                self.noticed = now - made
            here = self._position()
            if here is not None and here != position:
                self.standstill = max(self.standstill or 0.0, now - advanced)
                if position is not None and here[0] != position[0]:
                    self.repeated = self._panel.state.repeated - repeated
                steps += undone
                position, advanced = here, now

    def _failures(self) -> int:
        return len(self._panel.state.failures) if self._panel is not None else 0

    def _position(self) -> _Position | None:
        leader = self._panel.state.workers.leader if self._panel is not None else None
        # One that has no batch yet is not in an epoch.
        return (leader.pid, leader.epoch, leader.step) if leader is not None and leader.begun else None
