"""`Run`, the state of a run of any engine; its record is made from it.

An adapter keeps the facts of its engine in a subclass. What is shown of them is a `labkit.panel.shown.Shown`.
"""

import re
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.display.formatting import cleaned
from labkit.machine import installed_versions, this_host
from labkit.runs.record import RunRecord, folder_of, this_process
from labkit.worker.events import number_of

# The line above a traceback's frames, also behind the name of what passes it on; it says nothing itself.
_IS_A_HEAD = re.compile(r"(^|: ?|traceback: )Traceback( \(most recent call last\):?)?:?$")


@dataclass
class Failure:
    """An exception."""

    rank: int | None  # of the worker, or the number of the trial; None if it belongs to none
    text: str  # its traceback, already short

    @property
    def message(self) -> str:
        """The error in one line: the last line that is not indented."""
        lines = self.text.splitlines()
        lines = [line for line in lines if line.strip() and not line[0].isspace()]
        telling = [line for line in lines if not _IS_A_HEAD.search(line)]
        candidates = telling or lines or ["no message"]
        return candidates[-1]


@dataclass
class Span:
    """A bar on the time axis, in Unix seconds."""

    row: str  # "training" or "validation"
    label: str  # the epoch, counted from 1, or ""
    begin: float
    end: float
    status: str = ""  # of a validation: "validated", "failed", "timed out", or "" while it runs


class Thinned(list):
    """A list of at most `most` items: of a longer series, it keeps every second item, every fourth, …"""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._stride = 1
        self._seen = 0

    def add(self, item: Any) -> None:
        if self._seen % self._stride == 0:
            self.append(item)
        self._seen += 1
        if len(self) > self._most:
            del self[1::2]
            self._stride *= 2


@dataclass(eq=False, repr=False)
class Run:
    """One run: what has happened."""

    name: str
    engine: str = "one process"  # in the record's words: "Ray Train", …
    status: str = "ready"  # then "running", and "finished", "failed" or "stopped"
    started_at: float = 0.0  # Unix seconds
    ended_at: float = 0.0
    phase: str = ""  # what is being done now
    phases: dict[str, float] = field(default_factory=dict)  # seconds in each, in the order of their begin
    prints: deque[str] = field(default_factory=lambda: deque(maxlen=200))  # the latest lines
    printed: int = 0  # how many there were
    failures: list[Failure] = field(default_factory=list)
    unit: str = "rank"  # what their `rank` counts
    hang: list[str] = field(default_factory=list)  # what each worker waits for, if nothing is heard …
    heard_at: float = 0.0  # … since then
    waits: str = ""  # for which resources it waits, if nothing is heard
    explained: tuple[float, list[str]] | None = None  # when a reader asked, and what each worker did then
    version: int = 0  # grows with each event: a panel is drawn only when there is something new
    _phase_began: float = 0.0

    # -- what an adapter overrides -------------------------------------------------------------------

    def time_breakdown(self, now: float | None = None) -> dict[str, float]:
        """Return where the time went: seconds by part."""
        return self.phase_seconds(now)

    def to_record(self) -> dict[str, Any]:
        """Return the fields of the run record beyond name, engine, status, times and failure."""
        return {}

    def outcome(self) -> str:
        """Return how it ended, in a few words."""
        return "stopped by you" if self.status == "stopped" else self.status

    @property
    def recovered(self) -> bool:
        """Whether the run went on after its last failure, so that this one did not end it."""
        return False

    # -- time ----------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return self.status not in ("ready", "running")

    def now(self) -> float:
        """Return Unix seconds, counted from the start: a clock that is set meanwhile changes no duration."""
        if not self.started_at:
            return time.time()
        return self.started_at + time.monotonic() - self._started

    def start(self, phase: str = "", now: float | None = None) -> None:
        self.status = "running"
        self.started_at = now or time.time()
        self._started = time.monotonic()
        self.heard_at = self.started_at  # before a first event, nothing has been heard since then
        if phase:
            self.enter(phase, self.started_at)

    def end(self, status: str, now: float | None = None) -> None:
        self.status = status
        self.ended_at = now or self.now()
        if self.phase:
            self.enter(self.phase, self.ended_at)

    def elapsed(self, now: float | None = None) -> float:
        if not self.started_at:
            return 0.0
        end = self.ended_at or now or self.now()
        return max(end - self.started_at, 0.0)

    def enter(self, phase: str, now: float | None = None) -> None:
        """End the present phase, and begin the next or the same one again."""
        now = now or self.now()
        if self.phase:
            self.phases[self.phase] += max(now - self._phase_began, 0.0)
        self.phase = phase
        self._phase_began = now
        self.phases.setdefault(phase, 0.0)

    def phase_seconds(self, now: float | None = None) -> dict[str, float]:
        spent = dict(self.phases)
        if self.phase and not self.over:
            now = now or self.now()
            spent[self.phase] += max(now - self._phase_began, 0.0)
        return spent

    # -- what happens ---------------------------------------------------------------------------------

    def fail(self, text: str, rank: int | None = None) -> None:
        """Note a failure; `text` is its short traceback."""
        self.failures.append(Failure(rank, cleaned(text)))

    def print(self, text: str) -> None:
        self.prints.append(cleaned(text))
        self.printed += 1

    def failed(self, failure: Failure) -> str:
        """Return a failure in one line."""
        message = failure.message
        if failure.rank is None:
            return f"failed: {message}"
        owner = f"{self.unit} {failure.rank} "
        if message.startswith(owner):  # "rank 1 is gone: …"
            return message
        return f"{owner}failed: {message}"


def whole(value: Any) -> int | None:
    """Return a whole number from 0 on, of Python or numpy; None for anything else, such as a search space."""
    number = number_of(value)
    if number is None or number % 1:
        return None
    return int(number)


def record_of(run: Run, run_id: str, home: Path, **origin: Any) -> RunRecord:
    """Return the record of a run, over or not; `origin` is its code and its commit."""
    started_at = datetime.fromtimestamp(run.started_at, UTC)
    has_failed = run.status == "failed" and run.failures
    return RunRecord(
        name=run.name,
        run_id=run_id,
        engine=run.engine,
        state=run.status,
        started_at=started_at.isoformat(timespec="milliseconds"),
        seconds_total=run.elapsed(),
        error=run.failures[-1].message if has_failed else None,
        versions=installed_versions(),
        host=this_host(),
        process=this_process() if run.status == "running" else {},
        folder=str(folder_of(home, run.name, run_id)),
        **origin,
        **run.to_record(),
    )
