"""One line that shows how far a long wait is, and nothing for a short one.

with Waiting("rendering digits", unit="images") as line:
    for done in range(0, total, 1024):
        ...
        line(done, total)
"""

import sys
from typing import Any

from tqdm import tqdm


class Waiting(tqdm):
    """Shows what is waited for, how much is done and how long it took. In a log the line comes rarely."""

    monitor_interval = 0  # no thread of tqdm's: what is forked from this process must have only one

    def __init__(self, what: str, *, unit: str) -> None:
        live = sys.stdout.isatty() or "ipykernel" in type(sys.stdout).__module__
        words = "{desc} · {n_fmt} of {total_fmt} {unit} · {elapsed_s:.0f} s"
        # A wait of less than `delay` seconds needs no line; the seconds go on while nothing else changes.
        super().__init__(
            desc=what, unit=unit, file=sys.stdout, delay=2, mininterval=0.5 if live else 30, miniters=0,
            bar_format=words,
        )  # fmt: skip

    def __call__(self, done: int, total: int) -> None:
        """Report that `done` of `total` units are done. The line is written when it is time."""
        self.total = total
        self.update(done - self.n)

    def __exit__(self, kind: Any, *error: Any) -> None:
        if kind is None:
            self.n = self.total or 0  # the last call came before the last unit was done
        super().__exit__(kind, *error)
