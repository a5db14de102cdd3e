"""The tracker of a panel in another process, from which it sends its events to the panel's address."""

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from labkit import machine
from labkit.worker import Tracker, group_size
from labkit.worker.channel import Sender
from labkit.worker.events import Event, Print, Worker
from labkit.worker.hooks import following
from labkit.worker.sendable import raise_sendable

_PRINT_WIDTH = 2000  # characters of a printed line that are sent


class RemoteTracker(Tracker):
    """The tracker that a panel's becomes when it is pickled into another process; unpickling does nothing.

    Args:
        run: id of the run that the events belong to.
        address: of the panel, as `Sender` takes it. None if the panel was not open when it was pickled: then
            nothing is sent.
        compares: whether the ranks' weights are compared.
    """

    in_worker = True

    def __init__(self, run: str, address: Any, compares: bool = True) -> None:
        self.compares = compares
        self._address = address
        self._sender = None if address is None else Sender(address)
        super().__init__(run, self._pass_on)

    def _pass_on(self, event: Event) -> None:
        if self._sender is not None:
            self._sender.send(event)

    def __reduce__(self) -> tuple:
        return type(self), (self._run, self._address, self.compares)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Tell the panel of this worker, and send what its training function prints during the block.

        A worker's log is a file, but a learner's ``print`` belongs in the notebook. So does a warning for who
        wrote the function, such as PyTorch's on two shapes that do not fit.
        """
        if self._sender is None:
            yield
            return
        self.emit(Worker(group_size(), machine.cores()))
        before = warnings.showwarning
        printed = _Tee(sys.stdout, self)
        try:
            # Ray replaces `print`, but passes text on to a stdout that is not the original one.
            with contextlib.redirect_stdout(printed):
                warnings.showwarning = functools.partial(self._warned, before)
                yield
        finally:
            warnings.showwarning = before
            printed.end()
            self._sender.flush()

    def send(self, event: Event) -> None:
        """Deliver an event that is not of a training function here, but of a callback or a validation.

        Such a process may end, or be used again, before the next delivery.
        """
        self._send(replace(event, run=self._run))
        self.flush()

    def flush(self) -> None:
        """Send what is left and hang up."""
        if self._sender is not None:
            self._sender.flush()

    def _warned(
        self, show: Callable, message: Any, category: type[Warning], file: str, line: int, *rest: Any
    ) -> None:
        """Show a warning, and send rank 0's: the others run the same code, and theirs are in their logs."""
        show(message, category, file, line, *rest)
        # A `DeprecationWarning` is for the authors of a package.
        if not issubclass(category, UserWarning) or self.rank() != 0:
            return
        text = " ".join(str(message).split())[:_PRINT_WIDTH]
        self.emit(Print(f"warning: {text} ({Path(file).name}, line {line})"))


class TrackedFunction:
    """A training function with a tracker: where it runs, a panel hears of its beginning, prints and end."""

    def __init__(self, function: Callable[..., Any], tracker: Tracker) -> None:
        self.function = function
        self._tracker = tracker
        functools.update_wrapper(self, function, updated=())  # its name and signature are asked for

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            with self._tracker.working(), following(self._tracker, self.function):
                return self.function(*args, **kwargs)
        except BaseException as error:
            if self._tracker.in_worker:
                raise_sendable(error)
            raise


class _Tee:
    """A stdout that passes everything on and also sends each complete line as an event of `owner`."""

    # Not a TextIOBase: that has an `encoding`, a `fileno` and an `isatty` of its own, all of them wrong.
    def __init__(self, stream: Any, owner: Tracker) -> None:
        self._stream = stream
        self._owner = owner
        self._part = ""  # of a line that has no end yet

    def write(self, text: str) -> int:
        self._stream.write(text)
        *lines, part = (self._part + text).split("\n")
        # A progress bar writes over its line for hours and never ends it.
        self._part = _seen(part)
        if part.endswith("\r"):
            self._part += "\r"
        for line in lines:
            self._send(line)
        return len(text)

    def end(self) -> None:
        """Send the last line, which may have no end: ``print("x", end="")``, a progress bar."""
        line = self._part
        self._part = ""
        self._send(line)

    def _send(self, line: str) -> None:
        seen = _seen(line)
        if seen.strip():
            self._owner.emit(Print(seen))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _seen(line: str) -> str:
    """Return what a terminal shows of a line with carriage returns in it, cut to size."""
    return line.rstrip("\r").rpartition("\r")[2][:_PRINT_WIDTH]
