"""One line that shows how long something takes; a short wait has none.

with waiting("starting the cluster"):
    ...
"""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator

_DELAY = 2.0  # seconds; a shorter wait needs no line


@contextlib.contextmanager
def waiting(activity: str) -> Iterator[None]:
    """Count the seconds of the block, in a thread: the block may be busy. In a log the line comes rarely."""
    began = time.monotonic()
    over = threading.Event()

    def write() -> None:
        print(f"\r{activity} · {time.monotonic() - began:.0f} s", end="", flush=True)

    def count() -> None:
        live = sys.stdout.isatty() or "ipykernel" in type(sys.stdout).__module__
        pause = _DELAY
        while not over.wait(pause):
            write()
            pause = 0.5 if live else 30.0

    thread = threading.Thread(target=count, name="labkit-waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if time.monotonic() - began > _DELAY:
            write()
            print()
