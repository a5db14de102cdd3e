"""What Ray Data prints: its log lines and its progress bars, also of a Ray Data that is imported later."""

import logging
import sys

_PROGRESS = "ray.data._internal.progress"
_level: int | str = logging.INFO  # as Ray Data's own handler has it
_had_bars = True


def set_log_level(level: int | str) -> int | str:
    """Show Ray Data's log lines from `level` on, and return the level before.

    For a Ray Data that is imported later, the environment says it. Its log file keeps the other lines, except
    those below the level that the environment had at the import.
    """
    global _level
    before = _level
    _level = level
    for handler in logging.getLogger("ray.data").handlers:  # none before the import
        if handler.name == "console":
            handler.setLevel(level)
    return before


def hide_progress_bars() -> None:
    """Hide the progress bars of a Ray Data that is imported; for a later one, the environment says it."""
    global _had_bars
    # Ray Data would report once that its bars are off.
    logging.getLogger(_PROGRESS).setLevel(logging.ERROR)
    if "ray.data" in sys.modules:
        _had_bars = _show_bars(False)


def show_again() -> None:
    """Let Ray Data print what it printed before."""
    set_log_level(logging.INFO)
    logging.getLogger(_PROGRESS).setLevel(logging.NOTSET)
    if "ray.data" in sys.modules:
        logging.getLogger("ray.data").setLevel(logging.DEBUG)  # its own; the environment had another one
        _show_bars(_had_bars)


def _show_bars(shown: bool) -> bool:
    from ray.data import DataContext

    context = DataContext.get_current()
    before = context.enable_progress_bars
    context.enable_progress_bars = shown
    return before
