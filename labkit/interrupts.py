"""Ctrl-C and the Stop button during a start: noticed at safe points, never lost.

    with interrupts.stoppable("the start of the cluster", undo=stop_all) as check:
        interrupts.wait_until(ready, seconds=60, check=check)

Python raises KeyboardInterrupt between any two bytecodes of the main thread. In the middle of an import that
does harm: a weakref callback of the import system prints and drops it, or it leaves the import lock held, and
all other threads wait for that. So the handler here only notes that the signal came.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

from labkit.errors import RunStopped

_INSIST = 5.0  # seconds after the first interrupt from which another one raises at once


@contextlib.contextmanager
def held() -> Iterator[Callable[[], None]]:
    """Hold interrupts back: one that comes in the block is raised by its next `check`, or at its end.

    Yields `check`, for every loop that waits. In other threads, or if SIGINT is ignored, nothing changes.
    """
    came: float | None = None  # when the first interrupt did
    raised = False

    def check() -> None:
        nonlocal raised
        if came is not None and not raised:
            raised = True
            raise KeyboardInterrupt

    def note(*_: object) -> None:
        nonlocal came
        if came is None:
            came = time.monotonic()
        elif time.monotonic() - came > _INSIST:
            check()

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if in_main else signal.SIG_IGN
    if before not in (None, signal.SIG_IGN):
        signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        if in_main and signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)
    check()  # after the handler is back: from there on an interrupt raises by itself


@contextlib.contextmanager
def handler_kept() -> Iterator[None]:
    """Put back the handler of SIGINT that was there before the block.

    Ray's fit() leaves one that calls a controller which is gone by then, and a SparkContext one that calls
    the JVM, mostly in the middle of another call.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, TypeError):  # not in the main thread, or not Python's
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def stoppable(
    what: str, *, undo: Callable[[], object] = lambda: None, left: str = "Nothing of it is left running"
) -> Iterator[Callable[[], None]]:
    """Let an interrupt end the block at its next `check`, undo it, and raise one calm line.

    Yields `check`, as `held` does. `undo` runs after every error in the block, and further interrupts do not
    cut it short. `left` is a sentence about what is true afterwards.
    """
    try:
        with held() as check:
            yield check
    except BaseException as error:
        with contextlib.suppress(KeyboardInterrupt), held():
            undo()
        if isinstance(error, KeyboardInterrupt):
            raise RunStopped(what, "stopped by you", left) from None
        raise


def wait_until(
    condition: Callable[[], object], *, seconds: float, check: Callable[[], object], every: float = 0.1
) -> bool:
    """Wait until `condition` holds, and call `check` in between. Returns whether it held within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        check()
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
