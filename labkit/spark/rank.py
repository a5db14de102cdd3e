"""What runs in a rank of TorchDistributor: the panel's tracker, and a training file as a function."""

import contextlib
import os
import runpy
import sys
import traceback
from collections.abc import Iterator

from labkit.worker.events import Failure, Returned
from labkit.worker.remote import RemoteTracker

_TEXT_SENT = 10_000  # characters of a traceback that a rank sends


class RankTracker(RemoteTracker):
    """What the panel's tracker becomes in a rank. The task that starts torchrun has none.

    TorchDistributor hides how a rank ended, so the rank sends it: a failure, or that it has returned.
    """

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        with super().working():
            try:
                yield
            except (SystemExit, Exception) as error:
                if isinstance(error, SystemExit) and not error.code:
                    self.emit(Returned())
                else:
                    self.emit(Failure("".join(traceback.format_exception(error))[-_TEXT_SENT:]))
                raise
            self.emit(Returned())


def run_file(path: str, *arguments: str) -> None:
    """Run a training file with its command line, as ``python path arguments`` does."""
    sys.argv = [path, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    runpy.run_path(path, run_name="__main__")


def run_module(name: str, *arguments: str) -> None:
    """Run a module with its command line, as ``python -m name arguments`` does."""
    sys.argv = [name, *arguments]
    sys.path.insert(0, os.getcwd())
    runpy.run_module(name, run_name="__main__", alter_sys=True)
