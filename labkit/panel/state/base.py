"""What every panel knows of what it follows: its status, its time, what was printed and what went wrong."""

import contextlib
import re
import time
from collections import deque
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labkit.machine import installed_versions, this_host
from labkit.runs.record import RunRecord, folder_of, read, this_process

_PRINTS_KEPT = 200  # lines; a loop that prints each step must not fill the kernel
# The line above a traceback's frames, also behind the name of what passes it on; it says nothing itself.
_IS_A_HEAD = re.compile(r"(^|: ?|traceback: )Traceback( \(most recent call last\):?)?:?$")


@dataclass
class Failure:
    """An exception: `text` is its traceback, already short.

    Attributes:
        rank: of the worker, or the number of the trial; None if it belongs to none.
    """

    rank: int | None
    text: str

    @property
    def message(self) -> str:
        """The error in one line: the last line that is not indented."""
        lines = [line for line in self.text.splitlines() if line.strip() and not line[0].isspace()]
        telling = [line for line in lines if not _IS_A_HEAD.search(line)]
        return (telling or lines or ["no message"])[-1]


class State:
    """Base of what panels follow. No drawing, no engine.

    Attributes:
        engine: what runs it, in the record's words ("one process", "Ray Train", …).
        status: "ready", "running", "finished", "failed" or "stopped".
        started_at, ended_at: Unix seconds, 0 before.
        failures: in the order in which they came.
        prints: the latest lines; `printed` counts all of them.
        version: grows with each event, so a panel is drawn only when there is something new.
    """

    engine = "one process"

    def __init__(self, name: str) -> None:
        self.name, self.status = name, "ready"
        self.started_at = self.ended_at = self._started = 0.0
        self.failures: list[Failure] = []
        self.prints: deque[str] = deque(maxlen=_PRINTS_KEPT)
        self.printed = 0
        self.version = 0

    @property
    def recovered(self) -> bool:
        """Whether the run went on after its last failure, so that this one did not end it."""
        return False

    @property
    def over(self) -> bool:
        return self.status not in ("ready", "running")

    def now(self) -> float:
        """Unix seconds, counted on from the start: a clock that is set meanwhile changes no duration."""
        if not self.started_at:
            return time.time()
        return self.started_at + time.monotonic() - self._started

    def start(self, phase: str = "", now: float | None = None) -> None:
        self.status, self.started_at, self._started = "running", now or time.time(), time.monotonic()

    def end(self, status: str, now: float | None = None) -> None:
        self.status, self.ended_at = status, now or self.now()

    def elapsed(self, now: float | None = None) -> float:
        return max((self.ended_at or now or self.now()) - self.started_at, 0.0) if self.started_at else 0.0

    def fail(self, text: str, rank: int | None = None) -> None:
        """Something raised; `text` is its short traceback."""
        self.failures.append(Failure(rank, text))

    def print(self, line: str) -> None:
        self.prints.append(line)
        self.printed += 1

    def apply(self, event: dict[str, Any]) -> None:
        """Take in an event that `labkit.panel.tracking.events.read` has checked, unless it comes too late."""
        handler = getattr(self, f"on_{event['kind']}", None)
        if handler is not None and not self.over:
            handler(event)
            self.version += 1

    def to_record(self) -> dict[str, Any]:
        """What the run record says beyond name, engine, status, times and failure."""
        return {}


def record_of(state: State, run_id: str, home: Path, **origin: Any) -> RunRecord:
    """The record of a run, over or not, to be written to its folder. Its tags and its note stay.

    Args:
        origin: its code and its commit, as `RunRecord` has them.
    """
    failed = state.status == "failed" and state.failures
    folder, own = folder_of(home, state.name, run_id), {}
    with contextlib.suppress(LabError):  # it has none yet
        earlier = read(folder)
        own = {"tags": earlier.tags, "note": earlier.note}
    record = RunRecord(
        name=state.name,
        run_id=run_id,
        engine=state.engine,
        state=state.status,
        started_at=datetime.fromtimestamp(state.started_at, UTC).isoformat(timespec="milliseconds"),
        seconds_total=state.elapsed(),
        error=state.failures[-1].message if failed else None,
        versions=installed_versions(),
        host=this_host(),
        process=this_process() if state.status == "running" else {},
        **origin,
        **own,
    )
    return replace(record, **state.to_record(), folder=str(folder))
