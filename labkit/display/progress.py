"""One line that shows how far a long wait is, and nothing for a short one.

with Waiting("rendering digits", unit="images") as line:
    for done in range(0, total, 1024):
        ...
        line(done, total)
"""

import sys
import time
from typing import Any, Self

_DELAY = 2.0  # seconds; a shorter wait needs no line


class Waiting:
    """Shows what is waited for, how much is done and how long it took. In a log the line comes rarely."""

    def __init__(self, what: str, *, unit: str) -> None:
        self._what, self._unit, self._total = what, unit, 0
        live = sys.stdout.isatty() or "ipykernel" in type(sys.stdout).__module__
        self._every = 0.5 if live else 30.0
        self._began = time.monotonic()
        self._next = self._began + _DELAY

    def __call__(self, done: int, total: int) -> None:
        """Report that `done` of `total` units are done. The line is written when it is time."""
        self._total = total
        if (now := time.monotonic()) >= self._next:
            self._next = now + self._every
            self._write(done)

    def _write(self, done: int) -> None:
        seconds = time.monotonic() - self._began
        sys.stdout.write(f"\r{self._what} · {done} of {self._total} {self._unit} · {seconds:.0f} s")
        sys.stdout.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        if self._next > self._began + _DELAY:  # there is a line
            if kind is None:
                self._write(self._total)  # the last call came before the last unit was done
            sys.stdout.write("\n")
