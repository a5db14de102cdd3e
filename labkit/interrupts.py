"""Ctrl-C and the Stop button during a start: noticed at safe points, never lost.

    with interrupts.stoppable("the start of the cluster", undo=stop_all):
        interrupts.wait_until(ready, seconds=60)

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
# For each block of `held`, the innermost last: what raises the interrupt that came in it.
_holding: list[Callable[[], None]] = []


def check() -> None:
    """Raise the interrupt that came in the innermost block of `held`, if any. Loops that wait call this.

    In other threads than the main one it does nothing.
    """
    if _holding and threading.current_thread() is threading.main_thread():
        _holding[-1]()


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Hold interrupts back: one that comes in the block is raised by the next `check`, or at its end.

    In other threads, or if SIGINT is ignored, nothing changes.
    """
    came: float | None = None  # when the first interrupt did
    raised = False

    def raise_it() -> None:
        nonlocal raised
        if came is not None and not raised:
            raised = True
            raise KeyboardInterrupt

    def note(*_: object) -> None:
        nonlocal came
        if came is None:
            came = time.monotonic()
        elif time.monotonic() - came > _INSIST:
            raise_it()

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if in_main else signal.SIG_IGN
    if before in (None, signal.SIG_IGN):
        yield
        return
    _holding.append(raise_it)
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        _holding.remove(raise_it)
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)
    raise_it()  # after the handler is back: from there on an interrupt raises by itself


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
) -> Iterator[None]:
    """Let an interrupt end the block at the next `check`, undo it, and raise one calm line.

    `undo` runs after every error in the block, and further interrupts do not cut it short. `left` is a
    sentence about what is true afterwards.
    """
    try:
        with held():
            yield
    except BaseException as error:
        with contextlib.suppress(KeyboardInterrupt), held():
            undo()
        if isinstance(error, KeyboardInterrupt):
            raise RunStopped(what, "stopped by you", left) from None
        raise


def wait_until(condition: Callable[[], object], *, seconds: float, every: float = 0.1) -> bool:
    """Wait until `condition` holds, with a `check` in between. Return whether it held within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        check()
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
