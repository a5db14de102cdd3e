"""What Ray Data prints: its log lines and its progress bars, also of a Ray Data that is imported later."""

import logging
import os
import sys

_level = logging.INFO  # as Ray Data's own handler has it


def set_log_level(level: int) -> int:
    """Show Ray Data's log lines from `level` on, and return the level before.

    Its log file keeps the others, except those below the level that was set before Ray Data was imported.
    """
    global _level
    before = _level
    _level = level
    if "ray.data" not in sys.modules:  # it is read at the import
        os.environ.setdefault("RAY_DATA_LOG_LEVEL", logging.getLevelName(level))
    for handler in logging.getLogger("ray.data").handlers:  # none before the import
        if handler.name == "console":
            handler.setLevel(level)
    return before


def hide_progress_bars() -> None:
    """Hide the progress bars of a Ray Data that is imported; for a later one, the environment says it."""
    # Ray Data would report once that its bars are off.
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)
    if "ray.data" in sys.modules:
        from ray.data import DataContext

        DataContext.get_current().enable_progress_bars = False
