"""One line that shows how long something takes; a short wait has none.

with Waiting("starting the cluster"):
    ...
"""

import sys
import threading
import time
from typing import Self

_DELAY = 2.0  # seconds; a shorter wait needs no line


class Waiting:
    """Counts the seconds of its block, in a thread: the block may be busy. In a log the line comes rarely."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._over = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._count, name="labkit-waiting", daemon=True)

    def _count(self) -> None:
        live = sys.stdout.isatty() or "ipykernel" in type(sys.stdout).__module__
        pause = _DELAY
        while not self._over.wait(pause):
            self._write()
            pause = 0.5 if live else 30.0

    def _write(self) -> None:
        print(f"\r{self._what} · {time.monotonic() - self._began:.0f} s", end="", flush=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if time.monotonic() - self._began > _DELAY:
            self._write()
            print()
