"""One line that shows how long something takes and how far it is; a short wait has none.

with Waiting("starting the cluster", unit="nodes") as line:
    for done in range(total):
        ...
        line(done, total)
"""

import sys
import threading
import time
from typing import Any, Self

_DELAY = 2.0  # seconds; a shorter wait needs no line


class Waiting:
    """Counts the seconds of its block, in a thread: the block may be busy. In a log the line comes rarely."""

    def __init__(self, what: str, *, unit: str = "") -> None:
        self._what = what
        self._unit = unit
        self._done = 0
        self._total = 0
        self._over = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._count, name="labkit-waiting", daemon=True)

    def __call__(self, done: int, total: int) -> None:
        """Note that `done` of `total` units are done."""
        self._done = done
        self._total = total

    def _count(self) -> None:
        live = sys.stdout.isatty() or "ipykernel" in type(sys.stdout).__module__
        pause = _DELAY
        while not self._over.wait(pause):
            self._write()
            pause = 0.5 if live else 30.0

    def _write(self) -> None:
        far = f" · {self._done} of {self._total} {self._unit}" if self._total else ""
        print(f"\r{self._what}{far} · {time.monotonic() - self._began:.0f} s", end="", flush=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        self._over.set()
        self._thread.join()
        if time.monotonic() - self._began > _DELAY:
            if kind is None:
                self._done = self._total  # the last call came before the last unit
            self._write()
            print()
