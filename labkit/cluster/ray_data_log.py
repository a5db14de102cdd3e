"""Which of Ray Data's log lines a notebook shows."""

import logging
from collections.abc import Callable
from typing import Any

from labkit.errors import LabError

_before: Callable[..., logging.LogRecord] | None = None  # what made log records before the first `quiet`
_shown_from = logging.NOTSET


class _Hidden(logging.LogRecord):
    """A record that Ray Data's console handler passes over, and its file handler does not."""

    hide = True  # of the class: Ray sets it on records itself, which must not have it already


def _make(*args: Any, **kwargs: Any) -> logging.LogRecord:
    record = _before(*args, **kwargs)
    low = record.levelno < _shown_from and f"{record.name}.".startswith("ray.data.")
    if low and type(record) is logging.LogRecord:
        record.__class__ = _Hidden
    return record


def quiet(level: int = logging.WARNING) -> int:
    """Show Ray Data's log lines from `level` on; its log file keeps all of them. Returns the level before.

    It marks records where they are made. A filter would have to be on Ray Data's handler, which exists only
    after the import of Ray Data, a second that `cluster.connect` does not have.

    Raises:
        LabError: `level` is not one of logging's numbers.
    """
    global _before, _shown_from
    if not isinstance(level, int):
        raise LabError("quieten Ray Data's log", f"the level is {level!r}", "quiet(logging.ERROR)")
    if _before is None:
        _before = logging.getLogRecordFactory()
        logging.setLogRecordFactory(_make)
    level, _shown_from = _shown_from, level
    return level
