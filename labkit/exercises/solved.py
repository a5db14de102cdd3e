"""Which exercises were solved: ``LABKIT_HOME/exercises.json``, safe with several kernels at once."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path

from labkit.files import atomic_write

_NAME = "exercises.json"


def read(home: Path) -> dict[str, str]:
    """Exercise → when it was first solved (ISO 8601, UTC). A file that cannot be read is as good as none."""
    try:
        solved = json.loads((home / _NAME).read_text(encoding="utf-8"))["solved"]
        return {str(id): str(when) for id, when in solved.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def mark(home: Path, id: str) -> None:
    """Keep that the exercise `id` was solved.

    Raises:
        OSError: the folder cannot be written to, or another process does not let go of it.
    """
    from filelock import FileLock

    path = home / _NAME
    home.mkdir(parents=True, exist_ok=True)
    # A lock file of its own: exercises.json is replaced, and a lock on what is replaced locks nothing.
    with FileLock(home / ".exercises.lock", timeout=10):
        solved = read(home)
        if id in solved:
            return
        if path.exists() and not solved:
            # Damaged, or of a version to come: kept for whoever wants to look into it.
            os.replace(path, path.with_suffix(".unreadable"))
        solved[id] = datetime.now(UTC).isoformat(timespec="seconds")
        atomic_write(path, json.dumps({"format": 1, "solved": solved}, indent=1))
