"""`Run`: what has happened in a run of any engine; the record is made of it.

An adapter keeps the facts of its engine in a subclass. What is shown of them is a `labkit.panel.shown.Shown`.
"""

import re
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from numbers import Real
from pathlib import Path
from typing import Any

from labkit.display.formatting import cleaned
from labkit.machine import installed_versions, this_host
from labkit.runs.record import RunRecord, folder_of, this_process

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
        lines = [line for line in self.text.splitlines() if line.strip() and not line[0].isspace()]
        telling = [line for line in lines if not _IS_A_HEAD.search(line)]
        return (telling or lines or ["no message"])[-1]


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
        self._most, self._stride, self._seen = most, 1, 0

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
        """Where the time went: seconds by part."""
        return self.phase_seconds(now)

    def to_record(self) -> dict[str, Any]:
        """What the run record says beyond name, engine, status, times and failure."""
        return {}

    def outcome(self) -> str:
        """How it ended, in a few words."""
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
        """Unix seconds, counted on from the start: a clock that is set meanwhile changes no duration."""
        return self.started_at + time.monotonic() - self._started if self.started_at else time.time()

    def start(self, phase: str = "", now: float | None = None) -> None:
        self.status, self.started_at, self._started = "running", now or time.time(), time.monotonic()
        self.heard_at = self.started_at  # before a first event, nothing has been heard since then
        if phase:
            self.enter(phase, self.started_at)

    def end(self, status: str, now: float | None = None) -> None:
        self.status, self.ended_at = status, now or self.now()
        if self.phase:
            self.enter(self.phase, self.ended_at)

    def elapsed(self, now: float | None = None) -> float:
        return max((self.ended_at or now or self.now()) - self.started_at, 0.0) if self.started_at else 0.0

    def enter(self, phase: str, now: float | None = None) -> None:
        """`phase` is being done from now on."""
        now = now or self.now()
        if self.phase:
            self.phases[self.phase] += max(now - self._phase_began, 0.0)
        self.phase, self._phase_began = phase, now
        self.phases.setdefault(phase, 0.0)

    def phase_seconds(self, now: float | None = None) -> dict[str, float]:
        spent = dict(self.phases)
        if self.phase and not self.over:
            spent[self.phase] += max((now or self.now()) - self._phase_began, 0.0)
        return spent

    # -- what happens ---------------------------------------------------------------------------------

    def fail(self, text: str, rank: int | None = None) -> None:
        """Something raised; `text` is its short traceback."""
        self.failures.append(Failure(rank, cleaned(text)))

    def print(self, text: str) -> None:
        self.prints.append(cleaned(text))
        self.printed += 1

    def failed(self, failure: Failure) -> str:
        """A failure in one line."""
        who = "" if failure.rank is None else f"{self.unit} {failure.rank} "
        told = who and failure.message.startswith(who)  # "rank 1 is gone: …"
        return failure.message if told else f"{who}failed: {failure.message}"


def whole(value: Any) -> int | None:
    """A whole number from 0 on, of Python or numpy; None for anything else, such as a search space."""
    if not isinstance(value, Real):
        return None
    number: Any = value  # typeshed's Real has no comparison with an int
    return int(number) if 0 <= number < 2**53 and number == int(number) else None


def record_of(run: Run, run_id: str, home: Path, **origin: Any) -> RunRecord:
    """The record of a run, over or not; `origin` is its code and its commit."""
    return RunRecord(
        name=run.name,
        run_id=run_id,
        engine=run.engine,
        state=run.status,
        started_at=datetime.fromtimestamp(run.started_at, UTC).isoformat(timespec="milliseconds"),
        seconds_total=run.elapsed(),
        error=run.failures[-1].message if run.status == "failed" and run.failures else None,
        versions=installed_versions(),
        host=this_host(),
        process=this_process() if run.status == "running" else {},
        folder=str(folder_of(home, run.name, run_id)),
        **origin,
        **run.to_record(),
    )
