"""One line that tells how far a long wait is, and nothing for a short one.

    with Waiting("rendering digits", unit="images") as line:
        for done in range(0, total, 1024):
            ...
            line(done, total)

In a notebook and in a terminal the line is written over itself; in a log it comes rarely.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

_PATIENCE = 2.0  # seconds; what is faster needs no line
_LIVE_EVERY, _LOGGED_EVERY = 0.5, 30.0  # seconds between two lines


class Waiting:
    """Says what is waited for, how much is done and how long it took.

    Args:
        what: "fetching mnist".
        unit: what is counted; "bytes" are shown in MB.
        stream: where to write (default: standard output of the moment).
        clock: seconds, for tests.
    """

    def __init__(
        self,
        what: str,
        *,
        unit: str,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._unit, self._clock = what, unit, clock
        self._stream = stream or sys.stdout
        # A kernel's stream is no terminal, and still follows a carriage return.
        self._live = self._stream.isatty() or type(self._stream).__module__.startswith("ipykernel")
        self._started = clock()
        self._next = self._started + _PATIENCE
        self._width = 0  # of the line that stands there now; 0: none was written
        self._amount, self._total = "", 0

    def __enter__(self) -> "Waiting":
        return self

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` units are there; the line is drawn when its time has come."""
        self._amount, self._total = self._count(done, total), total
        if (now := self._clock()) >= self._next:
            self._next = now + (_LIVE_EVERY if self._live else _LOGGED_EVERY)
            self._write(f"{self._what} · {self._amount} · {now - self._started:.0f} s")

    @contextlib.contextmanager
    def during(self, done: int, total: int) -> Iterator[None]:
        """Keep the line going while the block calls something that comes back only when it is done."""
        over = threading.Event()

        def tell() -> None:
            while not over.wait(_LIVE_EVERY / 2):
                self(done, total)

        teller = threading.Thread(target=tell, name="labkit-waiting", daemon=True)
        teller.start()
        try:
            yield
        finally:
            over.set()
            teller.join()

    def __exit__(self, kind: Any, *_: object) -> None:
        if self._width:
            # The last call came before the last unit was done.
            amount = self._count(self._total, self._total) if kind is None else self._amount
            word = "done in" if kind is None else "ended after"
            self._write(f"{self._what} · {amount} · {word} {self._clock() - self._started:.0f} s")
            if self._live:
                self._stream.write("\n")

    def _count(self, done: int, total: int) -> str:
        if self._unit == "bytes":
            return f"{done / 1e6:.1f} of {total / 1e6:.1f} MB"
        return f"{done:,} of {total:,} {self._unit}"

    def _write(self, line: str) -> None:
        # Spaces wipe what is left of a longer line before.
        self._stream.write(f"\r{line.ljust(self._width)}" if self._live else f"{line}\n")
        self._stream.flush()
        self._width = len(line)
