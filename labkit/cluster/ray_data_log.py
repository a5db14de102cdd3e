"""Which of Ray Data's log lines a notebook shows."""

import logging
import os
import sys

from labkit.errors import LabError

_shown_from = logging.INFO  # as Ray Data's own handler has it


def quiet(level: int = logging.WARNING) -> int:
    """Show Ray Data's log lines from `level` on, and return the level before.

    Its log file keeps the others, but for those below the level that was set before Ray Data was imported.

    Raises:
        LabError: `level` is not one of logging's numbers.
    """
    global _shown_from
    if not isinstance(level, int):
        raise LabError("quieten Ray Data's log", f"the level is {level!r}", "quiet(logging.ERROR)")
    if "ray.data" not in sys.modules:  # it is read at the import
        os.environ.setdefault("RAY_DATA_LOG_LEVEL", str(logging.getLevelName(level)))
    for handler in logging.getLogger("ray.data").handlers:  # none before
        if handler.name == "console":
            handler.setLevel(level)
    before, _shown_from = _shown_from, level
    return before
