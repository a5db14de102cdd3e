"""One line that tells how far a long wait is, and nothing for a short one.

    with Waiting("rendering digits", unit="images") as line:
        for done in range(0, total, 1024):
            ...
            line(done, total)

In a notebook the line is one output that is updated, so that a saved notebook has its last state alone. In a
terminal it is overwritten. In a log it comes rarely. tqdm has no such line: its bars leave widgets in saved
notebooks, and stand still while a call blocks.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

_DELAY = 2.0  # seconds; what is faster needs no line
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
        self._in_notebook = type(self._stream).__module__.startswith("ipykernel")
        self._output: Any = None  # the notebook's output
        self._every = _LIVE_EVERY if self._in_notebook or self._stream.isatty() else _LOGGED_EVERY
        self._started = clock()
        self._next = self._started + _DELAY
        self._width = 0  # of the line that was written last; 0: none was
        self._amount, self._total = "", 0

    def __enter__(self) -> "Waiting":
        return self

    def __call__(self, done: int, total: int) -> None:
        """Report that `done` of `total` units are done. The line is written when it is time."""
        self._amount, self._total = self._count(done, total), total
        if (now := self._clock()) >= self._next:
            self._next = now + self._every
            self._write(f"{now - self._started:.0f} s")

    @contextlib.contextmanager
    def during(self, done: int, total: int) -> Iterator[None]:
        """Keep the line going while the block calls something that returns only when it is done."""
        over = threading.Event()

        def report() -> None:
            while not over.wait(_LIVE_EVERY / 2):
                self(done, total)

        thread = threading.Thread(target=report, name="labkit-waiting", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def __exit__(self, kind: Any, *_: object) -> None:
        if self._width:
            word = "ended after"
            if kind is None:
                # The last call came before the last unit was done.
                word, self._amount = "done in", self._count(self._total, self._total)
            self._write(f"{word} {self._clock() - self._started:.0f} s", end="\n")

    def _count(self, done: int, total: int) -> str:
        if self._unit == "bytes":
            return f"{done / 1e6:.1f} of {total / 1e6:.1f} MB"
        return f"{done:,} of {total:,} {self._unit}"

    def _write(self, time_spent: str, end: str = "") -> None:
        line = f"{self._what} · {self._amount} · {time_spent}"
        if self._in_notebook:
            self._display({"text/plain": line})
        elif self._every == _LIVE_EVERY:
            # Spaces overwrite what is left of a longer line.
            self._stream.write(f"\r{line.ljust(self._width)}{end}")
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()
        self._width = len(line)

    def _display(self, content: dict[str, str]) -> None:
        if self._output is None:
            from IPython.display import display

            self._output = display(content, raw=True, display_id=True)
        else:
            self._output.update(content, raw=True)
