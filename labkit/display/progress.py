"""One line that tells how far a long wait is, and nothing for a short one.

with Waiting("rendering digits", unit="images") as line:
    for done in range(0, total, 1024):
        ...
        line(done, total)
"""

import sys
from typing import Any

from tqdm import tqdm


class Waiting(tqdm):
    """Says what is waited for, how much is done and how long it took. In a log the line comes rarely.

    Args:
        what: "starting the cluster".
        unit: what is counted.
    """

    monitor_interval = 0  # no thread of tqdm's: what is forked from this process must have one only

    def __init__(self, what: str, *, unit: str) -> None:
        live = sys.stdout.isatty() or "ipykernel" in type(sys.stdout).__module__
        super().__init__(
            desc=what,
            unit=unit,
            file=sys.stdout,
            delay=2,  # seconds; what is faster needs no line
            mininterval=0.5 if live else 30,
            miniters=0,  # the seconds go on while nothing else changes
            bar_format="{desc} · {n_fmt} of {total_fmt} {unit} · {elapsed_s:.0f} s",
        )

    def __call__(self, done: int, total: int) -> None:
        """Report that `done` of `total` units are done. The line is written when it is time."""
        self.total = total
        self.update(done - self.n)

    def __exit__(self, kind: Any, *error: Any) -> None:
        if kind is None:
            self.n = self.total or 0  # the last call came before the last unit was done
        super().__exit__(kind, *error)
