"""Which of Ray Data's log lines a notebook shows."""

import logging
from collections.abc import Callable
from typing import Any

from labkit.errors import LabError


class _Hidden(logging.LogRecord):
    """A record that the console handler passes over; the class has the mark, as Ray sets it on records."""

    hide = True


class _Hiding:
    """Makes log records as `make` does, and marks those of Ray Data that are below `level` as hidden.

    Ray Data's console handler passes over a record that has the attribute ``hide``; its file handler does
    not. So it does not matter whether Ray Data, which configures its handlers when it is imported, was
    imported before.
    """

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make, self.level = make, logging.NOTSET

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self._make(*args, **kwargs)
        low = record.levelno < self.level and f"{record.name}.".startswith("ray.data.")
        if low and type(record) is logging.LogRecord:
            record.__class__ = _Hidden
        return record


_hiding: _Hiding | None = None


def quiet(level: int = logging.WARNING) -> int:
    """Show Ray Data's log lines from `level` on; its log file keeps all of them.

    Returns:
        The level before.

    Raises:
        LabError: `level` is not one of logging's numbers.
    """
    global _hiding
    if not isinstance(level, int):
        raise LabError("quieten Ray Data's log", f"the level is {level!r}", "quiet(logging.ERROR)")
    if _hiding is None:
        _hiding = _Hiding(logging.getLogRecordFactory())
        logging.setLogRecordFactory(_hiding)
    before, _hiding.level = _hiding.level, level
    return before
