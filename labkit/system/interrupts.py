"""Ctrl-C and the Stop button during a start: noticed at safe points, never lost.

    with interrupts.stoppable("the start of the cluster", undo=stop_all) as check:
        while not ready():
            check()              # raises KeyboardInterrupt if the reader has interrupted
            time.sleep(0.1)

Python raises KeyboardInterrupt between any two bytecodes of the main thread. In the middle of an import that
does harm: a weakref callback of the import system prints and drops it, or it leaves the import lock held, and
all other threads wait for that. So the handler here only notes that the signal came.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from labkit.errors import RunStopped

_INSIST = 5.0  # seconds after the first interrupt from which another one raises at once


class _Deferral:
    """The signal handler of one block, and what it has noted."""

    def __init__(self) -> None:
        self._first: float | None = None  # when the first interrupt came
        self._raised = False

    def check(self) -> None:
        """Raise KeyboardInterrupt, once, if an interrupt has come since the block began."""
        if self._first is not None and not self._raised:
            self._raised = True
            raise KeyboardInterrupt

    def note(self, _number: int, _frame: FrameType | None) -> None:
        """Handle the signal. During the clean-up after an interrupt, further ones change nothing."""
        if self._first is None:
            self._first = time.monotonic()
        elif time.monotonic() - self._first > _INSIST:
            self.check()


@contextlib.contextmanager
def deferred() -> Iterator[Callable[[], None]]:
    """Note interrupts during the block instead of raising them in the middle of whatever runs.

    Yields `check`, which raises a noted interrupt: call it in every loop that waits. If nothing called it,
    the end of the block does. Threads that get no signals, and programs that ignore SIGINT, are left as they
    are.
    """
    deferral = _Deferral()
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if in_main else None
    if before in (None, signal.SIG_IGN):
        yield deferral.check
        return
    signal.signal(signal.SIGINT, deferral.note)
    try:
        yield deferral.check
    finally:
        signal.signal(signal.SIGINT, before)
    deferral.check()


@contextlib.contextmanager
def stoppable(
    what: str, *, undo: Callable[[], object] = lambda: None, left: str = "Nothing of it is left running"
) -> Iterator[Callable[[], None]]:
    """Let an interrupt end the block at its next `check`, undo it, and raise one calm line.

    `undo` runs after every error in the block.

    Args:
        what: what is stopped, such as "the start of the cluster".
        left: what is true afterwards, as a sentence.

    Raises:
        RunStopped: the reader interrupted.
    """
    with deferred() as check:
        try:
            yield check
            check()
        except BaseException as error:
            undo()
            if isinstance(error, KeyboardInterrupt):
                raise RunStopped(what, "stopped by you", left) from None
            raise
